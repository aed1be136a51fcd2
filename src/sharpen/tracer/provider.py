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

from ..errors import describe
from ..secrets import hide_known
from ..semconv import LightningResourceAttributes as Names
from ..types import Attributes, Event, Link, Span, SpanContext, SpanCoreFields, TraceStatus
from ..types.spans import StatusCode
from .plain import event_without_content, plain_attributes, plain_text, without_content
from .trace import Trace, current_trace, exception_attributes, new_span_id

logger = logging.getLogger(__name__)

# A collector that does not respond must not delay the end of a worker.
LAST_SPANS_SECONDS = 5.0

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
    """Return the current trace, if spans of OpenTelemetry belong in it."""
    trace = current_trace()
    return trace if trace is not None and "otel" in trace.sources else None


class TraceIds(RandomIdGenerator):
    """Gives all spans of an attempt the id of its trace. No id comes from `random`, which the agent may have seeded."""

    def generate_span_id(self) -> int:
        return int(new_span_id(), 16)

    def generate_trace_id(self) -> int:
        trace = _otel_trace()
        return trace.trace_number if trace is not None else 1


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
    """Adds the spans of providers to the trace in which they started."""

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
        """Release spans that were never ended."""
        for span_id in list(trace.open_spans):
            self._trace_of.pop(span_id, None)

    def _record(self, span: ReadableSpan, trace: Trace) -> None:
        trace.record(to_span(span, trace))


class OwnProcessor(TraceProcessor):
    """Watches our provider, whose spans also go to the user's collector; other providers send theirs themselves."""

    collector: "Collector | None" = None

    def _record(self, span: ReadableSpan, trace: Trace) -> None:
        recorded = to_span(span, trace)
        trace.record(recorded)
        if self.collector is not None:
            self.collector.send(span, recorded, trace)


class TraceProvider(TracerProvider):
    """Our provider. It knows whether other code has added processors to it."""

    def __init__(self, own: OwnProcessor) -> None:
        self._own = own
        self._has_listeners = False
        super().__init__(
            sampler=TraceSampler(),
            resource=Resource.create({}),
            shutdown_on_exit=False,
            id_generator=TraceIds(),
            span_limits=SpanLimits(**dict.fromkeys(_LIMITS, SpanLimits.UNSET)),
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

    def gated(self, source: str) -> "GatedProvider":
        """Return our provider for instrumentations that cannot be switched off again."""
        return GatedProvider(self.provider, source)

    def start_collecting(self, variable: str) -> None:
        """Also send our spans to the collector that this variable names."""
        self.own.collector = _open_collector(variable)

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
            operation.set_status("ERROR", describe(error))
            raise
        finally:
            otel_context.detach(token)
            span.end(_nanoseconds(end_time))

    def write(self, core: SpanCoreFields) -> None:
        """Record a finished span through the SDK, where other processors see it too."""
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
        self._span.record_exception(exception, exception_attributes(exception))  # which replace those of the SDK

    def set_status(self, status_code: StatusCode, description: str | None = None) -> None:
        self._span.set_status(OtelStatusCode[status_code], None if description is None else hide_known(description))


def _nanoseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


# -- spans of the SDK as spans of ours -------------------------------------------------------------

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
        f"{cast(api.SpanContext, span.get_span_context()).span_id:016x}",
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


def _open_collector(variable: str) -> Collector | None:
    """Return None, and log a warning with the install command, if a package is missing."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        logger.warning(
            "%s is set, but spans cannot be sent there: pip install opentelemetry-exporter-otlp-proto-http", variable
        )
        return None
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return Collector(BatchSpanProcessor(OTLPSpanExporter()))


# -- AgentOps --------------------------------------------------------------------------------------


class GatedProvider(api.TracerProvider):
    """Returns tracers that record only in traces with this source, for instrumentations that stay switched on."""

    def __init__(self, provider: api.TracerProvider, source: str) -> None:
        self._provider = provider
        self._source = source

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **kwargs: Any) -> api.Tracer:
        return GatedTracer(self._provider.get_tracer(instrumenting_module_name, *args, **kwargs), self._source)

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Do nothing, as nothing is buffered here."""
        return True

    def shutdown(self) -> None:
        """Do nothing, as other code uses the provider behind the gate too."""


class GatedTracer(api.Tracer):
    """Drops spans while it is closed; their children belong to the span around them."""

    def __init__(self, tracer: api.Tracer, source: str) -> None:
        self._tracer = tracer
        self._source = source

    def start_span(self, name: str, context: Any = None, *args: Any, **kwargs: Any) -> api.Span:
        if self._is_open():
            return self._tracer.start_span(name, context, *args, **kwargs)
        return api.NonRecordingSpan(api.get_current_span(context).get_span_context())

    # The API's type of context manager is private.
    @contextmanager
    def start_as_current_span(self, name: str, *args: Any, **kwargs: Any) -> Iterator[api.Span]:  # type: ignore[override]
        if self._is_open():
            with self._tracer.start_as_current_span(name, *args, **kwargs) as span:
                yield span
        else:
            yield api.NonRecordingSpan(api.get_current_span().get_span_context())

    def _is_open(self) -> bool:
        trace = current_trace()
        return trace is not None and self._source in trace.sources


sdk = Sdk()
