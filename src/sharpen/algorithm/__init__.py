"""Algorithms: what asks for rollouts, learns from their spans and publishes better resources."""

from .apo import APO
from .base import Algorithm
from .datasets import batch_iter_over_dataset
from .decorator import FunctionalAlgorithm, algo, with_llm_proxy, with_store
from .fast import Baseline, FastAlgorithm
from .few_shot import FewShot
from .gepa import GEPA
from .sequence import AlgorithmSequence
from .verl import GRPO, VERL

__all__ = [
    "APO",
    "GEPA",
    "GRPO",
    "VERL",
    "Algorithm",
    "AlgorithmSequence",
    "Baseline",
    "FastAlgorithm",
    "FewShot",
    "FunctionalAlgorithm",
    "algo",
    "batch_iter_over_dataset",
    "with_llm_proxy",
    "with_store",
]
