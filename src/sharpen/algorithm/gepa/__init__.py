"""GEPA: the reflective, Pareto-based optimiser of the `gepa` package, on our store and gateway."""

from .gepa import GEPA

__all__ = ["GEPA"]
