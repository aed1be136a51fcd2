"""The user's hook takes content out of spans, and lets nothing through when it fails."""

import logging
import types
from typing import Any

import pytest

from sharpen.errors import ConfigError
from sharpen.semconv import SHARPEN_REDACTION_ERROR, LightningLLMAttributes
from tests.llm_proxy.internals import Redaction

ATTRIBUTES: dict[str, Any] = {
    "gen_ai.request.model": "gpt-4o",
    "gen_ai.usage.input_tokens": 12,
    "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "my number is 555-0100"}]}]',
    "gen_ai.response.finish_reasons": ["stop"],
    "gen_ai.something.new": "my number is 555-0100",
    "sharpen.llm.exchange.request": '{"messages": "555-0100"}',
    str(LightningLLMAttributes.PROMPT_TOKEN_IDS): [1, 2, 3],
}


def hide_numbers(attributes: dict[str, Any]) -> dict[str, Any]:
    """Found by its import path in the tests."""
    return {name: "***" if "555" in str(value) else value for name, value in attributes.items()}


def test_without_a_hook_attributes_stay_as_they_are() -> None:
    redaction = Redaction(None)
    assert redaction(ATTRIBUTES) is ATTRIBUTES
    assert not redaction


@pytest.mark.parametrize("hook", [hide_numbers, f"{__name__}.hide_numbers"])
def test_a_hook_is_a_function_or_its_path(hook: Any) -> None:
    redacted = Redaction(hook)(ATTRIBUTES)
    assert "555" not in str(redacted)
    assert redacted["gen_ai.request.model"] == "gpt-4o"
    assert "555" in str(ATTRIBUTES)


def spoil_and_raise(attributes: dict[str, Any]) -> dict[str, Any]:
    attributes["gen_ai.request.model"] = "spoiled"
    raise KeyError("my number is 555-0100")


async def be_async(attributes: dict[str, Any]) -> dict[str, Any]:
    return attributes


HOOKS_THAT_FAIL: dict[str, Any] = {
    "KeyError": spoil_and_raise,
    "TypeError": lambda attributes: None,
    "AttributeError": lambda attributes: attributes.no_such_thing(),
}


@pytest.mark.parametrize("kind", HOOKS_THAT_FAIL)
def test_a_hook_that_fails_lets_no_content_through_and_the_span_says_so(kind: str) -> None:
    redacted = Redaction(HOOKS_THAT_FAIL[kind])(ATTRIBUTES)
    assert redacted == {
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.response.finish_reasons": ["stop"],
        SHARPEN_REDACTION_ERROR: kind,
    }


@pytest.mark.parametrize("made", [lambda a: {1: "x"}, lambda a: {"x": object()}, lambda a: be_async(a), lambda a: [*a]])
def test_a_hook_that_returns_what_no_span_can_hold_lets_no_content_through(made: Any) -> None:
    redacted = Redaction(made)(ATTRIBUTES)
    assert redacted[SHARPEN_REDACTION_ERROR] == "TypeError"
    assert "555" not in str(redacted)


def test_a_failure_is_logged_once_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    redaction = Redaction(spoil_and_raise)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            redaction(ATTRIBUTES)
    assert len(caplog.records) == 1
    assert "spoil_and_raise raised KeyError" in caplog.text
    assert "555" not in caplog.text


@pytest.mark.parametrize(
    "hook", [7, "hide_numbers", "no_such_module_at_all.hook", dict, be_async, f"{__name__}.nothing"]
)
def test_a_hook_that_cannot_work_is_refused_at_once(hook: Any) -> None:
    with pytest.raises(ConfigError):
        Redaction(hook)


def test_an_object_that_can_be_called_is_a_hook() -> None:
    class Hook:
        def __call__(self, attributes: dict[str, Any]) -> dict[str, Any]:
            return {}

    assert Redaction(Hook())({"gen_ai.input.messages": "secret"}) == {}
    assert Redaction(types.MethodType(lambda self, attributes: {"a": 1}, 0))({}) == {"a": 1}


def test_what_limits_are_counted_by_stays_whatever_the_hook_does() -> None:
    counted = {"gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 3, "sharpen.llm.cost": 0.5}
    hide_all = Redaction(lambda attributes: dict.fromkeys(attributes, "***"))
    assert hide_all({**counted, "sharpen.llm.refused": "paused", "text": "secret"}) == {
        **counted,
        "sharpen.llm.refused": "paused",
        "text": "***",
    }
