"""Adapters: from spans to what algorithms consume, triplets and conversations."""

from .base import Adapter, OtelTraceAdapter, TraceAdapter
from .messages import OpenAIMessages, TraceToMessages
from .rewards import RewardMatchPolicy
from .triplet import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToTriplet

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
