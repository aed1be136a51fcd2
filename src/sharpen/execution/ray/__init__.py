"""Runners, and the algorithm where that is wanted, as actors on a cluster of Ray."""

from .strategy import RayExecutionStrategy

__all__ = ["RayExecutionStrategy"]
