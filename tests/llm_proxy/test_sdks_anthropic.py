"""The `anthropic` client through the gateway: the same bytes up, the same results down, and every call recorded."""

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from pydantic import BaseModel

from tests.errors import raises

from .readings import is_complete, said_by
from .replies import Fault, Reply
from .scenes import Scene, scene

HELLO: list[Any] = [{"role": "user", "content": "hello there"}]
WEATHER: list[Any] = [
    {
        "name": "weather",
        "description": "The weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
]
PLAIN: dict[str, Any] = {"model": "claude-scripted", "max_tokens": 64, "messages": HELLO}


class City(BaseModel):
    name: str
    inhabitants: int


def message(client: Anthropic) -> Any:
    return client.messages.create(**PLAIN, system="Be brief.", stop_sequences=["END"])


def stream(client: Anthropic) -> Any:
    return list(client.messages.create(**PLAIN, stream=True))


def stream_helper(client: Anthropic) -> Any:
    with client.messages.stream(**PLAIN) as running:
        return list(running.text_stream), running.get_final_message()


def tools(client: Anthropic) -> Any:
    """The model asks for the weather, is told it, and answers."""
    first = client.messages.create(**PLAIN, tools=WEATHER)
    told = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "sunny"}
    talk = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": [told]}]
    return first, client.messages.create(**{**PLAIN, "messages": talk}, tools=WEATHER)


def tools_stream(client: Anthropic) -> Any:
    with client.messages.stream(**PLAIN, tools=WEATHER) as running:
        return [event.type for event in running], running.get_final_message()


def parse(client: Anthropic) -> Any:
    said = client.messages.parse(**PLAIN, output_format=City)
    assert said.parsed_output == City(name="Rome", inhabitants=42)
    return said


CASES = [(message, 1), (stream, 1), (stream_helper, 1), (tools, 2), (tools_stream, 1), (parse, 1)]


def client_of(url: str, **more: Any) -> Anthropic:
    return Anthropic(base_url=url, api_key="sk-agent", **{"max_retries": 0, **more})


def both(at: Scene, ask: Any, **more: Any) -> Any:
    urls = (at.direct_anthropic_url, at.gateway_anthropic_url)
    return [ask(client_of(url, **more)) for url in urls]


@pytest.mark.parametrize(("ask", "calls"), CASES, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_the_gateway_changes_nothing_and_records_everything(upstream, provider, ask, calls):
    with scene(upstream, entry={"provider": provider}) as at:
        direct, through = both(at, ask)
        assert through == direct
        sent = [asked.body for asked in upstream.requests]
        assert sent[:calls] == sent[calls:]
        spans = at.spans()
        assert len(spans) == calls
        for span, asked in zip(spans, upstream.requests[calls:], strict=True):
            is_complete(span, asked.json)


def test_the_gateway_brings_its_own_key_and_passes_the_version_on(upstream):
    with scene(upstream, entry={"provider": "anthropic"}) as at:
        both(at, message)
        direct, through = upstream.requests
        assert through.headers["x-api-key"] == "sk-upstream"
        assert "sk-agent" not in str(through.headers)
        assert through.headers["anthropic-version"] == direct.headers["anthropic-version"]
        assert "sk-" not in str(at.spans())


def test_thinking_is_recorded(upstream):
    upstream.default_reply = Reply("42", reasoning="Six times seven.")
    with scene(upstream, entry={"provider": "anthropic"}) as at:
        for ask in (message, stream_helper):
            direct, through = both(at, ask)
            assert through == direct
        for span in at.spans():
            assert (said_by(span).reasoning, said_by(span).text) == ("Six times seven.", "42")


async def _everything(url: str) -> Any:
    async with AsyncAnthropic(base_url=url, api_key="sk-agent", max_retries=0) as client:
        whole = await client.messages.create(**PLAIN)
        async with client.messages.stream(**PLAIN, tools=WEATHER) as running:
            return whole, [event.type async for event in running], await running.get_final_message()


def test_the_async_client_gets_the_same(upstream):
    with scene(upstream, entry={"provider": "anthropic"}) as at:
        urls = (at.direct_anthropic_url, at.gateway_anthropic_url)
        direct, through = [asyncio.run(_everything(url)) for url in urls]
        assert through == direct
        assert len(at.spans()) == 2


@pytest.mark.parametrize(("status", "kind"), [(429, anthropic.RateLimitError), (529, anthropic.APIStatusError)])
def test_errors_of_the_upstream_arrive_in_anthropics_words(upstream, status, kind):
    with scene(upstream, entry={"provider": "anthropic"}) as at:
        raised = []
        for url in (at.direct_anthropic_url, at.gateway_anthropic_url):
            upstream.script(Fault("status", status=status, message="busy", retry_after="7"))
            with pytest.raises(kind) as caught:
                message(client_of(url))
            raised.append((type(caught.value), caught.value.body, caught.value.response.headers["retry-after"]))
        assert raised[0] == raised[1]
        (span,) = at.spans()
        assert span.status.status_code == "ERROR"
        assert "busy" in str(span.status.description)


def test_errors_of_the_gateway_are_in_anthropics_words_too(upstream):
    with scene(upstream, entry={"provider": "anthropic"}) as at:
        unknown = at.gateway_anthropic_url.replace(at.rollout.rollout_id, "ro-unknown")
        with raises(anthropic.NotFoundError, "ro-unknown") as caught:
            message(client_of(unknown))
        assert caught.value.body["type"] == "error"  # type: ignore[index]
        assert upstream.requests == []
