"""The operations of a step other than matrix products, in few passes over memory: in Triton, or in plain torch."""

from .kernels import DecodeRows, Heads, Kernels, LayerHeads, PromptRows, Rotations, has_triton, kernels_for

__all__ = ["DecodeRows", "Heads", "Kernels", "LayerHeads", "PromptRows", "Rotations", "has_triton", "kernels_for"]
