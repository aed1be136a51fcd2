"""What a step of the engine computes beside matrix products, as few passes over memory: in Triton, or in plain torch."""

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
