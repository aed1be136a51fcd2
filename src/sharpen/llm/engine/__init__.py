"""Sampling from language models: many requests at once, with exact log-probabilities and weights that change."""

from . import torch_package as torch_package  # first: it says what to install where torch is missing
from .engine import Engine
from .errors import EngineError
from .outputs import FinishReason, Generation, Sample, Token
from .request import Request
from .sampling_params import SamplingParams

__all__ = ["Engine", "EngineError", "FinishReason", "Generation", "Request", "Sample", "SamplingParams", "Token"]
