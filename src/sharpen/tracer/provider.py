"""Our part of OpenTelemetry's SDK: one provider for the process, which records only inside traces.

It holds no state of attempts. A span's trace is found when the span starts, from the context it starts in, and kept
until it ends, wherever that may be. This module imports the SDK; whoever needs it imports this module late.
"""

import inspect
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast
from weakref import WeakSet

from opentelemetry import context as otel_context, trace as api
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    Event as SdkEvent,
    ReadableSpan,
    Span as SdkSpan,
    SpanLimits,
    SpanProcessor,
    TracerProvider,
)
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link as OtelLink, SpanKind, TraceState
from opentelemetry.trace.status import StatusCode as OtelStatusCode

from ..secrets import hide_known
from ..semconv import LightningResourceAttributes as Names
from ..types import Attributes, Event, Link, Span, SpanContext, SpanCoreFields, TraceStatus
from ..types.spans import StatusCode
from .base import Operation
from .trace import Trace, current_trace, exception_attributes, new_span_id, plain_attributes, plain_text

logger = logging.getLogger(__name__)

# A collector that does not respond must not delay the end of a worker.
LAST_SPANS_SECONDS = 5.0

_DROPPED = SamplingResult(Decision.DROP)


def _otel_trace() -> Trace | None:
    """Return the current trace, if spans of OpenTelemetry belong in it."""
    trace = current_trace()
    return trace if trace is not None and "otel" in trace.sources else None


class TraceIds(RandomIdGenerator):
    """Gives all spans of an attempt the id of its trace. No id comes from `random`, which the agent may have seeded."""

    def generate_span_id(self) -> int:
        return int(new_span_id(), 16)

    def generate_trace_id(self) -> int:
        trace = _otel_trace()
        return int(trace.trace_id, 16) if trace is not None else 1


class TraceSampler(Sampler):
    """Records inside a trace; elsewhere spans are dropped."""

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Mapping[str, Any] | None = None,
        links: Sequence[OtelLink] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        if _otel_trace() is None:
            return _DROPPED
        return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)

    def get_description(self) -> str:
        return "TraceSampler"


class TraceProcessor(SpanProcessor):
    """Adds the spans of providers to the trace in which they started.

    Those of our provider also go to the user's `collector`; other providers send theirs themselves.
    """

    def __init__(self) -> None:
        self.collector: Collector | None = None
        self._trace_of: dict[int, Trace] = {}
        self._providers: WeakSet[TracerProvider] = WeakSet()
        self._lock = threading.Lock()

    def attach_to(self, provider: TracerProvider) -> None:
        """Watch this provider, once."""
        with self._lock:
            if provider not in self._providers:
                self._providers.add(provider)
                provider.add_span_processor(self)

    def on_start(self, span: SdkSpan, parent_context: Context | None = None) -> None:
        trace = _otel_trace()
        if trace is not None:
            span_id = span.get_span_context().span_id
            trace.open_spans.add(span_id)
            self._trace_of[span_id] = trace

    def on_end(self, span: ReadableSpan) -> None:
        span_id = cast(api.SpanContext, span.get_span_context()).span_id
        trace = self._trace_of.pop(span_id, None)
        if trace is not None and trace.is_open:
            trace.open_spans.discard(span_id)
            recorded = trace.record(to_span(span, trace))
            if self.collector is not None:
                self.collector.send(span, recorded, trace)

    def forget(self, trace: Trace) -> None:
        """Release spans that were never ended."""
        for span_id in list(trace.open_spans):
            self._trace_of.pop(span_id, None)


class TraceProvider(TracerProvider):
    """Our provider. It knows whether other code has added processors to it."""

    def __init__(self, own: TraceProcessor) -> None:
        self._own = own
        self._has_listeners = False
        super().__init__(
            sampler=TraceSampler(),
            resource=Resource.create({}),
            shutdown_on_exit=False,
            id_generator=TraceIds(),
            # All of them off: a long conversation in single attributes must not lose its beginning.
            span_limits=SpanLimits(**dict.fromkeys(inspect.signature(SpanLimits).parameters, SpanLimits.UNSET)),
        )

    @property
    def has_listeners(self) -> bool:
        return self._has_listeners or self._own.collector is not None

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        self._has_listeners = self._has_listeners or not isinstance(span_processor, TraceProcessor)
        super().add_span_processor(span_processor)


