"""Which client an algorithm asks its models with: the gateway, one from the environment, or an error that helps."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sharpen.algorithm import Algorithm
from sharpen.errors import ConfigError, MissingExtraError, RunError
from sharpen.llm_proxy import LLMProxy
from sharpen.store import InMemoryLightningStore
from tests.algorithm.internals import Assistant, NoAnswerError, choose_client
from tests.errors import raises

from .scripted_openai import ScriptedOpenAI

HELLO = [{"role": "user", "content": "one two three"}]


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


@pytest.fixture
def server() -> Iterator[ScriptedOpenAI]:
    with ScriptedOpenAI("from upstream", models=("critic-big", "editor")) as server:
        yield server


class Asks(Algorithm[Any]):
    def __init__(self, *models: str, upstream: ScriptedOpenAI) -> None:
        entries = [
            {"name": name, "base_url": upstream.base_url, "engine": "none", "api_key": "sk-upstream"} for name in models
        ]
        self.gateway = LLMProxy(model_list=entries, store=InMemoryLightningStore(), launch_mode="thread")
        self.set_llm_proxy(self.gateway)


async def test_a_gateway_that_lists_the_models_is_asked(server: ScriptedOpenAI) -> None:
    algorithm = Asks("critic-*", "editor", "agent", upstream=server)
    async with algorithm.gateway:
        assistant = Assistant(choose_client(algorithm, ["critic-big", "editor"], feature="APO"))
        answers = [await assistant.ask(model, HELLO, temperature=1.0) for model in ("critic-big", "editor")]
        totals = await algorithm.gateway.totals()
    assert [answer.text for answer in answers] == ["from upstream"] * 2
    assert [answer.cost.input_tokens for answer in answers] == [3, 3]
    assert [(asked.model, asked.key) for asked in server.requests] == [
        ("critic-big", "sk-upstream"),
        ("editor", "sk-upstream"),
    ]
    assert totals.calls == 2


async def test_a_gateway_with_a_used_up_limit_ends_the_run(server: ScriptedOpenAI) -> None:
    entries = [{"name": "editor", "base_url": server.base_url, "engine": "none"}]
    algorithm = Asks(upstream=server)
    async with LLMProxy(model_list=entries, launch_mode="thread", limits={"run_calls": 1}) as gateway:
        algorithm.set_llm_proxy(gateway)
        assistant = Assistant(choose_client(algorithm, ["editor"], feature="APO"))
        await assistant.ask("editor", HELLO, temperature=None)
        with pytest.raises(RunError) as caught:
            await assistant.ask("editor", HELLO, temperature=None)
    assert not isinstance(caught.value, NoAnswerError)


def test_a_gateway_without_the_models_gives_way_to_the_environment(
    server: ScriptedOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-environment")
    client = choose_client(Asks("critic-big", upstream=server), ["critic-big", "editor"], feature="APO")
    assert client.api_key == "sk-from-environment"
    assert "api.openai.com" in str(client.base_url)


def test_without_any_client_the_error_says_what_is_missing(server: ScriptedOpenAI) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_client(Asks("critic-big", upstream=server), ["critic-big", "editor"], feature="APO")
    for value in ("APO", "'critic-big' and 'editor'", "lists critic-big", "OPENAI_API_KEY", "async_openai_client="):
        assert value in str(caught.value)
    with raises(ConfigError, "GEPA", "m", "reflection_client="):
        choose_client(Algorithm(), ["m"], feature="GEPA", argument="reflection_client")


def test_without_the_package_the_error_holds_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with raises(MissingExtraError, "APO", "openai", "sharpen[apo]"):
        choose_client(Algorithm(), ["m"], feature="APO")
