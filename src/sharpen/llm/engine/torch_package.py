"""What runs a model needs torch. This is imported before anything that imports it, so that where it is missing the
error names the extra."""

from ...checks import needs_extra

with needs_extra("torch", extra="llm", feature="running a language model"):
    import torch

__all__ = ["torch"]
