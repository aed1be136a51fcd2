"""Events: how the parts of a run are told to stop."""

import threading
from collections.abc import Callable
from typing import Protocol, runtime_checkable


@runtime_checkable
class ExecutionEvent(Protocol):
    """A flag that one side sets and others look at or wait for."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class ThreadingEvent:
    """A flag for the threads of one process."""

    def __init__(self) -> None:
        self._event: ExecutionEvent = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the flag was set within the time."""
        return self._event.wait(timeout)


class MultiprocessingEvent(ThreadingEvent):
    """A flag for processes that were started with `multiprocessing`."""

    def __init__(self) -> None:
        import multiprocessing

        self._event = multiprocessing.Event()


class RunnerEvent(ThreadingEvent):
    """The flag of one runner: it also carries how many rollouts the runner has finished.

    `stop` is a flag to share, and `tell` hears the count whenever it grows.
    """

    def __init__(
        self,
        finished_before: int,
        *,
        stop: ThreadingEvent | None = None,
        tell: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__()
        if stop is not None:
            self._event = stop
        self.finished_before, self._tell = finished_before, tell
        self.count = 0

    def finished(self, count: int) -> None:
        self.count = count
        self._tell(count)
