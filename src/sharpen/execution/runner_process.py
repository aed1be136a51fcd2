"""A life of a runner in a process of its own.

Time limits, heartbeats and stops all need the interpreter of the runner. An agent that holds its lock for good (a
backtracking regular expression, native code) stops them all, so the parent listens for a sign of life and kills a
process that gives none.
"""

import asyncio
import dataclasses
import json
import logging
import signal
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ..process.child import ExitReport
from ..process.parent import Data, Job
from .jobs import RunnerJob
from .lives import EXIT_WORN_OUT, End, How, OnReady
from .pool import RoleProcess, pool

log = logging.getLogger(__name__)
HUNG_SECONDS = 60.0  # a runner that gave no sign for so long, and for three of its leases, is killed
START_FACTOR = 5  # so many times as long before its first heartbeat: loading a native library holds the lock
LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class Graces:
    """How long a runner process is given at each step of its end."""

    graceful_timeout: float
    terminate_timeout: float
    allowed_exit_codes: Collection[int]


class RunnerProcess:
    """One runner process: it gets its job, reports, and ends."""

    def __init__(self, job: RunnerJob, payload: bytes, graces: Graces, *, on_ready: OnReady) -> None:
        self._job, self._payload, self._graces = job, payload, graces
        self._on_ready = on_ready
        self._child = pool.take("runner")
        self._gone = asyncio.Event()
        self._is_asked = False
        self._said: dict[str, Any] = {}
        self._hung = ""

    @property
    def pid(self) -> int:
        return self._child.pid

    async def live(self) -> End:
        report = await self._work()
        while self._child.was_lost_early and not self._is_asked:
            self._child = RoleProcess("runner")
            report = await self._work()
        self._gone.set()
        return self._end(report)

    async def _work(self) -> ExitReport:
        self._said, self._hung = {"finished": 0}, ""
        self._child.name = f"runner {self._job.worker_id}"
        job = Job(dataclasses.asdict(self._job), self._payload)
        tasks = [
            asyncio.create_task(asyncio.to_thread(self._child.send_job, job)),
            asyncio.create_task(self._watch_signs()),
        ]
        try:
            return await self._child.listen(self._hear)
        finally:
            for task in tasks:
                task.cancel()

    def _hear(self, data: Data) -> None:
        message = json.loads(data)
        self._said.update(message)
        if "ready" in message:
            log.debug("runner %d is ready: process %d", self._job.worker_id, self.pid)
            self._on_ready(message["ready"])

    async def _watch_signs(self) -> None:
        """Kill a process that is silent for too long."""
        while not self._child.is_silent(limit := self._hung_seconds()):  # noqa: ASYNC110 - silence has no event
            await asyncio.sleep(LOOK_SECONDS)
        self._hung = f"it did not respond for {limit:g} s"
        log.warning(
            "runner %d (process %d) did not respond for %g s: killing it. Usually its agent holds the interpreter "
            "lock, for example in a backtracking regular expression or native code. Work that takes longer needs a "
            "longer lease (unresponsive_seconds)",
            self._job.worker_id,
            self.pid,
            limit,
        )
        self._child.kill()

    def _hung_seconds(self) -> float:
        seconds = HUNG_SECONDS if "lease" in self._said else START_FACTOR * HUNG_SECONDS
        return max(seconds, 3 * (self._said.get("lease") or 0.0))

    def _end(self, report: ExitReport) -> End:
        said, failure = self._said, report.failure
        how = self._how(report)
        return End(
            how=how,
            finished=said["finished"],
            is_ready="ready" in said,
            worker_name=said.get("ready"),
            leaves_work=report.code != 0 or how not in ("done", "stopped"),
            reason=self._hung or report.describe() if failure is None else failure.last_line,
            kind="" if failure is None else failure.kind,
            traceback="" if failure is None else failure.traceback,
        )

    def _how(self, report: ExitReport) -> How:
        if report.failure is not None:
            return "failed"
        if self._is_asked and report.code in self._graces.allowed_exit_codes:
            return "stopped"
        if "done" in self._said:
            return "done"
        return "worn_out" if report.code == EXIT_WORN_OUT else "died"

    # -- the end -------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        self._is_asked = True
        if self._child.has_job:
            self._child.ask_to_stop()
        else:
            self._child.kill()  # it has done nothing yet

    async def end_in_order(self) -> None:
        self.ask_to_stop()
        half = self._graces.terminate_timeout / 2
        await self._child.end_async(
            (None, self._graces.graceful_timeout), (signal.SIGINT, half), (signal.SIGTERM, half)
        )
        await self._gone.wait()

    def kill(self) -> None:
        self._is_asked = True
        self._child.kill()
