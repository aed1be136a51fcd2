"""`ExecutionStrategy`: how algorithm and runners are laid out over threads, processes and machines."""

from collections.abc import Awaitable, Callable

from ..store import LightningStore
from .events import ExecutionEvent

AlgorithmBundle = Callable[[LightningStore, ExecutionEvent], Awaitable[None]]
RunnerBundle = Callable[[LightningStore, int, ExecutionEvent], Awaitable[None]]


class ExecutionStrategy:
    """Runs an algorithm and its runners to the end. Override `execute`, sync or async, in your own strategy."""

    @property
    def has_runners_here(self) -> bool:
        """Whether agents run on this machine, so that what they need can be looked for before the run."""
        return False

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> Awaitable[None] | None:
        """Return when the algorithm and all runners have stopped; raise the algorithm's error."""
        raise NotImplementedError(f"{type(self).__name__} does not implement execute: override it")

    def stop(self) -> None:
        """Ask current runs to shut down; callable from any thread. A strategy that cannot runs to its end."""
