"""Small runs in one process."""

import time
from collections.abc import Callable
from typing import Any

from sharpen.trainer import Trainer


def double(task: float) -> float:
    """An agent."""
    return task * 2


def small_trainer(**options: Any) -> Trainer:
    """Threads and the memory store: nothing has to start."""
    return Trainer(**{"strategy": "shm", "store": "memory", **options})


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; pytest's timeout bounds it."""
    while not condition():
        time.sleep(0.005)
