"""Threads with event loops of their own, as users of a store have them."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from .scenes import PATIENCE_SECONDS

T = TypeVar("T")


def in_threads(count: int, work: Callable[[int], Coroutine[Any, Any, T]]) -> list[T]:
    """Run the coroutine in `count` threads at the same time; an error in any of them is raised here."""
    start = threading.Barrier(count)

    def run(number: int) -> T:
        start.wait(PATIENCE_SECONDS)
        return asyncio.run(work(number))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count), timeout=PATIENCE_SECONDS))


def named_threads(name: str) -> set[threading.Thread]:
    """The living threads of this name."""
    return {thread for thread in threading.enumerate() if thread.name == name}
