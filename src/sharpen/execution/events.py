"""Events: how the parts of a run are told to stop."""

import threading
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
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the flag was set within the time."""
        return self._event.wait(timeout)


class MultiprocessingEvent:
    """A flag for processes that were started with `multiprocessing`."""

    def __init__(self) -> None:
        import multiprocessing

        self._event = multiprocessing.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Whether the flag was set within the time."""
        return self._event.wait(timeout)
