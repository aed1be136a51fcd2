"""The process that serves the store of a run: started again on the same socket and the same file when it dies."""

import asyncio
import contextlib
import dataclasses
import logging
import signal
import socket
from collections.abc import Callable

from ..errors import RunError
from ..process.child import ExitReport
from ..process.parent import Job
from .jobs import StoreJob
from .pool import RoleProcess, pool
from .restarts import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, MAX_STARTS

log = logging.getLogger(__name__)
GRACE_SECONDS = 10.0
TERMINATE_SECONDS = 5.0


class StoreProcess:
    """Keeps one store child alive. To be used from one loop."""

    def __init__(self, job: StoreJob, listening: socket.socket) -> None:
        self._job, self._listening = job, listening
        self._child: RoleProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def start(self, on_end: Callable[[BaseException | None], None]) -> None:
        self._keeping = asyncio.create_task(self._keep(on_end))

    async def _keep(self, on_end: Callable[[BaseException | None], None]) -> None:
        failed_starts, pause = 0, FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            child = self._child = pool.take("store")
            report = await self._serve(child)
            if self._stopping.is_set():
                return
            reason = report.describe() if report.failure is None else report.failure.traceback
            log.warning("the store server exited (%s); restarting it", reason)
            if child.is_ready:
                failed_starts, pause = 0, FIRST_PAUSE_SECONDS
            elif not child.was_lost_early:
                failed_starts += 1
                if failed_starts >= MAX_STARTS:
                    words = f"the store server failed to start {MAX_STARTS} times in a row; last: {reason}"
                    on_end(RunError(words))
                    return
                await self._rest(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _serve(self, child: RoleProcess) -> ExitReport:
        child.name = "the store server"
        job = Job(dataclasses.asdict(self._job), files=[self._listening.fileno()])
        sending = asyncio.create_task(asyncio.to_thread(child.send_job, job))
        try:
            return await child.listen(lambda _: None)
        finally:
            sending.cancel()

    async def stop(self) -> None:
        """The last to end, so that everything is recorded."""
        self._stopping.set()
        if self._keeping is None or self._child is None:
            return
        if self._child.has_job:
            await self._child.end_async((None, GRACE_SECONDS), (signal.SIGTERM, TERMINATE_SECONDS))
        else:
            self._child.kill()  # it has done nothing yet
        await self._keeping

    def kill(self) -> None:
        self._stopping.set()
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
