"""Kept for people who move from another package; the name is that of `sharpen.litagent`."""

from .base import LitAgent

__all__ = ["LitAgent"]
