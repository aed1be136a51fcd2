"""A real `openai` client against a server on loopback: its calls are LLM spans of the attempt."""

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import openai
import pytest

from sharpen.emitter import emit_reward, operation
from sharpen.tracer import DummyTracer, OtelTracer, Tracer
from sharpen.types import Span

from .chat_server import ANSWER, PROMPT, TOOLS, chat_server, messages
from .scenes import ListSink, encoded, named, names, recorded

STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with chat_server() as address:
        yield address


@contextmanager
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as made:
        yield made


@asynccontextmanager
async def async_client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as made:
        yield made


def ask(url: str, **options: Any) -> None:
    with client(url) as made:
        answer = made.chat.completions.create(model="tiny", messages=messages(), **options)
        if options.get("stream"):
            assert "".join(c.choices[0].delta.content or "" for c in answer if c.choices) == ANSWER


async def ask_async(url: str, **options: Any) -> None:
    async with async_client(url) as made:
        answer = await made.chat.completions.create(model="tiny", messages=messages(), **options)
        if options.get("stream"):
            assert "".join([c.choices[0].delta.content or "" async for c in answer if c.choices]) == ANSWER


def ask_in_loop(url: str, **options: Any) -> None:
    asyncio.run(ask_async(url, **options))


WAYS = [ask, ask_in_loop]


def parts(span: Span, side: str) -> list[dict[str, Any]]:
    return [part for message in json.loads(span.attributes[f"gen_ai.{side}.messages"]) for part in message["parts"]]


@pytest.mark.parametrize("way", WAYS, ids=["sync", "async"])
@pytest.mark.parametrize("options", [{}, STREAM], ids=["whole", "streamed"])
def test_a_call_is_an_llm_span_with_messages_model_and_usage(
    url: str, way: Callable[..., None], options: dict[str, Any]
) -> None:
    [span] = recorded(OtelTracer(), lambda: way(url, temperature=0.5, **options))
    found = span.attributes
    assert span.name == "chat tiny"
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.request.model"] == "tiny"
    assert found["gen_ai.response.model"] == "tiny-served"
    assert found["gen_ai.request.temperature"] == 0.5
    assert (found["gen_ai.usage.input_tokens"], found["gen_ai.usage.output_tokens"]) == (11, 7)
    assert found["gen_ai.response.finish_reasons"] == ["stop"]
    assert [part["content"] for part in parts(span, "input")] == ["You are terse.", PROMPT]
    assert [part["content"] for part in parts(span, "output")] == [ANSWER]
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time < span.end_time


@pytest.mark.parametrize("way", WAYS, ids=["sync", "async"])
def test_tool_calls_are_in_the_span(url: str, way: Callable[..., None]) -> None:
    [span] = recorded(OtelTracer(), lambda: way(url, tools=TOOLS))
    [call] = parts(span, "output")
    assert (call["type"], call["name"], call["id"]) == ("tool_call", "look_up", "call_1")
    assert call["arguments"] == {"country": "Testland"}
    assert "look_up" in span.attributes["gen_ai.tool.definitions"]


@pytest.mark.parametrize("way", WAYS, ids=["sync", "async"])
@pytest.mark.parametrize("options", [{}, STREAM, {"tools": TOOLS}], ids=["whole", "streamed", "tools"])
def test_without_content_nothing_of_prompt_and_answer_is_recorded(
    url: str, way: Callable[..., None], options: dict[str, Any]
) -> None:
    spans = recorded(OtelTracer(capture_content=False), lambda: way(url, **options))
    text = encoded(spans)
    for secret in (PROMPT, ANSWER, ANSWER[:10], "terse", "Testland", "country", "Finds a capital"):
        assert secret not in text
    assert spans[0].attributes["gen_ai.usage.output_tokens"] == 7


