"""Which attributes hold words of prompts, responses and tools."""

import pytest
from opentelemetry import trace

from sharpen.tracer import OtelTracer
from tests.tracer.internals import is_content

from .scenes import encoded, recorded

CONTENT = [
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.system_instructions",
    "gen_ai.prompt",
    "gen_ai.prompt.0.content",
    "gen_ai.prompt.variable.name",
    "gen_ai.completion",
    "gen_ai.completion.0.tool_calls.0.arguments",
    "gen_ai.tool.call.arguments",
    "gen_ai.tool.call.result",
    "gen_ai.tool.definitions",
    "gen_ai.tool.message",
    "gen_ai.event.content",
    "gen_ai.retrieval.documents",
    "gen_ai.request.functions.0.parameters",
    "traceloop.entity.input",
    "traceloop.entity.output",
    "agentops.task.input",
    "agentops.entity.output",
    "tool.parameters",
    "tool.result",
    "input.value",
    "output.value",
    "llm.input_messages.0.message.content",
    "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments",
    "llm.prompts",
    "llm.prompt_template.variables",
    "llm.invocation_parameters",
    "message.content",
    "tool_call.function.arguments",
    "retrieval.documents.0.document.content",
    "embedding.text",
    "sharpen.operation.input",
    "sharpen.operation.output",
]
KEPT = [
    "gen_ai.operation.name",
    "gen_ai.request.model",
    "gen_ai.response.id",
    "gen_ai.response.finish_reasons",
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "gen_ai.usage.completion_tokens",
    "gen_ai.output.type",
    "gen_ai.tool.name",
    "gen_ai.tool.call.id",
    "gen_ai.conversation.id",
    "llm.model_name",
    "llm.token_count.prompt",
    "tool.name",
    "server.address",
    "exception.type",
    "sharpen.reward.0.value",
    "sharpen.message.body",
    "sharpen.operation.name",
]


@pytest.mark.parametrize("name", CONTENT)
def test_content_is_known_by_its_name(name: str) -> None:
    assert is_content(name)


@pytest.mark.parametrize("name", KEPT)
def test_what_describes_a_call_is_kept(name: str) -> None:
    assert not is_content(name)


def test_content_is_left_out_of_attributes_events_and_links_whoever_wrote_it() -> None:
    def agent() -> None:
        link = trace.Link(trace.SpanContext(1, 2, is_remote=False), {"input.value": "secret", "kind": "follows"})
        span = trace.get_tracer("any").start_span("call", attributes=dict.fromkeys(CONTENT, "secret"), links=[link])
        span.set_attributes({"gen_ai.request.model": "tiny"})
        span.add_event("gen_ai.user.message", {"content": "secret", "anything": "secret"})
        span.add_event("note", {"gen_ai.event.content": "secret", "kept": "yes"})
        span.end()

    [span] = recorded(OtelTracer(capture_content=False), agent)
    assert "secret" not in encoded([span])
    assert span.attributes == {"gen_ai.request.model": "tiny"}
    assert [(event.name, event.attributes) for event in span.events] == [
        ("gen_ai.user.message", {}),
        ("note", {"kept": "yes"}),
    ]
    assert span.links[0].attributes == {"kind": "follows"}
