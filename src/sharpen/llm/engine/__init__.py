"""Sampling from language models: many requests at once, with exact log-probabilities and weights that change."""

from ...checks import needs_extra
from .request import EngineError, FinishReason, Generation, Request, Sample, SamplingParams, Token

with needs_extra("torch", extra="llm", feature="running a language model"):
    from .engine import Engine

__all__ = ["Engine", "EngineError", "FinishReason", "Generation", "Request", "Sample", "SamplingParams", "Token"]
