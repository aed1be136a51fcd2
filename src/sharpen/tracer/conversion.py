"""Spans of OpenTelemetry's SDK as spans of ours."""

from collections.abc import Mapping
from typing import Any, cast

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import Link as OtelLink, SpanContext as OtelSpanContext
from opentelemetry.trace.status import StatusCode as OtelStatusCode

from ..types import Event, Link, Span, SpanContext, TraceStatus
from ..types.spans import StatusCode
from .content import event_without_content, without_content
from .plain import plain_attributes, plain_text
from .trace import Trace

_UNSET = TraceStatus()


def to_span(span: ReadableSpan, trace: Trace) -> Span:
    """A span of the SDK as part of this trace.

    Spans of a user's own provider may come with trace ids of their own: an attempt has one. `context` and `parent`
    are left out, since they repeat the ids.
    """
    parent = span.parent
    return Span(
        trace.rollout_id,
        trace.attempt_id,
        0,
        trace.trace_id,
        f"{cast(OtelSpanContext, span.get_span_context()).span_id:016x}",
        f"{parent.span_id:016x}" if parent is not None else None,
        plain_text(span.name),
        _status(span),
        _kept(span.attributes, trace),
        [_event(event, trace) for event in span.events],
        [_link(link, trace) for link in span.links],
        _seconds(span.start_time),
        _seconds(span.end_time),
        resource=trace.resource,
    )


def _status(span: ReadableSpan) -> TraceStatus:
    status = span.status
    if status.status_code is OtelStatusCode.UNSET:
        return _UNSET
    description = plain_text(status.description) if status.description is not None else None
    return TraceStatus(cast(StatusCode, status.status_code.name), description)


def _event(event: Any, trace: Trace) -> Event:
    attributes = plain_attributes(event.attributes)
    if not trace.capture_content:
        attributes = event_without_content(event.name, attributes)
    return Event(event.name, attributes, _seconds(event.timestamp))


def _link(link: OtelLink, trace: Trace) -> Link:
    found = link.context
    context = SpanContext(f"{found.trace_id:032x}", f"{found.span_id:016x}", found.is_remote, dict(found.trace_state))
    return Link(context, _kept(link.attributes, trace))


def _kept(attributes: Mapping[str, Any] | None, trace: Trace) -> dict[str, Any]:
    plain = plain_attributes(attributes)
    return plain if trace.capture_content else without_content(plain)


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9
