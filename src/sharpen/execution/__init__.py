"""How algorithm and runners are laid out over threads, processes and machines."""

from typing import TYPE_CHECKING, Any

from .events import ExecutionEvent, MultiprocessingEvent, ThreadingEvent

if TYPE_CHECKING:
    from .base import (
        AlgorithmBundle as AlgorithmBundle,
        ExecutionStrategy as ExecutionStrategy,
        RunnerBundle as RunnerBundle,
    )
    from .client_server import ClientServerExecutionStrategy as ClientServerExecutionStrategy
    from .ray import RayExecutionStrategy as RayExecutionStrategy
    from .shared_memory import SharedMemoryExecutionStrategy as SharedMemoryExecutionStrategy

__all__ = [
    "AlgorithmBundle",
    "ClientServerExecutionStrategy",
    "ExecutionEvent",
    "ExecutionStrategy",
    "MultiprocessingEvent",
    "RayExecutionStrategy",
    "RunnerBundle",
    "SharedMemoryExecutionStrategy",
    "ThreadingEvent",
]

_MODULES = {
    "AlgorithmBundle": "base",
    "ClientServerExecutionStrategy": "client_server",
    "ExecutionStrategy": "base",
    "RayExecutionStrategy": "ray",
    "RunnerBundle": "base",
    "SharedMemoryExecutionStrategy": "shared_memory",
}


def __getattr__(name: str) -> Any:
    """Each strategy is loaded when it is asked for: a child needs neither."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
