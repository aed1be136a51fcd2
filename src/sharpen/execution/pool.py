"""The processes of a run, and those that are started ahead, so that the next run of this process begins at once.

A spare has imported what its role needs and waits for a job; nothing of the user's is in it. It ends when its parent
ends, however that happens, and by itself after some minutes.
"""

import atexit
import logging
import os
import subprocess
import threading
from collections import deque
from typing import Literal

from ..process.child import OrphanRule, PythonProcess

log = logging.getLogger(__name__)
VARIABLE = "SHARPEN_WARM"
Role = Literal["runner", "store"]
# Runners report to the store, so it outlives them.
ORPHAN_RULES: dict[Role, OrphanRule] = {"runner": OrphanRule(5.0, 10.0), "store": OrphanRule(0.0, 10.0, stage=1)}


class RoleProcess(PythonProcess):
    """A process of a run, which waits for its job (`child.py`). It writes nothing before it has one."""

    def __init__(self, role: Role, *, is_spare: bool = False) -> None:
        super().__init__(
            "sharpen.execution.child", role, name=role, stdout=subprocess.DEVNULL, orphan=ORPHAN_RULES[role]
        )
        self.is_spare = is_spare

    @property
    def was_lost_early(self) -> bool:
        """Whether it was a spare that died before it took its job, which is nobody's failure."""
        return self.is_spare and not self.has_taken_job


class Pool:
    """The spares of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spares: dict[Role, deque[RoleProcess]] = {"runner": deque(), "store": deque()}
        os.register_at_fork(after_in_child=self._forget)

    def take(self, role: Role) -> RoleProcess:
        """A spare that lives, or a new child."""
        with self._lock:
            spares = self._spares[role]
            while spares:
                spare = spares.popleft()
                if spare.is_alive:
                    return spare
                spare.discard()
        return RoleProcess(role)

    def start_ahead(self, *, runners: int, stores: int) -> None:
        """Have this many spares, for a run like the one under way."""
        if os.environ.get(VARIABLE) == "0":
            return
        try:
            self._fill("store", stores)
            self._fill("runner", min(runners, os.cpu_count() or 1))
        except OSError as error:
            log.warning("could not start spare processes for the next run: %s", error)

    def _fill(self, role: Role, count: int) -> None:
        with self._lock:
            spares = self._spares[role]
            for spare in [each for each in spares if not each.is_alive]:
                spares.remove(spare)
                spare.discard()
            while len(spares) < count:
                spares.append(RoleProcess(role, is_spare=True))

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
                    spares.popleft().discard()

    def _forget(self) -> None:
        """In a fork of this process: the spares belong to the other one."""
        self._lock = threading.Lock()
        self._spares = {"runner": deque(), "store": deque()}


pool = Pool()
atexit.register(pool.close)
