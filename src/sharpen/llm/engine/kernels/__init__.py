"""What a step computes beside matrix products, in few passes over memory: in Triton, or in plain torch."""

from .kernels import DecodeRows, Heads, Kernels, LayerHeads, PromptRows, Rotations, is_triton_there, kernels_for

__all__ = [
    "DecodeRows",
    "Heads",
    "Kernels",
    "LayerHeads",
    "PromptRows",
    "Rotations",
    "is_triton_there",
    "kernels_for",
]
