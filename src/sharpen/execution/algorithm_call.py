"""The algorithm of a run: an async call with a loop of its own, which can be cancelled from another thread."""

import asyncio
import contextlib
import threading

from .base import AlgorithmBundle
from .events import ExecutionEvent
from .loops import run_to_end
from .serving import Served


class AlgorithmCall:
    """Runs an algorithm on the thread that calls `run`."""

    def __init__(self, algorithm: AlgorithmBundle, served: Served, event: ExecutionEvent) -> None:
        self._algorithm, self._served, self._event = algorithm, served, event
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self.cancelled_on_stop: bool = getattr(algorithm, "cancelled_on_stop", False)
        self.was_cancelled = False
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run to the end; how it ended stands in `error`."""
        try:
            run_to_end(self._run())
        except BaseException as error:  # noqa: BLE001 - raised by the run, once everything has ended
            self.error = error

    async def _run(self) -> None:
        with self._lock:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            if self.was_cancelled:
                raise asyncio.CancelledError
        async with self._served.connect() as store:
            await self._algorithm(store, self._event)

    def cancel(self) -> None:
        """Cancel it, from any thread."""
        with self._lock:
            self.was_cancelled = True
            if self._loop is not None and self._task is not None:
                with contextlib.suppress(RuntimeError):  # it has ended
                    self._loop.call_soon_threadsafe(self._task.cancel)
