"""The trace of one attempt: where its spans are collected while it runs.

The current trace is a `contextvars` value, so that a hundred attempts in one process never mix. A span belongs to the
trace that was current when it started. A trace that has ended takes nothing more: an agent that was left behind
(its time was over, nobody waits for it) stops costing anything.
"""

import os
from contextvars import ContextVar
from typing import Any, Protocol, TypeGuard

from ..semconv import LightningResourceAttributes
from ..types import OtelResource, Span


class SpanSink(Protocol):
    """Takes spans the moment they end. `put` may be called from any thread and must return at once."""

    def put(self, span: Span) -> None: ...


def is_sink(store: object) -> TypeGuard[SpanSink]:
    return hasattr(store, "put")


class Trace:
    """One attempt as it is recorded."""

    __slots__ = (
        "attempt_id",
        "capture_content",
        "is_open",
        "open_spans",
        "outer",
        "resource",
        "rollout_id",
        "sink",
        "sources",
        "spans",
        "trace_id",
        "trace_number",
    )

    def __init__(
        self,
        *,
        rollout_id: str = "",
        attempt_id: str = "",
        sink: SpanSink | None = None,
        capture_content: bool = True,
        sources: frozenset[str] = frozenset(),
        resource: OtelResource | None = None,
    ) -> None:
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.sink = sink
        self.capture_content = capture_content
        # Whose spans belong in it, apart from those that are emitted.
        self.sources = sources
        self.resource = resource or OtelResource()
        self.trace_id = os.urandom(16).hex()
        self.trace_number = int(self.trace_id, 16)
        self.spans: list[Span] = []
        # Spans of OpenTelemetry that have started and not ended.
        self.open_spans: set[int] = set()
        self.outer = current_trace()
        self.is_open = True

    def record(self, span: Span) -> None:
        """Keep a span that has ended, and hand it on."""
        if not self.is_open:
            return
        self.spans.append(span)
        if self.sink is not None:
            self.sink.put(span)


# Keeps pointing at the last trace after it has ended, so that its spans can be asked for.
_trace: ContextVar[Trace | None] = ContextVar("sharpen_trace", default=None)


def current_trace() -> Trace | None:
    """The trace that is being recorded here."""
    trace = _trace.get()
    while trace is not None and not trace.is_open:
        trace = trace.outer
    return trace


def last_trace() -> Trace | None:
    """The trace that was opened last in this context, ended or not."""
    return _trace.get()


def enter(trace: Trace) -> None:
    """Make it the current trace of this context."""
    _trace.set(trace)


def new_span_id() -> str:
    """Random whatever the agent does with `random.seed`, and without touching its random numbers."""
    return os.urandom(8).hex()


def resource_of(tracer_name: str, name: str | None) -> OtelResource:
    """What produced the spans of a trace."""
    attributes: dict[str, Any] = {LightningResourceAttributes.TRACER_NAME.value: tracer_name}
    if name is not None:
        attributes["sharpen.trace.name"] = name
    return OtelResource(attributes)
