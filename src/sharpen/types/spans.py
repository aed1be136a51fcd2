"""Spans: timed events inside an attempt, shaped like OpenTelemetry's. Times are float seconds."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec

from ..semconv import AGL_VIRTUAL

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

AttributeValue = str | bool | int | float | list[str] | list[bool] | list[int] | list[float]
# Checked where a span enters from a network; inside, attributes are plain JSON values.
Attributes = dict[str, Any]
StatusCode = Literal["UNSET", "OK", "ERROR"]
# Exact in every JSON reader, and so far below 2**63 that a counter continuing from it cannot overflow.
MAX_SEQUENCE_ID = 2**53 - 1


class TraceStatus(msgspec.Struct, frozen=True):
    """Whether the operation succeeded."""

    status_code: StatusCode = "UNSET"
    description: str | None = None


class SpanContext(msgspec.Struct, frozen=True):
    """The identity of a span across processes."""

    trace_id: str
    span_id: str
    is_remote: bool = False
    trace_state: dict[str, str] = {}


class Event(msgspec.Struct, frozen=True):
    """Something that happened at one moment of a span."""

    name: str
    attributes: Attributes = {}
    timestamp: float | None = None


class Link(msgspec.Struct, frozen=True):
    """A pointer to another span."""

    context: SpanContext
    attributes: Attributes | None = None


class OtelResource(msgspec.Struct, frozen=True):
    """What produced the span."""

    attributes: Attributes = {}
    schema_url: str = ""


class SpanCoreFields(msgspec.Struct, frozen=True):
    """What an agent reports about a span; ids are added when it is stored."""

    name: str
    status: TraceStatus = TraceStatus()
    attributes: Attributes = {}
    start_time: float | None = None
    end_time: float | None = None


_UNSET_STATUS = TraceStatus()
_NO_RESOURCE = OtelResource()


class Span(msgspec.Struct, frozen=True):
    """One timed event inside an attempt. A `sequence_id` of 0 lets the store give the next number."""

    rollout_id: str
    attempt_id: str
    sequence_id: Annotated[int, msgspec.Meta(le=MAX_SEQUENCE_ID)]
    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str = AGL_VIRTUAL
    status: TraceStatus = _UNSET_STATUS
    attributes: Attributes = {}
    events: list[Event] = []
    links: list[Link] = []
    start_time: float | None = None
    end_time: float | None = None
    context: SpanContext | None = None
    parent: SpanContext | None = None
    resource: OtelResource = _NO_RESOURCE

    @classmethod
    def from_attributes(
        cls,
        *,
        attributes: Attributes,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        sequence_id: int | None = None,
        name: str | None = None,
        trace_id: str | None = None,
        span_id: str | None = None,
        parent_id: str | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
        resource: OtelResource | None = None,
        status: TraceStatus | None = None,
    ) -> "Span":
        """Create a span; ids and times that are not given are generated."""
        random_hex = os.urandom(24).hex()
        start = time.time() if start_time is None else start_time
        return cls(
            rollout_id or "",
            attempt_id or "",
            sequence_id or 0,
            trace_id or random_hex[:32],
            span_id or random_hex[32:],
            parent_id,
            name or AGL_VIRTUAL,
            status or _UNSET_STATUS,
            attributes,
            start_time=start,
            end_time=start if end_time is None else end_time,
            resource=resource or _NO_RESOURCE,
        )

    @classmethod
    def from_core_fields(cls, core: SpanCoreFields, *, rollout_id: str, attempt_id: str, sequence_id: int) -> "Span":
        """Create a span from what an agent returned."""
        return cls.from_attributes(
            attributes=core.attributes,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            sequence_id=sequence_id,
            name=core.name,
            start_time=core.start_time,
            end_time=core.end_time,
            status=core.status,
        )

    @classmethod
    def from_opentelemetry(
        cls, readable_span: "ReadableSpan", rollout_id: str, attempt_id: str, sequence_id: int
    ) -> "Span":
        """Create a span from one that the OpenTelemetry SDK passes to an exporter."""
        context = _context(readable_span.get_span_context())
        if context is None:
            raise ValueError(f"the span {readable_span.name!r} has no context and no ids: start it from a tracer")
        parent = _context(readable_span.parent)
        return cls(
            rollout_id,
            attempt_id,
            sequence_id,
            context.trace_id,
            context.span_id,
            parent.span_id if parent else None,
            readable_span.name,
            TraceStatus(cast(StatusCode, readable_span.status.status_code.name), readable_span.status.description),
            _attributes(readable_span.attributes),
            [Event(e.name, _attributes(e.attributes), e.timestamp / 1e9) for e in readable_span.events],
            [Link(_known(link.context), _attributes(link.attributes)) for link in readable_span.links],
            _seconds(readable_span.start_time),
            _seconds(readable_span.end_time),
            context,
            parent,
            OtelResource(_attributes(readable_span.resource.attributes), readable_span.resource.schema_url or ""),
        )


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


def _attributes(values: Mapping[str, Any] | None) -> Attributes:
    return {key: _plain(value) for key, value in (values or {}).items()}


def _plain(value: Any) -> Any:
    """OpenTelemetry keeps sequences as tuples and lets bytes pass; JSON has neither."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value


def _context(context: Any) -> SpanContext | None:
    if context is None:
        return None
    return SpanContext(
        f"{context.trace_id:032x}", f"{context.span_id:016x}", context.is_remote, dict(context.trace_state or {})
    )


def _known(context: Any) -> SpanContext:
    found = _context(context)
    if found is None:
        raise ValueError("a link of the span has no context: create it from a span that a tracer started")
    return found
