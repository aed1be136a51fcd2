"""Algorithms: what asks for rollouts, learns from their spans and publishes better resources."""

from .base import Algorithm
from .datasets import batch_iter_over_dataset
from .decorator import FunctionalAlgorithm, algo, with_llm_proxy, with_store
from .fast import Baseline, FastAlgorithm
from .verl import GRPO, VERL

__all__ = [
    "GRPO",
    "VERL",
    "Algorithm",
    "Baseline",
    "FastAlgorithm",
    "FunctionalAlgorithm",
    "algo",
    "batch_iter_over_dataset",
    "with_llm_proxy",
    "with_store",
]
