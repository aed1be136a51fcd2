"""The thread that writes: everything that comes in while a change is on its way leaves together as the next one."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from ...errors import StoreError
from ..jobs import Job

log = logging.getLogger(__name__)

MAX_TOGETHER = 64
_ALONE = frozenset({"add_resources", "update_resources"})  # what others of the same group would not see


class Writer:
    """Jobs of any thread and loop, committed in groups by a thread of its own."""

    def __init__(self, commit: Callable[[Sequence[Job]], None]) -> None:
        self._commit = commit
        self._jobs: deque[Job] = deque()
        self._is_there_work = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    async def write(self, job: Job) -> object:
        """The answer to a job, once it is written."""
        job.loop = asyncio.get_running_loop()
        job.future = job.loop.create_future()
        with self._is_there_work:
            if self._is_stopped:
                raise StoreError("the store was closed before the write")
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sharpen-redis-writer", daemon=True)
                self._thread.start()
            self._is_there_work.notify()
        return await job.future

    def _run(self) -> None:
        while jobs := self._next():
            try:
                self._commit(jobs)
            except BaseException as error:  # noqa: BLE001 - whoever waits has to hear of it
                for job in jobs:
                    job.error = error
            _resolve(jobs)

    def _next(self) -> list[Job]:
        """The jobs that leave together; none at the end."""
        with self._is_there_work:
            self._is_there_work.wait_for(lambda: self._jobs or self._is_stopped)
            jobs: list[Job] = []
            while self._jobs and len(jobs) < MAX_TOGETHER:
                if jobs and (self._jobs[0].name in _ALONE or jobs[0].name in _ALONE):
                    break
                jobs.append(self._jobs.popleft())
            return jobs

    def stop(self) -> None:
        """End once everything that waits is written."""
        with self._is_there_work:
            self._is_stopped = True
            self._is_there_work.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()


def _resolve(jobs: Sequence[Job]) -> None:
    """Answer each job in its own loop; one whose loop has closed waits for nothing any more."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        if job.loop is not None:
            by_loop.setdefault(job.loop, []).append(job)
    for loop, answered in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve_here, answered)
        except RuntimeError:
            log.debug("an event loop closed before it received the results of %d writes", len(answered))


def _resolve_here(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.resolve()
