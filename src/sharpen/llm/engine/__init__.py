"""Sampling from language models: many requests at once, with exact log-probabilities and weights that change."""

from ...checks import needs_extra

with needs_extra("torch", extra="llm", feature="running a language model"):
    import torch as torch

from .engine import Engine
from .request import EngineError, FinishReason, Generation, Request, Sample, SamplingParams, Token

__all__ = ["Engine", "EngineError", "FinishReason", "Generation", "Request", "Sample", "SamplingParams", "Token"]
