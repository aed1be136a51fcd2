"""Algorithms: what asks for rollouts, learns from their spans and publishes better resources."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
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

__getattr__ = lazy_names(
    __name__,
    {
        ".apo": ["APO"],
        ".base": ["Algorithm"],
        ".datasets": ["batch_iter_over_dataset"],
        ".decorator": ["FunctionalAlgorithm", "algo", "with_llm_proxy", "with_store"],
        ".fast": ["Baseline", "FastAlgorithm"],
        ".few_shot": ["FewShot"],
        ".gepa": ["GEPA"],
        ".sequence": ["AlgorithmSequence"],
        ".verl": ["GRPO", "VERL"],
    },
)