class Sdk:
    """The SDK as tracers use it: our provider, and the processors that add spans to their traces."""

    def __init__(self) -> None:
        self.own = TraceProcessor()
        self.foreign = TraceProcessor()
        self.provider = TraceProvider(self.own)
        self.own.attach_to(self.provider)
        self.tracer = self.provider.get_tracer("sharpen")
        if isinstance(self.tracer, api.NoOpTracer):
            logger.warning("OTEL_SDK_DISABLED is set: LLM calls and operations are not recorded, only what is emitted")

    def watch_global_provider(self) -> None:
        """Also record what code in an agent writes through OpenTelemetry's global API.

        Ours becomes the global provider where there is none; a provider of the user's own is left as it is and watched.
        """
        found = api.get_tracer_provider()
        if isinstance(found, api.ProxyTracerProvider):
            api.set_tracer_provider(self.provider)
        elif isinstance(found, TracerProvider) and found is not self.provider:
            self.foreign.attach_to(found)

    def start_collecting(self, variable: str) -> None:
        """Also send our spans to the collector that this variable names."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        except ImportError:
            logger.warning(
                "%s is set, but spans cannot be sent there: pip install opentelemetry-exporter-otlp-proto-http",
                variable,
            )
            return
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        self.own.collector = Collector(BatchSpanProcessor(OTLPSpanExporter()))

    def stop_collecting(self) -> None:
        collector, self.own.collector = self.own.collector, None
        if collector is not None:
            collector.close()

    def forget(self, trace: Trace) -> None:
        """Release spans of this trace that were never ended."""
        self.own.forget(trace)
        self.foreign.forget(trace)

    def current_span_id(self) -> str | None:
        span_id = api.get_current_span().get_span_context().span_id
        return f"{span_id:016x}" if span_id else None

    @contextmanager
    def outside_of_spans(self) -> Iterator[None]:
        """Use an empty context, so that a span around the runner does not become part of the attempt."""
        token = otel_context.attach(Context())
        try:
            yield
        finally:
            otel_context.detach(token)

    def write(self, core: SpanCoreFields) -> None:
        """Record a finished span through the SDK, where other processors see it too."""
        span = self.tracer.start_span(core.name, attributes=core.attributes, start_time=_nanoseconds(core.start_time))
        _set_status(span, core.status.status_code, core.status.description)
        span.end(_nanoseconds(core.end_time))


class OtelOperation(Operation):
    """An operation that is a span of the SDK."""

    def __enter__(self) -> Self:
        name, attributes, start_time, self._end_time = self._given
        self._span = sdk.tracer.start_span(name, attributes=attributes, start_time=_nanoseconds(start_time))
        self._token = otel_context.attach(api.set_span_in_context(self._span))
        return self

    def set_attributes(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def record_exception(self, exception: BaseException) -> None:
        self._span.record_exception(exception, exception_attributes(exception))  # which replace those of the SDK

    def set_status(self, status_code: StatusCode, description: str | None = None) -> None:
        _set_status(self._span, status_code, description)

    def _end(self) -> None:
        otel_context.detach(self._token)
        self._span.end(_nanoseconds(self._end_time))


def _set_status(span: api.Span, status_code: StatusCode, description: str | None) -> None:
    span.set_status(OtelStatusCode[status_code], None if description is None else hide_known(description))


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


# -- spans of the SDK as spans of ours -------------------------------------------------------------


def to_span(span: ReadableSpan, trace: Trace) -> Span:
    """A span of the SDK as part of this trace.

    Spans of a user's own provider may come with trace ids of their own: an attempt has one. `context` and `parent`
    are left out, since they repeat the ids.
    """
    parent, status = span.parent, span.status
    description = plain_text(status.description) if status.description is not None else None
    return Span(
        trace.rollout_id,
        trace.attempt_id,
        0,
        trace.trace_id,
        f"{cast(api.SpanContext, span.get_span_context()).span_id:016x}",
        f"{parent.span_id:016x}" if parent is not None else None,
        plain_text(span.name),
        TraceStatus(cast(StatusCode, status.status_code.name), description),
        plain_attributes(span.attributes),
        [Event(each.name, plain_attributes(each.attributes), _seconds(each.timestamp)) for each in span.events],
        [_link(each) for each in span.links],
        _seconds(span.start_time),
        _seconds(span.end_time),
        resource=trace.resource,
    )


def _link(link: OtelLink) -> Link:
    found = link.context
    context = SpanContext(f"{found.trace_id:032x}", f"{found.span_id:016x}", found.is_remote, dict(found.trace_state))
    return Link(context, plain_attributes(link.attributes))


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


# -- the user's own collector ----------------------------------------------------------------------


class Collector:
    """Sends spans in batches, from a separate thread, to the collector that OpenTelemetry's variables name."""

    def __init__(self, batches: SpanProcessor) -> None:
        self._batches = batches

    def send(self, original: ReadableSpan, recorded: Span, trace: Trace) -> None:
        """Send the span as it was recorded: without content if the trace has none, with the ids of its attempt."""
        ids = {Names.ROLLOUT_ID.value: trace.rollout_id, Names.ATTEMPT_ID.value: trace.attempt_id}
        self._batches.on_end(
            ReadableSpan(
                name=original.name,
                context=original.get_span_context(),
                parent=original.parent,
                resource=original.resource,
                attributes={**recorded.attributes, **{key: value for key, value in ids.items() if value}},
                events=[
                    SdkEvent(kept.name, kept.attributes, event.timestamp)
                    for kept, event in zip(recorded.events, original.events, strict=True)
                ],
                links=original.links,
                kind=original.kind,
                status=original.status,
                start_time=original.start_time,
                end_time=original.end_time,
                instrumentation_scope=original.instrumentation_scope,
            )
        )

    def close(self) -> None:
        """Send what is left, for a limited time."""
        closing = threading.Thread(target=self._batches.shutdown, name="sharpen-collector", daemon=True)
        closing.start()
        closing.join(LAST_SPANS_SECONDS)
        if closing.is_alive():
            logger.warning("the collector did not accept the last spans within %g seconds", LAST_SPANS_SECONDS)


sdk = Sdk()
