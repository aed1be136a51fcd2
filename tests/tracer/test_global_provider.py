"""Agents that use OpenTelemetry themselves: its global API, and providers of their own."""

import gc
import weakref

from opentelemetry import context, trace

from sharpen.emitter import emit_message
from sharpen.tracer import OtelTracer

from .scenes import ListSink, named, names, recorded, run_script


def test_spans_through_the_global_api_belong_to_the_attempt() -> None:
    def agent() -> None:
        with trace.get_tracer("agent").start_as_current_span("search") as span:
            span.set_attributes({"query": "x", "hits": [1, 2]})
            span.add_event("found", {"first": 1})
            emit_message("inside")

    spans = recorded(OtelTracer(), agent)
    search = named(spans, "search")
    assert search.attributes == {"query": "x", "hits": [1, 2]}
    assert [(event.name, event.attributes) for event in search.events] == [("found", {"first": 1})]
    assert named(spans, "sharpen.message").parent_id == search.span_id


def test_outside_an_attempt_the_global_api_records_nothing() -> None:
    tracer = OtelTracer()
    with tracer.lifespan():
        tracer.trace_run(lambda: trace.get_tracer("agent").start_span("inside").end())
        with trace.get_tracer("agent").start_as_current_span("outside") as span:
            assert not span.is_recording()
        assert names(tracer.get_last_trace()) == ["inside"]


async def test_a_trace_gives_its_block_a_tracer_of_opentelemetry() -> None:
    tracer = OtelTracer()
    async with tracer.trace_context() as handle:
        with handle.start_as_current_span("by hand"):
            pass
    assert names(tracer.get_last_trace()) == ["by hand"]


async def test_a_span_around_the_runner_is_no_part_of_the_attempt() -> None:
    outer = trace.NonRecordingSpan(trace.SpanContext(trace_id=5, span_id=6, is_remote=False))
    tracer = OtelTracer()
    token = context.attach(trace.set_span_in_context(outer))
    try:
        async with tracer.trace_context():
            trace.get_tracer("agent").start_span("first").end()
            emit_message("second")
        assert trace.get_current_span() is outer
    finally:
        context.detach(token)
    first, second = tracer.get_last_trace()
    assert (first.parent_id, second.parent_id) == (None, None)
    assert first.trace_id == second.trace_id != f"{5:032x}"


def test_more_than_128_attributes_are_kept() -> None:
    many = {f"gen_ai.prompt.{number}.content": "x" for number in range(400)}
    [span] = recorded(OtelTracer(), lambda: trace.get_tracer("agent").start_span("long", attributes=many).end())
    assert span.attributes == many


def test_links_and_errors_are_kept() -> None:
    def agent() -> None:
        other = trace.SpanContext(trace_id=1, span_id=2, is_remote=True)
        span = trace.get_tracer("agent").start_span("linked", links=[trace.Link(other, {"why": "because"})])
        span.set_status(trace.StatusCode.ERROR, "it broke")
        span.end()

    [span] = recorded(OtelTracer(), agent)
    assert (span.status.status_code, span.status.description) == ("ERROR", "it broke")
    [link] = span.links
    assert (link.context.trace_id, link.context.span_id, link.attributes) == (
        f"{1:032x}",
        f"{2:016x}",
        {"why": "because"},
    )


async def test_a_span_that_is_never_ended_holds_nothing_of_its_attempt() -> None:
    tracer, sink = OtelTracer(), ListSink()
    async with tracer.trace_context(store=sink, rollout_id="ro", attempt_id="at"):
        endless = trace.get_tracer("agent").start_span("endless")
    gone = weakref.ref(sink)
    del sink
    async with tracer.trace_context():
        endless.end()
    gc.collect()
    assert gone() is None
    assert tracer.get_last_trace() == []


OWN_PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter, own = InMemorySpanExporter(), TracerProvider()
own.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(own)

from sharpen.emitter import emit_message, operation
from sharpen.tracer import OtelTracer

def agent():
    with trace.get_tracer("agent").start_as_current_span("theirs"):
        with operation(name="ours"):
            emit_message("leaf")

for _ in range(2):
    tracer = OtelTracer()
    with tracer.lifespan():
        tracer.trace_run(agent)
    leaf, ours, theirs = tracer.get_last_trace()
    assert (leaf.name, ours.name, theirs.name) == ("sharpen.message", "sharpen.operation", "theirs")
    assert leaf.parent_id == ours.span_id and ours.parent_id == theirs.span_id and theirs.parent_id is None
    assert len({span.trace_id for span in (leaf, ours, theirs)}) == 1

agent()
assert trace.get_tracer_provider() is own
assert [span.name for span in exporter.get_finished_spans()] == ["theirs"] * 3
assert len(tracer.get_last_trace()) == 3
print("fine")
"""


def test_a_provider_of_the_users_own_is_left_in_place_and_recorded_once() -> None:
    assert run_script(OWN_PROVIDER).stdout == "fine\n"


GUEST = """
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sharpen.emitter import emit_reward
from sharpen.tracer import OtelTracer

tracer, exporter = OtelTracer(), InMemorySpanExporter()
with tracer.lifespan():
    trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
    tracer.trace_run(emit_reward, 0.5)
[span] = tracer.get_last_trace()
[seen] = exporter.get_finished_spans()
assert span.name == seen.name == "sharpen.reward"
assert span.attributes == dict(seen.attributes) == {"sharpen.reward.0.name": "primary", "sharpen.reward.0.value": 0.5}
assert f"{seen.context.span_id:016x}" == span.span_id and f"{seen.context.trace_id:032x}" == span.trace_id
print("fine")
"""


def test_whoever_listens_to_our_provider_also_sees_what_is_emitted() -> None:
    assert run_script(GUEST).stdout == "fine\n"


LATE_IMPORT = """
import sys
from sharpen.emitter import emit_reward
from sharpen.tracer import OtelTracer

def emitting():
    emit_reward(1.0)

def using():
    from opentelemetry import trace
    with trace.get_tracer("agent").start_as_current_span("late"):
        emit_reward(1.0)

tracer = OtelTracer()
with tracer.lifespan():
    tracer.trace_run(emitting)
    assert len(tracer.get_last_trace()) == 1
    assert "opentelemetry.sdk" not in sys.modules and "opentelemetry.trace" not in sys.modules
    tracer.trace_run(using)
    assert [span.name for span in tracer.get_last_trace()] == ["sharpen.reward", "late"]
print("fine")
"""


def test_the_sdk_is_loaded_only_when_the_agent_needs_it_and_then_in_time() -> None:
    assert run_script(LATE_IMPORT).stdout == "fine\n"


def test_a_disabled_sdk_is_said_and_rewards_are_still_recorded() -> None:
    code = """
from opentelemetry import trace
from sharpen.emitter import emit_reward
from sharpen.tracer import OtelTracer

def agent():
    with trace.get_tracer("agent").start_as_current_span("lost"):
        emit_reward(1.0)

tracer = OtelTracer()
tracer.trace_run(agent)
print([span.name for span in tracer.get_last_trace()])
"""
    done = run_script(code, environment={"OTEL_SDK_DISABLED": "true"})
    assert done.stdout == "['sharpen.reward']\n"
    assert "OTEL_SDK_DISABLED is set" in done.stderr
