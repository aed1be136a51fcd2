"""Where agents run: sync ones in threads, or all of them on a thread that somebody lends (for a debugger).

A thread cannot be stopped from outside. Inside an agent that nobody waits for any more an exception is raised, again
and again until it ends; its thread is abandoned, and a new one takes its place.
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
from dataclasses import dataclass, field
from typing import Any

from ..errors import AgentExitError

Call = Callable[[], Any]
RAISE_AGAIN_SECONDS = 1.0


class AgentAbandoned(BaseException):
    """Raised inside a sync agent that nobody waits for. Not an `Exception`, which agents catch and try again."""


class RunnerWornOut(Exception):
    """Too many threads of this process hang in agents that nobody waits for: the process should be replaced."""


class AgentThreads:
    """Runs the agents of one runner: on the thread that was lent, otherwise sync ones in threads that are used again.

    To be used from one event loop.
    """

    def __init__(self, *, concurrency: int) -> None:
        lent = _lent.get()
        # Several slots are of more use in separate threads.
        self._lent = lent if lent is not None and (lent.is_asked_for or concurrency == 1) else None
        self._idle: list[_Thread] = []
        self._abandoned: list[_Thread] = []

    @property
    def is_on_lent_thread(self) -> bool:
        return self._lent is not None

    @property
    def abandoned(self) -> int:
        """How many threads hang in agents that nobody waits for; may be asked from any thread."""
        return sum(thread.is_alive() for thread in self._abandoned)

    async def call(self, function: Call) -> Any:
        """Call a sync function in a copy of this context; when this is cancelled, the thread is abandoned."""
        if self._lent is not None:
            return await self._call_on_lent(self._lent, function)
        thread, job = self._idle.pop() if self._idle else _Thread(), _Job(function)
        thread.jobs.put(job)
        try:
            return await job.result()
        finally:
            if job.future.done():
                self._idle.append(thread)
            else:  # this was cancelled
                thread.abandon()
                self._abandoned = [*(each for each in self._abandoned if each.is_alive()), thread]

    async def call_async(self, function: Call) -> Any:
        """Await what an async function returns."""
        if self._lent is not None:
            return await self._lent.call(function, is_async=True)
        with agent_errors():
            return await function()

    async def _call_on_lent(self, lent: "MainThread", function: Call) -> Any:
        try:
            return await lent.call(function)
        except asyncio.CancelledError:
            if not lent.is_asked_for:
                self._lent = None  # an agent hangs there, and the next ones must not wait for it
            raise

    def close(self) -> None:
        """End the idle threads."""
        for thread in self._idle:
            thread.jobs.put(None)
        self._idle.clear()


@dataclass(eq=False)
class _Job:
    """A call for another thread: of a function, or of one that gives a coroutine. `future` is done when it has ended,
    and says nothing more: a future refuses some exceptions, such as StopIteration."""

    function: Call
    is_async: bool = False
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    future: "Future[None]" = field(default_factory=Future)
    value: Any = None
    error: BaseException | None = None

    async def result(self) -> Any:
        """Wait for the call, and return or raise what it did; when this is cancelled, so is the future."""
        await asyncio.wrap_future(self.future)
        if self.error is not None:
            raise self.error
        return self.value

    def run(self) -> None:
        if self.future.set_running_or_notify_cancel():
            try:
                with agent_errors():
                    self.value = self.context.run(self.function)
            except BaseException as error:  # noqa: BLE001 - handed to whoever awaits it
                self.error = error
            self.future.set_result(None)

    async def run_async(self) -> None:
        try:
            with agent_errors():
                self.value = await self.function()
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits it
            self.error = error
        with contextlib.suppress(InvalidStateError):  # cancelled in the meantime
            self.future.set_result(None)
        if isinstance(self.error, KeyboardInterrupt):
            raise self.error


class _Thread(threading.Thread):
    """A thread that runs one job after another; `None` ends it."""

    def __init__(self) -> None:
        super().__init__(name="sharpen-agent", daemon=True)
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._is_abandoned = self._is_busy = False
        contextvars.Context().run(self.start)  # it outlives the attempt that it is started for

    def run(self) -> None:
        while not self._is_abandoned and (job := self.jobs.get()) is not None:
            self._is_busy = True
            if not self._is_abandoned:
                job.run()
            self._is_busy = False
            del job  # an idle thread keeps nothing of its last agent

    def abandon(self) -> None:
        self._is_abandoned = True
        self.jobs.put(None)
        threading.Thread(target=self._interrupt, name="sharpen-abandoned", daemon=True).start()

    def _interrupt(self) -> None:
        """Raise in the agent, which may catch it, or be deep in a call, until it ends."""
        number = ctypes.c_ulong(self.ident or 0)
        while self._is_busy and self.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(AgentAbandoned))
            self.join(RAISE_AGAIN_SECONDS)


@contextlib.contextmanager
def agent_errors() -> Iterator[None]:
    """Let errors of the agent inside the block end its attempt, and nothing else: `sys.exit` is an `AgentExitError`,
    and a fork that the agent has made does not continue as a second runner."""
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            code = error.code if isinstance(error, SystemExit) else 1
            os._exit(code if isinstance(code, int) else int(code is not None))
        if isinstance(error, SystemExit):
            raise AgentExitError(f"the agent called sys.exit({error.code!r})") from error
        raise


# -- a thread that is lent ---------------------------------------------------------------------------


class MainThread:
    """A thread that lends itself to agents, so that `breakpoint()` and an IDE's debugger work in them.

    Sync agents run there one after another, async ones side by side in one loop that lasts. `is_asked_for` says that
    somebody wants them there, also where slots for several would be better used in threads of their own.
    """

    def __init__(self, *, is_asked_for: bool = True) -> None:
        self.is_asked_for = is_asked_for
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None  # while async agents run
        self._arrived = asyncio.Event()

    def pump(self) -> None:
        """Run agents on this thread until `stop`; a KeyboardInterrupt passes through."""
        with asyncio.Runner() as runner:
            job = self._jobs.get()
            while job is not None:
                if job.is_async:
                    job = runner.run(self._side_by_side(job))
                    continue
                job.run()
                if isinstance(job.error, KeyboardInterrupt):
                    raise job.error
                job = self._jobs.get()

    async def _side_by_side(self, first: _Job) -> _Job | None:
        """Run async agents until a job of another kind comes, and return that."""
        self._arrived, self._loop = asyncio.Event(), asyncio.get_running_loop()
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
            self._loop = None

    def _begin(self, job: _Job) -> "asyncio.Task[None]":
        loop = asyncio.get_running_loop()
        task = loop.create_task(job.run_async(), context=job.context)

        def stop_if_unwanted(future: "Future[None]") -> None:
            if future.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        job.future.add_done_callback(stop_if_unwanted)
        return task

    def stop(self) -> None:
        """End `pump` when the agents that run have ended."""
        self._put(None)

    async def call(self, function: Call, *, is_async: bool = False) -> Any:
        """Run the function on the pumping thread. A sync agent in a debugger takes its time: it is not abandoned."""
        job = _Job(function, is_async)
        self._put(job)
        return await job.result()

    def _put(self, job: _Job | None) -> None:
        self._jobs.put(job)
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._arrived.set)


_lent: contextvars.ContextVar[MainThread | None] = contextvars.ContextVar("sharpen_lent_thread", default=None)


@contextlib.contextmanager
def agents_on(place: MainThread) -> Iterator[None]:
    """Let runners that start inside the block run their agents on this thread."""
    token = _lent.set(place)
    try:
        yield
    finally:
        _lent.reset(token)
