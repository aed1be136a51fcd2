"""Kept for people who move from another package; the name is that of `sharpen.algorithm.verl`."""

from .verl import VERL

__all__ = ["VERL"]
