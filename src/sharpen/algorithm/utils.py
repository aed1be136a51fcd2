"""Kept for people who move from another package; the names are those of `sharpen.algorithm`."""

from .datasets import batch_iter_over_dataset
from .decorator import with_llm_proxy, with_store

__all__ = ["batch_iter_over_dataset", "with_llm_proxy", "with_store"]
