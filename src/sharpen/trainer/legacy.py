"""Kept for people who move from Agent Lightning."""

from ..compat.trainer import TrainerLegacy

__all__ = ["TrainerLegacy"]
