"""The runs of a strategy that are under way, so that they can be stopped from outside."""

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .run import Run


class Runs:
    """A strategy may execute several runs at once, each from a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: list[Run] = []

    def execute(self, run: "Run") -> None:
        with self._lock:
            self._runs.append(run)
        try:
            run.execute()
        finally:
            with self._lock:
                self._runs.remove(run)

    def stop(self) -> None:
        with self._lock:
            for run in self._runs:
                run.stop()
