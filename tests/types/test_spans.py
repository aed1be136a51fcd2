"""Spans: made by hand, from what an agent returned, and from the OpenTelemetry SDK."""

import time

import msgspec
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import Link as OtelLink, Status, StatusCode

from sharpen.semconv import AGL_VIRTUAL
from sharpen.types import Event, Link, OtelResource, Span, SpanContext, SpanCoreFields, TraceStatus
from tests.errors import raises


@pytest.fixture
def tracer():
    provider = TracerProvider(resource=Resource({"service.name": "agent"}, schema_url="https://example.org/schema"))
    yield provider.get_tracer("tests")
    provider.shutdown()


def test_a_span_needs_only_its_ids():
    span = Span("ro-1", "at-1", 1, "trace", "span")
    assert (span.name, span.status, span.attributes) == (AGL_VIRTUAL, TraceStatus("UNSET"), {})
    assert (span.events, span.links, span.parent_id, span.start_time, span.end_time) == ([], [], None, None, None)


def test_a_full_span_comes_back_equal_from_json():
    span = Span(
        "ro-1", "at-1", 3, "t" * 32, "s" * 16, "p" * 16, "chat", TraceStatus("ERROR", "refused"),
        {"text": "héllo", "tokens": [1, 2], "flag": True, "ratio": 0.5},
        [Event("retry", {"n": 1}, 1.5)],
        [Link(SpanContext("a" * 32, "b" * 16, True, {"vendor": "x"}), {"why": "cause"})],
        1.0, 2.0, SpanContext("t" * 32, "s" * 16), SpanContext("t" * 32, "p" * 16, True),
        OtelResource({"service.name": "agent"}, "https://example.org/schema"),
    )  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(span), type=Span) == span


@pytest.mark.parametrize(
    ("field", "value"),
    [("sequence_id", "1"), ("status", {"status_code": "FINE"}), ("attributes", []), ("start_time", "noon")],
)
def test_a_wrong_field_from_json_is_refused_by_its_path(field, value):
    good = {"rollout_id": "ro-1", "attempt_id": "at-1", "sequence_id": 1, "trace_id": "t", "span_id": "s"}
    with raises(msgspec.ValidationError, f"$.{field}"):
        msgspec.convert({**good, field: value}, Span)


def test_two_spans_do_not_share_their_attributes():
    first, second = Span("r", "a", 1, "t", "s"), Span("r", "a", 1, "t", "s")
    first.attributes["seen"] = True
    assert second.attributes == {}


def test_a_span_from_attributes_makes_up_ids_and_times():
    before = time.time()
    first = Span.from_attributes(attributes={"a": 1})
    second = Span.from_attributes(attributes={"a": 1})
    assert len(first.trace_id) == 32
    assert len(first.span_id) == 16
    assert (first.trace_id, first.span_id) != (second.trace_id, second.span_id)
    assert before <= first.start_time <= time.time()
    assert first.end_time == first.start_time
    assert (first.rollout_id, first.attempt_id, first.sequence_id, first.name) == ("", "", 0, AGL_VIRTUAL)


def test_a_span_from_attributes_keeps_what_is_given():
    span = Span.from_attributes(
        attributes={"a": 1},
        rollout_id="ro-1",
        attempt_id="at-1",
        sequence_id=4,
        name="tool",
        trace_id="t",
        span_id="s",
        parent_id="p",
        start_time=0.0,
        end_time=2.0,
        resource=OtelResource({"k": "v"}),
        status=TraceStatus("OK"),
    )
    assert span == Span(
        "ro-1", "at-1", 4, "t", "s", "p", "tool", TraceStatus("OK"), {"a": 1},
        start_time=0.0, end_time=2.0, resource=OtelResource({"k": "v"}),
    )  # fmt: skip


def test_a_span_from_core_fields_keeps_what_the_agent_said():
    core = SpanCoreFields("search", TraceStatus("ERROR", "no network"), {"query": "x"}, 1.0, 3.0)
    span = Span.from_core_fields(core, rollout_id="ro-1", attempt_id="at-1", sequence_id=2)
    assert (span.rollout_id, span.attempt_id, span.sequence_id) == ("ro-1", "at-1", 2)
    assert (span.name, span.status, span.attributes) == (core.name, core.status, core.attributes)
    assert (span.start_time, span.end_time) == (1.0, 3.0)


def test_core_fields_need_only_a_name():
    span = Span.from_core_fields(SpanCoreFields("tick"), rollout_id="r", attempt_id="a", sequence_id=1)
    assert span.name == "tick"
    assert span.start_time is not None


def test_an_opentelemetry_span_keeps_its_identity_and_content(tracer):
    with tracer.start_as_current_span("agent") as parent, tracer.start_as_current_span("chat") as child:
        child.set_attributes({"model": "m", "ids": [1, 2], "flag": True, "ratio": 0.5})
        child.add_event("retry", {"n": 2}, timestamp=1_500_000_000)
        child.set_status(Status(StatusCode.ERROR, "refused"))
    span = Span.from_opentelemetry(child, "ro-1", "at-1", 7)

    assert (span.rollout_id, span.attempt_id, span.sequence_id, span.name) == ("ro-1", "at-1", 7, "chat")
    assert span.trace_id == f"{child.get_span_context().trace_id:032x}"
    assert span.span_id == f"{child.get_span_context().span_id:016x}"
    assert span.parent_id == f"{parent.get_span_context().span_id:016x}"
    assert span.attributes == {"model": "m", "ids": [1, 2], "flag": True, "ratio": 0.5}
    assert span.events == [Event("retry", {"n": 2}, 1.5)]
    assert span.status == TraceStatus("ERROR", "refused")
    assert span.resource.attributes["service.name"] == "agent"
    assert span.resource.schema_url == "https://example.org/schema"


def test_an_opentelemetry_span_has_its_times_in_seconds(tracer):
    started = tracer.start_span("chat", start_time=1_700_000_000_250_000_000)
    started.end(end_time=1_700_000_002_500_000_000)
    span = Span.from_opentelemetry(started, "ro-1", "at-1", 1)
    assert span.start_time == pytest.approx(1_700_000_000.25)
    assert span.end_time == pytest.approx(1_700_000_002.5)


def test_a_root_span_has_no_parent_and_a_running_one_no_end(tracer):
    started = tracer.start_span("agent")
    span = Span.from_opentelemetry(started, "ro-1", "at-1", 1)
    assert (span.parent_id, span.parent, span.end_time) == (None, None, None)
    started.end()


def test_the_links_of_an_opentelemetry_span_are_kept(tracer):
    with tracer.start_as_current_span("first") as first:
        pass
    with tracer.start_as_current_span("second", links=[OtelLink(first.get_span_context(), {"why": "cause"})]) as second:
        pass
    (link,) = Span.from_opentelemetry(second, "ro-1", "at-1", 1).links
    assert link.context.span_id == f"{first.get_span_context().span_id:016x}"
    assert link.attributes == {"why": "cause"}


def test_an_opentelemetry_span_comes_back_equal_from_json(tracer):
    with tracer.start_as_current_span("agent"), tracer.start_as_current_span("chat") as child:
        child.set_attributes({"ids": (1, 2), "names": ["a"], "raw": b"bytes"})
        child.record_exception(ValueError("broken"))
    span = Span.from_opentelemetry(child, "ro-1", "at-1", 1)
    assert msgspec.json.decode(msgspec.json.encode(span), type=Span) == span


def test_a_span_without_a_context_is_refused():
    with raises(ValueError, "loose"):
        Span.from_opentelemetry(ReadableSpan("loose"), "ro-1", "at-1", 1)
