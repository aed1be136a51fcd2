"""The thread that gepa runs in, and how it reaches the loop of the run.

gepa is synchronous: it waits in a thread of its own for what happens on the loop. It ends with the search: every call
after the end raises `SearchOver`, and so does the one that is waited for. What goes wrong on the loop ends the search
too, and is raised where the search is awaited.
"""

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, NoReturn, TypeVar

from ...errors import RunError, describe

log = logging.getLogger(__name__)
T = TypeVar("T")
ENDING_SECONDS = 5.0


class SearchOver(BaseException):
    """Ends gepa. No `Exception`: gepa logs those and goes on."""


class SearchThread:
    """Runs one function in a thread; `wait_for` is for that thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._awaited: Future[Any] | None = None
        self._failure: BaseException | None = None
        self.is_over = False

    async def run(self, work: Callable[[], object]) -> None:
        """Until the work has ended, by itself or by `SearchOver`. Cancelling this ends the thread."""
        ended = asyncio.Event()
        context = contextvars.copy_context()
        # A daemon: strategies of users run in it, and one that hangs must not keep the process alive.
        thread = threading.Thread(target=context.run, args=(self._work, work, ended), daemon=True, name="sharpen-gepa")
        thread.start()
        try:
            await ended.wait()
        finally:
            self._break_off()
            await self._see_it_end(ended)
        if self._failure is not None:
            raise self._failure

    def wait_for(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What this gives on the loop of the run. Whatever it raises ends the search."""
        with self._lock:
            if self.is_over:
                raise SearchOver
            asked: Future[T] = asyncio.run_coroutine_threadsafe(ask(), self._loop)
            self._awaited = asked
        try:
            return asked.result()
        except CancelledError:
            raise SearchOver from None
        except BaseException as error:  # noqa: BLE001 - raised again where the search is awaited
            self.fail(error)

    def fail(self, error: BaseException) -> NoReturn:
        """End the search with this error."""
        self._failure = error
        self.end()

    def end(self) -> NoReturn:
        """End the search here: gepa gets no further."""
        self.is_over = True
        raise SearchOver

    def _work(self, work: Callable[[], object], ended: asyncio.Event) -> None:
        try:
            work()
        except SearchOver:
            log.debug("gepa was stopped")
        except BaseException as error:  # noqa: BLE001 - raised again where the search is awaited
            if self._failure is None and not self.is_over:
                self._failure = RunError(f"the gepa package failed: {describe(error)}")
                self._failure.__cause__ = error
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(ended.set)

    def _break_off(self) -> None:
        with self._lock:
            self.is_over = True
            if self._awaited is not None:
                self._awaited.cancel()

    async def _see_it_end(self, ended: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(ENDING_SECONDS):
                await ended.wait()
        except TimeoutError:
            log.warning("the thread of gepa has not ended after %g s; it ends with the process", ENDING_SECONDS)
