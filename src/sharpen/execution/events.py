"""Events: how the parts of a run are told to stop."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
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
        """Wait until the flag is set; return False if it was not within the time."""
        return self._event.wait(timeout)


class MultiprocessingEvent(ThreadingEvent):
    """A flag for processes that were started with `multiprocessing`."""

    def __init__(self) -> None:
        import multiprocessing

        self._event = multiprocessing.Event()


@dataclass(frozen=True)
class Reach:
    """The address that other machines know this one by, and the name of the environment variable in which agents
    there find the token of a gateway."""

    host: str
    token_variable: str


class RunEvent(ThreadingEvent):
    """The flag of a run, as its algorithm sees it.

    An algorithm that is done, but holds what agents still need, calls `end_runners` and lets go of it when
    `have_runners_ended` returns True. Where runners are somebody else's, they count as ended. One that `holds_runners`
    calls `start_runners` when they may begin.

    Where agents run on other machines too, `reach` is how they find a gateway that the run starts.
    """

    reach: Reach | None = None

    def __init__(self, end_runners: Callable[[], None], start_runners: Callable[[], None]) -> None:
        super().__init__()
        self.end_runners, self.start_runners = end_runners, start_runners
        self._runners_ended = threading.Event()

    def have_runners_ended(self) -> bool:
        return self._runners_ended.is_set()

    def note_runners_ended(self) -> None:
        self._runners_ended.set()


class RunnerEvent(ThreadingEvent):
    """The flag of one runner, which also carries how many rollouts the runner has finished.

    Args:
        finished_before: The rollouts that the worker finished before its last restart.
        stop: A flag to share.
        on_finished: Called with the count of this runner whenever it grows.
        stop_requested: Whether the runner is to stop, which the flag may learn a moment later.
        alive: Called every second by the runner's heartbeat thread with the longest lease in hand, and with None when
            the thread ends.
    """

    def __init__(
        self,
        finished_before: int,
        *,
        stop: ExecutionEvent | None = None,
        on_finished: Callable[[int], None] = lambda _: None,
        stop_requested: Callable[[], bool] = lambda: False,
        alive: Callable[[float | None], None] = lambda _: None,
    ) -> None:
        super().__init__()
        if stop is not None:
            self._event = stop
        self.finished_before, self.count = finished_before, 0
        self.stop_requested, self.alive = stop_requested, alive
        self._on_finished = on_finished

    def finished(self, count: int) -> None:
        self.count = count
        self._on_finished(count)
