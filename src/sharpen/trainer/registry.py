"""Kept for people who move from another package; the room is `sharpen.components`."""

from ..components import BUILT_IN, DEFAULT_REGISTRY, Registry, register

__all__ = ["BUILT_IN", "DEFAULT_REGISTRY", "Registry", "register"]
