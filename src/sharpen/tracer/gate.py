"""A provider for instrumentations that cannot be switched off again: it records only in traces that want them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace as api

from .trace import current_trace


class GatedProvider(api.TracerProvider):
    """Hands out tracers that are open in traces with this source."""

    def __init__(self, provider: api.TracerProvider, source: str) -> None:
        self._provider = provider
        self._source = source

    def get_tracer(self, instrumenting_module_name: str, *args: Any, **kwargs: Any) -> api.Tracer:
        return GatedTracer(self._provider.get_tracer(instrumenting_module_name, *args, **kwargs), self._source)

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is kept back here."""
        return True

    def shutdown(self) -> None:
        """The provider behind the gate belongs to others too, and goes on."""


class GatedTracer(api.Tracer):
    """Where it is closed, its spans are nothing, and children of theirs belong to the span around them."""

    def __init__(self, tracer: api.Tracer, source: str) -> None:
        self._tracer = tracer
        self._source = source

    def start_span(self, name: str, context: Any = None, *args: Any, **kwargs: Any) -> api.Span:
        if self._is_open():
            return self._tracer.start_span(name, context, *args, **kwargs)
        return api.NonRecordingSpan(api.get_current_span(context).get_span_context())

    # The API's own kind of context manager is private.
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
