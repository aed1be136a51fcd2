"""Our part of OpenTelemetry's SDK: one provider for the process, which records only inside traces.

It holds no state of attempts. A span's trace is found when the span starts, from the context it starts in, and kept
until it ends, wherever that may be. This module imports the SDK; whoever needs it imports this module late.
"""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakSet

from opentelemetry import context as otel_context, trace as api
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span as SdkSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import Link as OtelLink, SpanKind, TraceState
from opentelemetry.trace.status import StatusCode as OtelStatusCode

from ..errors import in_words
from ..secrets import hide_known
from ..types import Attributes, SpanCoreFields
from ..types.spans import StatusCode
from .collector import Collector
from .conversion import to_span
from .operation import exception_attributes
from .trace import Trace, current_trace, new_span_id

logger = logging.getLogger(__name__)

_DROPPED = SamplingResult(Decision.DROP)
# All of them off: a long conversation in single attributes must not lose its beginning.
_LIMITS = (
    "max_attributes",
    "max_events",
    "max_links",
    "max_span_attributes",
    "max_event_attributes",
    "max_link_attributes",
    "max_attribute_length",
    "max_span_attribute_length",
)


def _otel_trace() -> Trace | None:
    """The current trace, if spans of OpenTelemetry belong in it."""
    trace = current_trace()
    return trace if trace is not None and "otel" in trace.sources else None


class TraceIds(RandomIdGenerator):
    """All spans of an attempt share the id of its trace. Never from `random`, which the agent may have seeded."""

    def generate_span_id(self) -> int:
        return int(new_span_id(), 16)

    def generate_trace_id(self) -> int:
        trace = _otel_trace()
        return trace.trace_number if trace is not None else 1


class InTraces(Sampler):
    """Records inside a trace; elsewhere a span is nothing."""

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
        return "InTraces"


class TraceProcessor(SpanProcessor):
    """Brings the spans of providers to the trace in which they started."""

    def __init__(self) -> None:
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
            self._record(span, trace)

    def forget(self, trace: Trace) -> None:
        """Let go of spans that were never ended."""
        for span_id in list(trace.open_spans):
            self._trace_of.pop(span_id, None)

    def _record(self, span: ReadableSpan, trace: Trace) -> None:
        trace.record(to_span(span, trace))


class OwnProcessor(TraceProcessor):
    """Watches our own provider, whose spans also go to the user's collector; others send theirs themselves."""

    collector: Collector | None = None

    def _record(self, span: ReadableSpan, trace: Trace) -> None:
        recorded = to_span(span, trace)
        trace.record(recorded)
        if self.collector is not None:
            self.collector.send(span, recorded, trace)


class TraceProvider(TracerProvider):
    """Our provider. It knows whether anybody but us listens to it."""

    def __init__(self, own: OwnProcessor) -> None:
        self._own = own
        self._has_guests = False
        super().__init__(
            sampler=InTraces(),
            resource=Resource.create({}),
            shutdown_on_exit=False,
            id_generator=TraceIds(),
            span_limits=SpanLimits(**dict.fromkeys(_LIMITS, SpanLimits.UNSET)),
        )

    @property
    def has_guests(self) -> bool:
        return self._has_guests or self._own.collector is not None

    def add_span_processor(self, span_processor: SpanProcessor) -> None:
        self._has_guests = self._has_guests or not isinstance(span_processor, TraceProcessor)
        super().add_span_processor(span_processor)


class Sdk:
    """The SDK as tracers use it: our provider, and the processors that bring spans to their traces."""

    def __init__(self) -> None:
        self.own = OwnProcessor()
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

    def forget(self, trace: Trace) -> None:
        """Let go of spans of this trace that were never ended."""
        self.own.forget(trace)
        self.foreign.forget(trace)

    def current_span_id(self) -> str | None:
        span_id = api.get_current_span().get_span_context().span_id
        return f"{span_id:016x}" if span_id else None

    @contextmanager
    def outside_of_spans(self) -> Iterator[None]:
        """An empty context, so that a span around the runner does not become part of the attempt."""
        token = otel_context.attach(Context())
        try:
            yield
        finally:
            otel_context.detach(token)

    @contextmanager
    def operation(
        self, name: str, attributes: Attributes | None, start_time: float | None, end_time: float | None
    ) -> Iterator["OtelOperation"]:
        """A span around a block."""
        span = self.tracer.start_span(name, attributes=attributes, start_time=_nanoseconds(start_time))
        token = otel_context.attach(api.set_span_in_context(span))
        operation = OtelOperation(span)
        try:
            yield operation
        except Exception as error:
            operation.record_exception(error)
            operation.set_status("ERROR", in_words(error))
            raise
        finally:
            otel_context.detach(token)
            span.end(_nanoseconds(end_time))

    def write(self, core: SpanCoreFields) -> None:
        """Record a finished span through the SDK, where others see it too."""
        span = self.tracer.start_span(core.name, attributes=core.attributes, start_time=_nanoseconds(core.start_time))
        OtelOperation(span).set_status(core.status.status_code, core.status.description)
        span.end(_nanoseconds(core.end_time))


class OtelOperation:
    """An operation that is a span of the SDK."""

    def __init__(self, span: api.Span) -> None:
        self._span = span

    def set_attributes(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def record_exception(self, exception: BaseException) -> None:
        self._span.record_exception(exception, exception_attributes(exception))  # which replace the SDK's own

    def set_status(self, status_code: StatusCode, description: str | None = None) -> None:
        self._span.set_status(OtelStatusCode[status_code], None if description is None else hide_known(description))


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


sdk = Sdk()
