"""How the parts of a run are asked to stop: events to check, and the cancellation of a coroutine on another thread."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ..store import LightningStore
    from .base import Connect

MAX_ROUNDS = 10  # of cancellation, at the end of an event loop


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


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event of this loop is set; return False if it was not within the time."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


class CancellableCall:
    """Work with the store of a run, in an event loop on the thread that calls `run`; any thread may cancel it."""

    def __init__(self, connect: "Connect", work: "Callable[[LightningStore], Awaitable[None]]") -> None:
        self._connect, self._work = connect, work
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self.was_cancelled = False
        self.error: BaseException | None = None
        """What ended it, if it was an error; a cancellation that was asked for here is none."""

    def run(self) -> None:
        """Return when it has ended, whatever ended it."""
        try:
            run_to_end(self._run())
        except BaseException as error:  # noqa: BLE001 - whoever waits for the end decides what it means
            if not (self.was_cancelled and isinstance(error, asyncio.CancelledError)):
                self.error = error

    async def _run(self) -> None:
        with self._lock:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self.was_cancelled:
                return
        async with self._connect() as store:
            await self._work(store)

    def cancel(self) -> None:
        with self._lock:
            self.was_cancelled = True
            if self._loop is not None and self._task is not None:
                with contextlib.suppress(RuntimeError):  # it has ended
                    self._loop.call_soon_threadsafe(self._task.cancel)


def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine like `asyncio.run`, but leave every call in a thread that hangs instead of waiting for it."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_report)
    try:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(work)
    finally:
        try:
            loop.run_until_complete(_end_tasks())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()  # which shuts its executor down without waiting for it


async def _end_tasks() -> None:
    """Cancel all other tasks, and those that they start when they are cancelled."""
    for _ in range(MAX_ROUNDS):
        if not (tasks := asyncio.all_tasks() - {asyncio.current_task()}):
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An interrupt that broke into a task has reached the caller of the loop already."""
    if not isinstance(context.get("exception"), KeyboardInterrupt | SystemExit):
        loop.default_exception_handler(context)
