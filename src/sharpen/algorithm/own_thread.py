"""A sync algorithm runs in a thread of its own, where no event loop runs: it may call `asyncio.run(store...)`."""

from collections.abc import Callable
from typing import Any

from ..types import Dataset
from .base import Algorithm
from .computing import run_in_thread

PATIENCE_SECONDS = 10.0


async def run_to_end(
    algorithm: Algorithm[Any], train_dataset: Dataset[Any] | None, val_dataset: Dataset[Any] | None
) -> None:
    """Run an algorithm, sync or async, that has been given all it needs."""
    if algorithm.is_async():
        result: Any = algorithm.run(train_dataset, val_dataset)
    else:
        wake = getattr(algorithm.get_store(), "wake_waiting", _wake_nobody)
        result = await run_in_own_thread(lambda: algorithm.run(train_dataset, val_dataset), wake=wake)
    if hasattr(result, "__await__"):
        await result


async def run_in_own_thread(work: Callable[[], Any], *, wake: Callable[[], None]) -> Any:
    """Run `work` and give back what it returns. When this call is cancelled, `KeyboardInterrupt` is raised inside."""
    return await run_in_thread(
        work, what="the algorithm", interrupt=KeyboardInterrupt, wake=wake, patience_seconds=PATIENCE_SECONDS
    )


def _wake_nobody() -> None:
    """For a store that does not know who waits in it."""
