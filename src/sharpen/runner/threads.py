"""Where agents run: sync ones in threads, or all of them on a thread that somebody lends (for a debugger).

A thread cannot be stopped from outside. An agent that nobody waits for any more is told by an exception at its next
step, and its thread is left to itself: a new one takes its place.
"""

import asyncio
import contextlib
import contextvars
import ctypes
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

Call = Callable[[], Any]
TOLD_EVERY_SECONDS = 1.0


class AgentAbandoned(BaseException):
    """Raised inside a sync agent that nobody waits for any more. No `Exception`, which agents catch and try again."""


class RunnerWornOut(Exception):
    """Too many threads of this process hang in agents that nobody waits for: the process should be replaced."""


class AgentThreads:
    """Threads for sync agents, used again and again. To be used from one event loop."""

    def __init__(self) -> None:
        self._idle: list[_Thread] = []
        self._left: list[_Thread] = []

    @property
    def abandoned(self) -> int:
        """How many threads hang in agents that nobody waits for; may be asked from any thread."""
        return sum(thread.is_alive() for thread in self._left)

    async def call(self, function: Call) -> Any:
        """Run the function in a thread, in a copy of this context; cancelled, it leaves the thread to itself."""
        thread = self._idle.pop() if self._idle else _Thread()
        future = thread.begin(contextvars.copy_context(), function)
        try:
            outcome = await future
        except asyncio.CancelledError:
            thread.abandon()
            self._left = [*(each for each in self._left if each.is_alive()), thread]
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
        threading.Thread(target=self._tell, name="sharpen-abandoned", daemon=True).start()

    def _tell(self) -> None:
        """An agent may catch it, or be deep in a call: tell it again while it goes on."""
        while self._is_busy and self._thread.is_alive():
            raise_in(self._thread, AgentAbandoned)
            self._thread.join(TOLD_EVERY_SECONDS)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, context, function = job
            self._is_busy = True
            outcome = None if self._is_abandoned else _outcome(context, function)
            self._is_busy = False
            if self._is_abandoned:
                return
            del job, context, function
            # The loop may be gone when the process ends: then nobody waits.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_set, future, outcome)
            del future, outcome


def _outcome(context: contextvars.Context, function: Call) -> Any:
    process = os.getpid()
    try:
        return context.run(function)
    except BaseException as error:  # noqa: BLE001 - handed to whoever awaits it
        end_fork(process, error)
        return _Raised(error)


def end_fork(process: int, error: BaseException) -> None:
    """An agent may fork; a fork that ends by an error or by `sys.exit` must not go on as a second runner."""
    if os.getpid() != process:
        code = error.code if isinstance(error, SystemExit) else 1
        os._exit(code if isinstance(code, int) else int(code is not None))


def _set(future: "asyncio.Future[Any]", outcome: Any) -> None:
    if not future.done():
        future.set_result(outcome)


def raise_in(thread: threading.Thread, kind: type[BaseException]) -> None:
    """Raise an exception in another thread, at its next step in Python."""
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(kind))


@dataclass(frozen=True)
class _Job:
    """A call for the thread that lends itself: of a function, or of one that gives a coroutine."""

    function: Call
    is_async: bool
    context: contextvars.Context
    future: "Future[Any]"

    def run(self) -> None:
        if self.future.set_running_or_notify_cancel():  # otherwise nobody waits for it any more
            self._settle(_outcome(self.context, self.function))

    async def run_async(self) -> None:
        try:
            self._settle(await self.function())
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits it
            self._settle(_Raised(error))

    def _settle(self, outcome: Any) -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled in this moment
            if isinstance(outcome, _Raised):
                self.future.set_exception(outcome.error)
            else:
                self.future.set_result(outcome)
        if isinstance(outcome, _Raised) and isinstance(outcome.error, KeyboardInterrupt):
            raise outcome.error


class MainThread:
    """A thread that lends itself to agents, so that `breakpoint()` and an IDE's debugger work in them.

    Sync agents run there one after another, async ones side by side in one loop that lasts. `is_asked_for` says that
    somebody wants them there, also where slots for several would be better used in threads of their own.
    """

    def __init__(self, *, is_asked_for: bool = True) -> None:
        self.is_asked_for = is_asked_for
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: asyncio.Event | None = None

    def pump(self) -> None:
        """Run agents on this thread until `stop`; a KeyboardInterrupt passes through."""
        with asyncio.Runner() as runner:
            job = self._jobs.get()
            while job is not None:
                if job.is_async:
                    job = runner.run(self._side_by_side(job))
                else:
                    job.run()
                    job = self._jobs.get()

    async def _side_by_side(self, first: _Job) -> _Job | None:
        """Run async agents until a job of another kind comes, which is given back."""
        self._loop, self._arrived = asyncio.get_running_loop(), asyncio.Event()
        tasks = {self._begin(first)}
        try:
            while True:
                self._arrived.clear()
                while not self._jobs.empty():
                    job = self._jobs.get()
                    if job is None or not job.is_async:
                        if tasks:
                            await asyncio.wait(tasks)
                        return job
                    tasks.add(self._begin(job))
                await self._arrived.wait()
                tasks = {task for task in tasks if not task.done()}
        finally:
            for task in tasks:
                task.cancel()
            self._arrived = None

    def _begin(self, job: _Job) -> "asyncio.Task[None]":
        loop = asyncio.get_running_loop()
        task = loop.create_task(job.run_async(), context=job.context)

        def stop_if_unwanted(future: "Future[Any]") -> None:
            if future.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        job.future.add_done_callback(stop_if_unwanted)
        return task

    def stop(self) -> None:
        """End `pump` when the agents that run have ended."""
        self._put(None)

    async def call(self, function: Call, *, is_async: bool = False) -> Any:
        """Run the function on the pumping thread. A sync agent in a debugger takes its time: it is not abandoned."""
        job = _Job(function, is_async, contextvars.copy_context(), Future())
        self._put(job)
        return await asyncio.wrap_future(job.future)

    def _put(self, job: _Job | None) -> None:
        self._jobs.put(job)
        loop, arrived = self._loop, self._arrived
        if loop is not None and arrived is not None and not loop.is_closed():
            loop.call_soon_threadsafe(arrived.set)


_lent: contextvars.ContextVar[MainThread | None] = contextvars.ContextVar("sharpen_lent_thread", default=None)


@contextlib.contextmanager
def agents_on(place: MainThread) -> Iterator[None]:
    """Let runners that start inside the block run their agents on this thread."""
    token = _lent.set(place)
    try:
        yield
    finally:
        _lent.reset(token)


def lent_thread() -> MainThread | None:
    return _lent.get()
