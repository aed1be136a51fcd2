"""The processes of a run, and those that are started ahead, so that the next run of this process begins at once.

Each is a fresh interpreter that imports what its role needs, waits for one job, does it and ends.
"""

import asyncio
import atexit
import logging
import os
import subprocess
import threading
from collections.abc import Callable
from typing import Literal

from ..process.child import EndStep, ExitReport, OrphanRule
from ..process.python_process import Data, Job, PythonProcess

log = logging.getLogger(__name__)
WARM_VARIABLE = "SHARPEN_WARM"
IDLE_SECONDS = 300.0  # then a process that nobody needs ends
Role = Literal["runner", "store"]
PROGRAMS: dict[Role, str] = {"runner": "sharpen.execution.runners", "store": "sharpen.execution.serving"}
# Runners report to the store, so it outlives them.
ORPHAN_RULES: dict[Role, OrphanRule] = {"runner": OrphanRule(5.0, 10.0), "store": OrphanRule(0.0, 10.0, stage=1)}


class RoleProcess(PythonProcess):
    """A process of a run, which waits for its job. It writes nothing before it has one."""

    def __init__(self, role: Role, *, is_spare: bool = False) -> None:
        super().__init__(PROGRAMS[role], role, name=role, stdout=subprocess.DEVNULL, orphan=ORPHAN_RULES[role])
        self.is_spare = is_spare

    @property
    def was_lost_early(self) -> bool:
        """Whether it was a spare that died before it took its job, which is nobody's failure."""
        return self.is_spare and not self.has_taken_job

    async def work(self, name: str, job: Job, on_message: Callable[[Data], None]) -> ExitReport:
        """Do the job under a name, and return how the process ended."""
        self.name = name
        sending = asyncio.create_task(asyncio.to_thread(self.send_job, job))
        try:
            return await self.listen(on_message)
        finally:
            sending.cancel()

    async def stop(self, *steps: EndStep) -> None:
        """End it step by step; at once where it has no job yet."""
        if self.has_job:
            await self.end_async(*steps)
        else:
            self.kill()


class WarmPool:
    """The spare processes of this one, started ahead so that the next run begins at once.

    A spare has imported what its role needs and waits for a job; nothing of the user's is in it. It ends when its
    parent ends, however that happens, and by itself after some minutes.
    """

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)  # the spares belong to the other process

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._spares: dict[Role, list[RoleProcess]] = {"runner": [], "store": []}

    def take(self, role: Role) -> RoleProcess:
        """Return a spare that lives, or a new process."""
        with self._lock:
            spares = self._living(role)
            return spares.pop(0) if spares else RoleProcess(role)

    def start_ahead(self, *, runners: int, stores: int) -> None:
        """Have this many spares, for a run like the one under way."""
        if os.environ.get(WARM_VARIABLE) == "0":
            return
        try:
            with self._lock:
                wanted: dict[Role, int] = {"store": stores, "runner": min(runners, os.cpu_count() or 1)}
                for role, count in wanted.items():
                    spares = self._living(role)
                    while len(spares) < count:
                        spares.append(RoleProcess(role, is_spare=True))
        except OSError as error:
            log.warning("could not start spare processes for the next run: %s", error)

    def _living(self, role: Role) -> list[RoleProcess]:
        spares = self._spares[role]
        for spare in [each for each in spares if not each.is_alive]:
            spares.remove(spare)
            spare.discard()
        return spares

    @property
    def pids(self) -> set[int]:
        """The processes that wait."""
        with self._lock:
            return {spare.pid for spares in self._spares.values() for spare in spares}

    def close(self) -> None:
        """End all spares."""
        with self._lock:
            for spares in self._spares.values():
                while spares:
                    spares.pop().discard()


pool = WarmPool()
atexit.register(pool.close)
