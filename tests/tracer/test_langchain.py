"""LangChain's own callbacks write LLM and tool runs to the trace."""

import asyncio
import json
from typing import Any

import pytest

from tests.errors import raises

pytest.importorskip("langchain_core")

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.language_models.fake import FakeListLLM
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool

from sharpen.emitter import operation
from sharpen.tracer import DummyTracer, OtelTracer, Tracer
from sharpen.types import Span

from .scenes import encoded, named, recorded, run_script


@pytest.fixture(params=[OtelTracer, DummyTracer], ids=lambda kind: kind.__name__)
def tracer(request: pytest.FixtureRequest) -> Tracer:
    made: Tracer = request.param()
    return made


def answer() -> AIMessage:
    return AIMessage(
        "forty-two",
        tool_calls=[{"name": "add", "args": {"a": 1}, "id": "call_1"}],
        response_metadata={"id": "resp-1", "model_name": "fake-1", "finish_reason": "stop"},
        usage_metadata={"input_tokens": 5, "output_tokens": 2, "total_tokens": 7},
    )


def chat(tracer: Tracer) -> Any:
    model = GenericFakeChatModel(messages=iter([answer()]))
    asked = [SystemMessage("be brief"), HumanMessage("what is it?")]
    return model.invoke(asked, config={"callbacks": [tracer.get_langchain_handler()]})


def parts(span: Span, side: str) -> list[Any]:
    return [part for message in json.loads(span.attributes[f"gen_ai.{side}.messages"]) for part in message["parts"]]


def test_a_chat_model_run_is_an_llm_span(tracer: Tracer) -> None:
    @operation(name="think")
    def agent() -> None:
        assert chat(tracer).content == "forty-two"

    spans = recorded(tracer, agent)
    [span] = [span for span in spans if span.name.startswith("chat ")]
    assert span.attributes["gen_ai.operation.name"] == "chat"
    assert span.attributes["gen_ai.response.model"] == "fake-1"
    assert span.attributes["gen_ai.usage.input_tokens"] == 5
    assert span.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert [part["content"] for part in parts(span, "input")] == ["be brief", "what is it?"]
    text, call = parts(span, "output")
    assert text["content"] == "forty-two"
    assert (call["name"], call["arguments"]) == ("add", {"a": 1})
    assert span.parent_id == named(spans, "sharpen.operation").span_id


def test_a_call_that_an_instrumentation_recorded_is_not_written_twice(tracer: Tracer) -> None:
    def agent() -> None:
        tracer.create_span("chat fake-1", {"gen_ai.response.id": "resp-1"})
        chat(tracer)

    assert len(recorded(tracer, agent)) == 1


async def test_async_runs_land_in_their_own_attempt(tracer: Tracer) -> None:
    async def attempt(number: int) -> None:
        model = GenericFakeChatModel(messages=iter([AIMessage(f"answer {number}")]))
        async with tracer.trace_context():
            await model.ainvoke("go", config={"callbacks": [tracer.get_langchain_handler()]})
        [span] = tracer.get_last_trace()
        assert parts(span, "output")[0]["content"] == f"answer {number}"

    await asyncio.gather(*(attempt(number) for number in range(10)))


def test_a_completion_model_run_is_a_text_completion(tracer: Tracer) -> None:
    model = FakeListLLM(responses=["done"])
    [span] = recorded(tracer, lambda: model.invoke("do", config={"callbacks": [tracer.get_langchain_handler()]}))
    assert span.attributes["gen_ai.operation.name"] == "text_completion"
    assert parts(span, "output")[0]["content"] == "done"


def test_tool_runs_are_spans_with_arguments_and_result(tracer: Tracer) -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    config: Any = {"callbacks": [tracer.get_langchain_handler()]}
    [span] = recorded(tracer, lambda: add.invoke({"a": 1, "b": 2}, config=config))
    assert span.name == "execute_tool add"
    assert span.attributes["gen_ai.tool.name"] == "add"
    assert "'a': 1" in span.attributes["gen_ai.tool.call.arguments"]
    assert span.attributes["gen_ai.tool.call.result"] == "3"


def test_failing_runs_are_errors(tracer: Tracer) -> None:
    @tool
    def fail() -> None:
        """Fails."""
        raise ValueError("broken")

    config: Any = {"callbacks": [tracer.get_langchain_handler()]}

    def agent() -> None:
        with raises(ValueError, "broken"):
            fail.invoke({}, config=config)
        with pytest.raises(StopIteration):
            GenericFakeChatModel(messages=iter([])).invoke("go", config=config)

    spans = recorded(tracer, agent)
    assert [span.status.status_code for span in spans] == ["ERROR", "ERROR"]
    assert spans[0].events[0].attributes["exception.message"] == "broken"


def test_without_content_no_words_are_recorded() -> None:
    tracer = OtelTracer(capture_content=False)
    text = encoded(recorded(tracer, chat, tracer))
    assert "fake-1" in text
    for secret in ("forty-two", "be brief", "what is it"):
        assert secret not in text


def test_without_langchain_the_message_holds_the_command() -> None:
    code = """
import sys
sys.modules["langchain_core.callbacks"] = None
from sharpen.errors import MissingExtraError
from sharpen.tracer import DummyTracer
try:
    DummyTracer().get_langchain_handler()
except MissingExtraError as error:
    print(error)
"""
    assert "pip install 'sharpen[langchain]'" in run_script(code).stdout
