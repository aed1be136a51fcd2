"""A life of a runner in a process of its own.

Time limits, heartbeats and stops all need the interpreter of the runner. An agent that holds its lock for good (a
backtracking regular expression, native code) stops them all, so the parent listens for a sign of life and kills a
process that gives none.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import jobs
from .lives import EXIT_WORN_OUT, End, How, OnReady, exit_in_words
from .pool import pool
from .process import ChildProcess

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

    def __init__(
        self,
        job: jobs.RunnerJob,
        payload: bytes,
        graces: Graces,
        *,
        on_ready: OnReady,
    ) -> None:
        self._job, self._payload, self._graces = job, payload, graces
        self._on_ready = on_ready
        self._child = pool.take("runner")
        self._gone = asyncio.Event()
        self._is_asked = False
        self._said: dict[str, Any] = {}
        self._has_signed = False
        self._hung = ""

    @property
    def pid(self) -> int:
        return self._child.pid

    async def live(self) -> End:
        code = await self._work()
        # A spare may have died before it was needed: that is nobody's failure.
        while self._child.was_spare and "taken" not in self._said and not self._is_asked:
            self._child = ChildProcess("runner")
            code = await self._work()
        self._gone.set()
        return self._end(code)

    async def _work(self) -> int:
        self._said, self._hung = {"finished": 0}, ""
        header = jobs.encode(jobs.Surroundings.of_this_process(), self._job)
        giving = asyncio.create_task(self._child.give(header, self._payload))
        watching = asyncio.create_task(self._watch_signs())
        try:
            return await self._child.listen(self._hear)
        finally:
            giving.cancel()
            watching.cancel()

    def _hear(self, message: dict[str, Any]) -> None:
        self._said.update(message)
        self._has_signed = self._has_signed or "alive" in message
        if "ready" in message:
            log.debug("runner %d is ready: process %d", self._job.worker_id, self.pid)
            self._on_ready(message["ready"])

    async def _watch_signs(self) -> None:
        """Kill a process that is silent for too long. Only time in which this loop ran counts: a supervisor that was
        paused, or a machine that was suspended, says nothing about the runner."""
        silent, before = 0.0, time.monotonic()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            silent, before = silent + min(now - before, 2 * LOOK_SECONDS), now
            if self._has_signed or "taken" not in self._said:
                silent, self._has_signed = 0.0, False
            limit = self._hung_seconds()
            if silent < limit or self._said.get("debugged") or _is_traced(self.pid):
                continue
            self._hung = f"it did not respond for {limit:g} s"
            log.warning(
                "runner %d (process %d) did not respond for %g s: killing it. Usually its agent holds the interpreter "
                "lock, for example in a backtracking regular expression or native code. Work that needs longer needs a "
                "longer lease (unresponsive_seconds)",
                self._job.worker_id,
                self.pid,
                limit,
            )
            self._child.kill()
            return

    def _hung_seconds(self) -> float:
        seconds = HUNG_SECONDS if "lease" in self._said else START_FACTOR * HUNG_SECONDS
        return max(seconds, 3 * (self._said.get("lease") or 0.0))

    def _end(self, code: int) -> End:
        said = self._said
        words = said["error"].strip().splitlines()[-1] if "error" in said else self._hung or exit_in_words(code)
        how = self._how(code)
        return End(
            how=how,
            finished=said["finished"],
            is_ready="ready" in said,
            worker_name=said.get("ready"),
            leaves_work=code != 0 or how not in ("done", "stopped"),
            reason=words,
            kind=said.get("kind", ""),
            traceback=said.get("error", ""),
        )

    def _how(self, code: int) -> How:
        if "error" in self._said:
            return "failed"
        if self._is_asked and code in self._graces.allowed_exit_codes:
            return "stopped"
        if "done" in self._said:
            return "done"
        return "worn_out" if code == EXIT_WORN_OUT else "died"

    # -- the end -------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        self._is_asked = True
        self._child.ask_to_stop()

    async def end_in_order(self) -> None:
        self.ask_to_stop()
        half = self._graces.terminate_timeout / 2
        steps = (
            (self._graces.graceful_timeout, signal.SIGINT),
            (half, signal.SIGTERM),
            (half, signal.SIGKILL),
        )
        for seconds, number in steps:
            if await self._has_gone_within(seconds):
                return
            log.warning("runner %d has not ended within %g s: %s", self._job.worker_id, seconds, number.name)
            if number == signal.SIGKILL:
                self._child.kill()
            else:
                self._child.signal(number)
        await self._gone.wait()

    async def _has_gone_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._gone.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def kill(self) -> None:
        self._is_asked = True
        self._child.kill()


def _is_traced(pid: int) -> bool:
    """Whether a debugger such as gdb has the process; False where the system does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in status.splitlines())
