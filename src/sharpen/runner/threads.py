"""Where agents run: sync ones in threads, or all of them on a thread that somebody lends (for a debugger).

A thread cannot be stopped from outside. An agent that nobody waits for any more is told by an exception at its next
step, and its thread is left to itself: a new one takes its place.
"""

import asyncio
import contextlib
import contextvars
import ctypes
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from ..errors import AgentCancelledError

Call = Callable[[], Any]


class RunnerWornOut(Exception):
    """Too many threads of this process hang in agents that nobody waits for: the process should be replaced."""


class AgentThreads:
    """Threads for sync agents, used again and again. To be used from one event loop."""

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self._left: list[_Thread] = []

    @property
    def abandoned(self) -> int:
        """How many threads hang in agents that nobody waits for."""
        self._left = [thread for thread in self._left if thread.is_alive()]
        return len(self._left)

    async def call(self, function: Call) -> Any:
        """Run the function in a thread, in a copy of this context; cancelled, it leaves the thread to itself."""
        thread = self._idle.pop() if self._idle else _Thread()
        future = thread.begin(contextvars.copy_context(), function)
        try:
            outcome = await future
        except asyncio.CancelledError:
            thread.abandon()
            self._left.append(thread)
            raise
        self._idle.append(thread)
        if isinstance(outcome, _Raised):
            raise outcome.error
        return outcome

    def close(self) -> None:
        """End the idle threads."""
        for thread in self._idle:
            thread.end()
        self._idle.clear()


class _Raised:
    """An exception as a value: a future refuses some of them, such as StopIteration."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Thread:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[asyncio.Future[Any], contextvars.Context, Call] | None] = (
            queue.SimpleQueue()
        )
        self._is_abandoned = False
        self._is_busy = False
        self._thread = threading.Thread(target=self._run, name="sharpen-agent", daemon=True)
        self._thread.start()

    def begin(self, context: contextvars.Context, function: Call) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        self._jobs.put((future, context, function))
        return future

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        self._jobs.put(None)

    def abandon(self) -> None:
        self._is_abandoned = True
        self.end()
        if self._is_busy:
            raise_in(self._thread, AgentCancelledError)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, context, function = job
            self._is_busy = True
            outcome = _outcome(context, function)
            self._is_busy = False
            if self._is_abandoned:
                return
            del job, context, function
            # The loop may be gone when the process ends: then nobody waits.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_set, future, outcome)
            del future, outcome


def _outcome(context: contextvars.Context, function: Call) -> Any:
    try:
        return context.run(function)
    except BaseException as error:  # noqa: BLE001 - handed to whoever awaits it
        return _Raised(error)


def _set(future: "asyncio.Future[Any]", outcome: Any) -> None:
    if not future.done():
        future.set_result(outcome)


def raise_in(thread: threading.Thread, kind: type[BaseException]) -> None:
    """Raise an exception in another thread, at its next step in Python."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))


class MainThread:
    """A thread that lends itself to agents, so that `breakpoint()` and an IDE's debugger work in them."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[tuple[Future[Any], contextvars.Context, Call] | None] = queue.Queue()

    def pump(self) -> None:
        """Run agents on this thread until `stop`; a KeyboardInterrupt passes through."""
        while (job := self._jobs.get()) is not None:
            future, context, function = job
            outcome = _outcome(context, function)
            if not isinstance(outcome, _Raised):
                future.set_result(outcome)
                continue
            future.set_exception(outcome.error)
            if isinstance(outcome.error, KeyboardInterrupt):
                raise outcome.error

    def stop(self) -> None:
        self._jobs.put(None)

    async def call(self, function: Call) -> Any:
        """Run the function on the pumping thread. An agent in a debugger takes its time: it is not abandoned."""
        future: Future[Any] = Future()
        self._jobs.put((future, contextvars.copy_context(), function))
        return await asyncio.wrap_future(future)


_place: contextvars.ContextVar[MainThread | None] = contextvars.ContextVar("sharpen_agents_place", default=None)


@contextlib.contextmanager
def agents_on(place: MainThread) -> Iterator[None]:
    """Runners that start inside run their agents at this place."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def place_of_agents() -> MainThread | None:
    return _place.get()
