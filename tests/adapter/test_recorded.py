"""Traces of a real OpenAI client, recorded by the OpenTelemetry instrumentation that users have."""

import pytest
from openai import APIStatusError, OpenAI
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sharpen.adapter import TracerTraceToTriplet, TraceToMessages
from sharpen.semconv import AGL_OPERATION, PRIMARY_REWARD_VALUE, LightningSpanAttributes
from sharpen.types import Span

from .model_server import WEATHER_CALL, model_server

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


class Recording:
    """A client whose calls are recorded, a tracer for spans around them, and the spans so far."""

    def __init__(self, url, provider, exporter):
        self.client = OpenAI(base_url=url, api_key="none", max_retries=0)
        self.tracer = provider.get_tracer("test")
        self._exporter = exporter

    def ask(self, messages, **options):
        return self.client.chat.completions.create(model=options.pop("model", "small"), messages=messages, **options)

    def spans(self):
        finished = self._exporter.get_finished_spans()
        return [Span.from_opentelemetry(span, "ro-1", "at-1", number) for number, span in enumerate(finished, 1)]


@pytest.fixture
def recording(request, monkeypatch):
    monkeypatch.setenv(CAPTURE, getattr(request, "param", "SPAN_ONLY"))
    exporter, provider, instrumentor = InMemorySpanExporter(), TracerProvider(), OpenAIInstrumentor()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(tracer_provider=provider)
    try:
        with model_server() as url:
            made = Recording(url, provider, exporter)
            yield made
            made.client.close()
    finally:
        instrumentor.uninstrument()


def test_a_conversation_with_a_tool_comes_back_as_it_was_held(recording):
    held = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Weather in Rome?"}]
    first = recording.ask(held, tools=[WEATHER])
    asked = first.choices[0].message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True)
    told = {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"}
    recording.ask([*held, asked, told], tools=[WEATHER])

    calling = {"role": "assistant", "content": None, "tool_calls": [WEATHER_CALL]}
    assert TraceToMessages().adapt(recording.spans()) == [
        {"messages": [*held, calling], "tools": [WEATHER]},
        {
            "messages": [*held, calling, told, {"role": "assistant", "content": "You said: 21 degrees"}],
            "tools": [WEATHER],
        },
    ]


def test_a_conversation_that_was_read_can_be_sent_again(recording):
    recording.ask([{"role": "user", "content": "Weather in Rome?"}], tools=[WEATHER])
    [read] = TraceToMessages().adapt(recording.spans())
    told = {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees"}
    response = recording.ask([*read["messages"], told], tools=read["tools"])
    assert response.choices[0].message.content == "You said: 21 degrees"


def test_pictures_and_parts_come_back(recording):
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "http://localhost/picture.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
    ]
    recording.ask([{"role": "user", "content": parts}])
    [read] = TraceToMessages().adapt(recording.spans())
    assert read["messages"][0] == {"role": "user", "content": parts}
    assert read["tools"] is None


def test_every_choice_is_a_conversation_and_every_call_a_triplet(recording):
    recording.ask([{"role": "user", "content": "hi"}], n=3)
    conversations = TraceToMessages().adapt(recording.spans())
    assert [c["messages"][-1]["content"] for c in conversations] == ["You said: hi"] * 3
    [triplet] = TracerTraceToTriplet().adapt(recording.spans())
    assert len(triplet.response["messages"]) == 3


def test_triplets_of_a_real_trace_have_agents_rewards_and_responses(recording):
    with recording.tracer.start_as_current_span(
        AGL_OPERATION, attributes={LightningSpanAttributes.OPERATION_NAME.value: "solver"}
    ):
        recording.ask([{"role": "user", "content": "one"}])
        with recording.tracer.start_as_current_span("score") as score:
            recording.ask([{"role": "user", "content": "Is this good?"}])
            score.set_attribute(PRIMARY_REWARD_VALUE, 0.5)
        recording.ask([{"role": "user", "content": "two"}])
    triplets = TracerTraceToTriplet(agent_match="solver").adapt(recording.spans())
    assert [(t.prompt["messages"][0]["content"], t.reward) for t in triplets] == [("one", 0.5), ("two", None)]
    assert [t.metadata["response_id"] for t in triplets] == ["chatcmpl-1", "chatcmpl-3"]
    assert {t.metadata["agent_name"] for t in triplets} == {"solver"}


def test_a_call_that_the_server_refused_is_left_out(recording):
    with pytest.raises(APIStatusError):
        recording.ask([{"role": "user", "content": "hi"}], model="broken")
    recording.ask([{"role": "user", "content": "hi"}])
    assert len(recording.spans()) == 2
    assert len(TracerTraceToTriplet().adapt(recording.spans())) == 1
    assert len(TraceToMessages().adapt(recording.spans())) == 1


@pytest.mark.parametrize("recording", ["NO_CONTENT"], indirect=True)
def test_without_content_there_are_calls_but_no_conversations(recording):
    recording.ask([{"role": "user", "content": "hi"}])
    assert TraceToMessages().adapt(recording.spans()) == []
    [triplet] = TracerTraceToTriplet().adapt(recording.spans())
    assert triplet.prompt == {"token_ids": []}
