"""Recording what agents do: tracers, and the trace of one attempt."""

from .agentops import AgentOpsTracer
from .base import Tracer, activate, active_tracer
from .dummy import DummyTracer
from .otel import OtelTracer
from .trace import SpanSink

__all__ = ["AgentOpsTracer", "DummyTracer", "OtelTracer", "SpanSink", "Tracer", "activate", "active_tracer"]
