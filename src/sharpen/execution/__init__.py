"""How algorithm and runners are laid out over threads, processes and machines."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names
from .events import ExecutionEvent, MultiprocessingEvent, ThreadingEvent

if TYPE_CHECKING:
    from .base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
    from .client_server import ClientServerExecutionStrategy
    from .ray import RayExecutionStrategy
    from .shared_memory import SharedMemoryExecutionStrategy

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

# A child needs none of them.
__getattr__ = lazy_names(
    __name__,
    {
        ".base": ["AlgorithmBundle", "ExecutionStrategy", "RunnerBundle"],
        ".client_server": ["ClientServerExecutionStrategy"],
        ".ray": ["RayExecutionStrategy"],
        ".shared_memory": ["SharedMemoryExecutionStrategy"],
    },
)
