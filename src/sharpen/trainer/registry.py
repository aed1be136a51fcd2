"""Kept for people who move from another package; the room is `sharpen.components`."""

from ..components import BUILT_IN, DEFAULT_REGISTRY, Registry, register

ExecutionStrategyRegistry = DEFAULT_REGISTRY
"""Names of strategies, as of every other kind of component; `register(name, class_or_path)` adds one."""

__all__ = ["BUILT_IN", "DEFAULT_REGISTRY", "ExecutionStrategyRegistry", "Registry", "register"]
