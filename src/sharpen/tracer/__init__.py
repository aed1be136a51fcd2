"""Recording what agents do: tracers, and the trace of one attempt."""

from typing import TYPE_CHECKING, Any

from .base import DummyTracer, Tracer, activate, active_tracer
from .otel import OtelTracer
from .trace import SpanSink

if TYPE_CHECKING:
    from .agentops import AgentOpsTracer as AgentOpsTracer

__all__ = ["AgentOpsTracer", "DummyTracer", "OtelTracer", "SpanSink", "Tracer", "activate", "active_tracer"]


def __getattr__(name: str) -> Any:
    """Load the tracer of an extra on first use."""
    if name != "AgentOpsTracer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .agentops import AgentOpsTracer

    return AgentOpsTracer