def test_a_failed_call_is_an_error_span_and_the_error_reaches_the_agent(url: str) -> None:
    def agent() -> None:
        with client(url) as made, pytest.raises(openai.BadRequestError):
            made.chat.completions.create(model="broken", messages=messages())

    [span] = recorded(OtelTracer(), agent)
    assert span.status.status_code == "ERROR"
    assert span.attributes["error.type"] == "openai.BadRequestError"


def test_calls_are_children_of_the_operation_they_happen_in(url: str) -> None:
    @operation(name="plan")
    def plan() -> None:
        ask(url)
        emit_reward(1.0)

    spans = recorded(OtelTracer(), plan)
    parent = named(spans, "sharpen.operation").span_id
    assert names(spans) == ["chat tiny", "sharpen.reward", "sharpen.operation"]
    assert [span.parent_id for span in spans] == [parent, parent, None]


def test_a_dummy_tracer_leaves_the_client_alone(url: str) -> None:
    assert recorded(DummyTracer(), lambda: ask(url)) == []


def test_calls_outside_an_attempt_are_not_recorded(url: str) -> None:
    tracer = OtelTracer()
    with tracer.lifespan():
        ask(url)
        assert tracer.get_last_trace() == []


def test_instrumentations_and_variables_are_gone_after_the_last_tracer() -> None:
    plain, before = openai.resources.chat.completions.Completions.create, dict(os.environ)
    with OtelTracer().lifespan():
        with OtelTracer(capture_content=False).lifespan():
            assert openai.resources.chat.completions.Completions.create is not plain
        assert openai.resources.chat.completions.Completions.create is not plain
        assert os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] == "span_only"
    assert openai.resources.chat.completions.Completions.create is plain
    assert dict(os.environ) == before


def test_each_tracer_decides_for_itself_whether_content_is_captured(url: str) -> None:
    silent, open_ = OtelTracer(capture_content=False), OtelTracer()
    with silent.lifespan():
        assert PROMPT not in encoded(recorded(silent, ask, url))
        with open_.lifespan():
            assert PROMPT in encoded(recorded(open_, ask, url))
            assert PROMPT not in encoded(recorded(silent, ask, url))
        assert PROMPT not in encoded(recorded(silent, ask, url))


def test_a_user_who_has_decided_about_content_in_the_environment_is_left_alone(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "no_content")
    [span] = recorded(OtelTracer(), ask, url)
    assert "gen_ai.input.messages" not in span.attributes


def test_an_instrumentation_that_the_user_switched_on_stays_and_records_once(url: str) -> None:
    from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

    tracer = OtelTracer()
    tracer.trace_run(lambda: None)
    theirs = OpenAIInstrumentor()
    theirs.instrument()
    try:
        assert names(recorded(tracer, ask, url)) == ["chat tiny"]
        assert theirs.is_instrumented_by_opentelemetry
    finally:
        theirs.uninstrument()


async def test_many_attempts_with_real_calls_never_mix(url: str) -> None:
    tracer: Tracer = OtelTracer()

    async def attempt(number: int) -> None:
        sink = ListSink()
        async with tracer.trace_context(store=sink, rollout_id=f"ro-{number}", attempt_id="at"):
            asked = messages(f"echo {number}.")
            if number % 3 == 0:
                await made.chat.completions.create(model="tiny", messages=asked)
            elif number % 3 == 1:
                await asyncio.to_thread(plain.chat.completions.create, model="tiny", messages=asked)
            else:
                thread = threading.Thread(
                    target=plain.chat.completions.create, kwargs={"model": "tiny", "messages": asked}
                )
                thread.start()
                await asyncio.to_thread(thread.join)
        [span] = sink.spans
        assert span.rollout_id == f"ro-{number}"
        assert [part["content"] for part in parts(span, "output")] == [f"echo {number}."]

    with tracer.lifespan(), client(url) as plain:
        async with async_client(url) as made:
            await asyncio.gather(*(attempt(number) for number in range(30)))
