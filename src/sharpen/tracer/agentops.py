"""A tracer that records through AgentOps' instrumentations, and sends nothing to AgentOps.

`agentops.init` would always start exporters to its service, with or without an account, patch `print` and write a log
file. So a managed AgentOps is set up one floor below: its tracing core gets our provider in place of its own.
"""

import builtins
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any

from opentelemetry import trace as api

from ..checks import check_installed
from .base import Patch, Shared
from .otel import OtelTracer, load_sdk
from .trace import current_trace

_SOURCE = "agentops"


class AgentOpsTracer(OtelTracer):
    """Records what AgentOps' instrumentations see, in place of OpenTelemetry's own.

    With `agentops_managed=False` nobody but you starts AgentOps (its service then gets what your `init` tells it to
    send), and its spans are recorded as well. With `instrument_managed=False` you switch on instrumentations yourself.
    `daemon` is there for programs that give it: no process is started that could be one.
    """

    _sources = frozenset({"otel", _SOURCE})

    def __init__(self, agentops_managed: bool = True, instrument_managed: bool = True, daemon: bool = True) -> None:
        check_installed("agentops", extra="agentops", feature="AgentOpsTracer")
        super().__init__()
        self.agentops_managed = agentops_managed
        self.instrument_managed = instrument_managed
        self.daemon = daemon

    def _hold_instrumentations(self) -> None:
        # In place of OtelTracer's: two instrumentations of one library would record every call twice.
        (_managed if self.agentops_managed else _watched).hold()
        if self.instrument_managed:
            _instrumentations.hold()

    def _release_instrumentations(self) -> None:
        if self.instrument_managed:
            _instrumentations.release()
        (_managed if self.agentops_managed else _watched).release()


def _core() -> Any:
    return import_module("agentops.sdk.core")


def _manage() -> None:
    """Pass our provider to AgentOps, unless the user has started it already: then that provider is watched."""
    core = _core()
    if not core.tracer.initialized:
        ours = Patch(core, "setup_telemetry", lambda **_: (GatedProvider(load_sdk().provider, _SOURCE), None))
        ours.apply()
        try:
            core.tracer.initialize(service_name="sharpen")
        finally:
            ours.undo()
    _watch_provider(core.tracer.provider)


def _watch() -> None:
    """Record what AgentOps writes to the provider that it has, or creates later."""
    core = _core()
    _watch_provider(core.tracer.provider)
    core.setup_telemetry = _watching(core.setup_telemetry)


def _stop_watching() -> None:
    core = _core()
    core.setup_telemetry = getattr(core.setup_telemetry, "__wrapped__", core.setup_telemetry)


def _watching(set_up: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(set_up)
    def set_up_and_watch(*args: Any, **kwargs: Any) -> Any:
        provider, meter_provider = set_up(*args, **kwargs)
        _watch_provider(provider)
        return provider, meter_provider

    return set_up_and_watch


def _watch_provider(provider: Any) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    # Not if it is our gate, behind which the spans are seen anyway.
    if isinstance(provider, TracerProvider):
        load_sdk().foreign.attach_to(provider)


def _leave() -> None:
    """Nothing to undo: in other traces the gate is closed, and AgentOps cannot be started twice."""


# The `__import__` with which AgentOps notices libraries, after its first run.
_monitors: list[Patch] = []


def _instrument() -> None:
    if not _monitors:
        plain = builtins.__import__
        import_module("agentops.instrumentation").instrument_all()
        monitor, builtins.__import__ = builtins.__import__, plain
        _monitors.append(Patch(builtins, "__import__", monitor))
    _monitors[0].apply()


def _uninstrument() -> None:
    """Stop watching imports. What is instrumented stays so, behind the gate: AgentOps' own way of switching off leaves
    wrappers behind, and switching on again would then record every call twice."""
    _monitors[0].undo()


_managed = Shared(_manage, _leave)
_watched = Shared(_watch, _stop_watching)
_instrumentations = Shared(_instrument, _uninstrument)


# -- the gate --------------------------------------------------------------------------------------


class GatedProvider(api.TracerProvider):
    """Returns tracers that record only in traces with this source, for instrumentations that stay switched on."""

    def __init__(self, provider: api.TracerProvider, source: str) -> None:
        self._provider, self._source = provider, source

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
        self._tracer, self._source = tracer, source

    def start_span(self, name: str, context: Any = None, *args: Any, **kwargs: Any) -> api.Span:
        if self._is_open():
            return self._tracer.start_span(name, context, *args, **kwargs)
        return api.NonRecordingSpan(api.get_current_span(context).get_span_context())

    @contextmanager
    def start_as_current_span(  # type: ignore[override]
        self, name: str, *args: Any, **kwargs: Any
    ) -> Iterator[api.Span]:
        """Open a span in a block, or in each call of a function that this decorates."""
        if self._is_open():
            with self._tracer.start_as_current_span(name, *args, **kwargs) as span:
                yield span
        else:
            yield api.NonRecordingSpan(api.get_current_span().get_span_context())

    def _is_open(self) -> bool:
        trace = current_trace()
        return trace is not None and self._source in trace.sources
