"""The process that serves the store of a run: started again on the same socket and the same file when it dies."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

from ..errors import RunError
from . import jobs
from .lives import exit_in_words
from .pool import pool
from .process import ChildProcess
from .restarts import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, MAX_STARTS

log = logging.getLogger(__name__)
GRACE_SECONDS = 10.0
TERMINATE_SECONDS = 5.0


class StoreProcess:
    """Keeps one store child alive. To be used from one loop."""

    def __init__(self, job: jobs.StoreJob, listening: socket.socket) -> None:
        self._job, self._listening = job, listening
        self._child: ChildProcess | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._said: dict[str, Any] = {}

    def start(self, on_end: Callable[[BaseException | None], None]) -> None:
        self._keeping = asyncio.create_task(self._keep(on_end))

    async def _keep(self, on_end: Callable[[BaseException | None], None]) -> None:
        failed_starts, pause = 0, FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            child = self._child = pool.take("store")
            code = await self._serve(child)
            if self._stopping.is_set():
                return
            reason = self._said.get("error") or exit_in_words(code)
            log.warning("the store server ended (%s); it starts again", reason)
            if "ready" in self._said:
                failed_starts, pause = 0, FIRST_PAUSE_SECONDS
            elif "taken" in self._said or not child.was_spare:
                failed_starts += 1
                if failed_starts >= MAX_STARTS:
                    words = f"the store server failed at its start {MAX_STARTS} times in a row; last: {reason}"
                    on_end(RunError(words))
                    return
                await self._rest(pause)
                pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _serve(self, child: ChildProcess) -> int:
        self._said = {}
        header = jobs.encode(jobs.Surroundings.of_this_process(), self._job)
        giving = asyncio.create_task(child.give(header, files=[self._listening.fileno()]))
        try:
            return await child.listen(self._said.update)
        finally:
            giving.cancel()

    async def stop(self) -> None:
        """The last to end, so that everything is recorded."""
        self._stopping.set()
        if self._keeping is None or self._child is None:
            return
        self._child.ask_to_stop()
        if not await self._has_ended_within(GRACE_SECONDS):
            log.warning("the store server has not ended within %g s: SIGTERM", GRACE_SECONDS)
            self._child.signal(signal.SIGTERM)
            if not await self._has_ended_within(TERMINATE_SECONDS):
                self._child.kill()
        await self._keeping

    async def _has_ended_within(self, seconds: float) -> bool:
        assert self._keeping is not None
        done, _ = await asyncio.wait([self._keeping], timeout=seconds)
        return bool(done)

    def kill(self) -> None:
        self._stopping.set()
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
