"""Adapters turn spans into what algorithms consume: triplets and conversations."""

from .base import Adapter, OtelTraceAdapter, TraceAdapter
from .messages import OpenAIMessages, TraceToMessages
from .triplet import LlmProxyTraceToTriplet, RewardMatchPolicy, TracerTraceToTriplet, TraceToTriplet

__all__ = [
    "Adapter",
    "LlmProxyTraceToTriplet",
    "OpenAIMessages",
    "OtelTraceAdapter",
    "RewardMatchPolicy",
    "TraceAdapter",
    "TraceToMessages",
    "TraceToTriplet",
    "TracerTraceToTriplet",
]
