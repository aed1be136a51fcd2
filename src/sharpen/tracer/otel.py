"""The default tracer: records OpenTelemetry's spans inside an attempt, and everything that is emitted.

A span that is merely emitted is written past the SDK, at a tenth of the SDK's cost, as long as nobody else listens to
our provider.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ..types import SpanCoreFields
from .base import Operation, Shared, Tracer
from .instrumentation import Instrumentation
from .trace import Trace

if TYPE_CHECKING:
    from .provider import Sdk

logger = logging.getLogger(__name__)

_loaded: list["Sdk"] = []


def _loaded_sdk() -> "Sdk | None":
    """Return the SDK, if something has needed it so far."""
    return _loaded[0] if _loaded else None


def load_sdk() -> "Sdk":
    """Return the SDK, which takes a tenth of a second; our provider becomes the global one if there is none."""
    if not _loaded:
        # First, so that two threads which import parts of OpenTelemetry take the import locks in the same order.
        import opentelemetry.trace  # noqa: F401

        from .provider import sdk

        sdk.watch_global_provider()
        _loaded.append(sdk)
    return _loaded[0]


_instrumentation = Instrumentation(load_sdk)


class OtelTracer(Tracer):
    """Records OpenTelemetry's spans of each attempt, with the installed GenAI instrumentations switched on.

    `capture_content=False` keeps prompts, responses, and inputs and outputs of tools and operations out of the trace.
    """

    _sources = frozenset({"otel"})

    def __init__(self, capture_content: bool = True) -> None:
        super().__init__()
        self.capture_content = capture_content

    def _write(self, core: SpanCoreFields) -> None:
        sdk = _loaded_sdk()
        if sdk is None or not sdk.provider.has_listeners:
            super()._write(core)
        else:
            sdk.write(core)

    def _new_operation(self, *given: Any) -> Operation:
        load_sdk()
        from .provider import OtelOperation

        return OtelOperation(*given)

    def _current_parent(self) -> str | None:
        sdk = _loaded_sdk()
        return sdk.current_span_id() if sdk is not None else None

    def _hold(self) -> None:
        super()._hold()
        _collecting.hold()
        self._hold_instrumentations()

    def _release(self) -> None:
        self._release_instrumentations()
        _collecting.release()
        super()._release()

    def _hold_instrumentations(self) -> None:
        _instrumentation.hold(capture_content=self.capture_content)

    def _release_instrumentations(self) -> None:
        _instrumentation.release(capture_content=self.capture_content)

    @contextmanager
    def _recording(self, trace: Trace) -> Iterator[Any]:
        sdk = _loaded_sdk()
        try:
            with super()._recording(trace), sdk.outside_of_spans() if sdk is not None else nullcontext():
                yield _LazyOtelTracer()
        finally:
            # Checked again, since the agent may have been the first to need it.
            if (sdk := _loaded_sdk()) is not None:
                sdk.forget(trace)


class _LazyOtelTracer:
    """What a trace yields to its block: OpenTelemetry's tracer, loaded when it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(load_sdk().tracer, name)


_COLLECTOR_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def _start_collecting() -> None:
    """Also send what is recorded to the user's collector, if OpenTelemetry's variables name one."""
    variable = next((variable for variable in _COLLECTOR_VARIABLES if os.environ.get(variable)), None)
    if variable is None:
        return
    try:
        load_sdk().start_collecting(variable)
    except Exception as error:  # noqa: BLE001 - a wrong setting of the collector must not fail an attempt
        logger.warning("spans cannot be sent to the collector that %s names: %s", variable, error)


def _stop_collecting() -> None:
    if (sdk := _loaded_sdk()) is not None:
        sdk.stop_collecting()


_collecting = Shared(_start_collecting, _stop_collecting)
