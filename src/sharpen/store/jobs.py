"""What waits to be written into a database: calls, finished work that could not be written, and times of workers."""

import asyncio
import hashlib
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..errors import SharpenError, StoreWriteError
from ..types import Worker

log = logging.getLogger(__name__)

INLINE_ROWS = 64  # a write of more rows leaves the caller's thread
FINISHED_WORK = frozenset({"add_many_spans", "complete_attempt"})
_SIZED = FINISHED_WORK | {"enqueue_many_rollouts", "cancel_rollouts", "get_many_span_sequence_ids", "prune"}


class Job:
    """One method of the rules to run in a transaction, and where its answer goes."""

    __slots__ = ("args", "error", "future", "kwargs", "loop", "name", "result")

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs
        self.result: Any = None
        self.error: BaseException | None = None
        self.future: asyncio.Future[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    def is_small(self) -> bool:
        if self.name not in _SIZED:
            return True
        values = [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Sequence)]
        return self.name != "prune" and all(len(value) <= INLINE_ROWS for value in values)

    def is_given_up(self) -> bool:
        """Whether its caller has gone: then nothing may be claimed or written for it."""
        return self.future is not None and self.future.cancelled()

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result

    def resolve(self) -> None:
        future = self.future
        if future is None or future.done():
            return
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(self.result)


class KeptWork:
    """Finished work that could not be written yet, in order and up to a bound."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self.jobs: list[Job] = []
        self._digests: set[bytes] = set()

    def keep(self, jobs: Sequence[Job], error: StoreWriteError) -> None:
        for job in jobs:
            if job.name in FINISHED_WORK:
                self._keep(job, error)

    def _keep(self, job: Job, error: StoreWriteError) -> None:
        try:
            encoded = msgspec.json.encode((job.name, job.args, job.kwargs), enc_hook=repr)
        except (TypeError, ValueError, RecursionError):
            return  # the store would refuse it
        size, digest = len(encoded), hashlib.sha256(encoded).digest()
        if digest in self._digests:
            return  # whoever was told to come later sends it again and again
        if self.size + size > self.max_bytes:
            log.error("lost %d bytes of finished work: the store cannot write (%s) and its buffer is full", size, error)
            return
        self.jobs.append(Job(job.name, job.args, job.kwargs))
        self._digests.add(digest)
        self.size += size

    def clear(self) -> None:
        for job in self.jobs:
            if isinstance(job.error, SharpenError):
                log.warning("the store refused finished work that was buffered in memory: %s", job.error)
        self.jobs, self.size, self._digests = [], 0, set()


# -- times of workers: written behind, since only people look at them --------------------------------

TIMES = ("last_dequeue_time", "last_busy_time", "last_idle_time")


def worker_of(values: Sequence[Any], noted: Mapping[str, float], work: Sequence[str] | None) -> Worker:
    """A worker from its row, what was noted since, and what it has in hand: a rollout and its attempt."""
    worker_id, stats, heartbeat, *times = values
    dequeue, busy, idle = (noted.get(name, old) for name, old in zip(TIMES, times, strict=True))
    return Worker(
        worker_id,
        "busy" if work else "idle",
        None if stats is None else msgspec.json.decode(stats),
        heartbeat,
        dequeue,
        busy,
        idle,
        *(work or (None, None)),
    )


class WorkerTimes:
    """What several threads note, until one of them writes it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted: dict[str, dict[str, float]] = {}

    def note(self, worker_id: str, now: float, *names: str) -> None:
        with self._lock:
            known = self._noted.setdefault(worker_id, {})
            for name in names:
                known[name] = now

    def __contains__(self, worker_id: str) -> bool:
        return worker_id in self._noted

    def get(self, worker_id: str, default: dict[str, float]) -> dict[str, float]:
        return self._noted.get(worker_id, default)

    def names(self) -> set[str]:
        with self._lock:
            return set(self._noted)

    def snapshot(self) -> dict[str, dict[str, float]]:
        """What is to be written."""
        with self._lock:
            return {worker_id: dict(times) for worker_id, times in self._noted.items()}

    def written(self, snapshot: dict[str, dict[str, float]]) -> None:
        """Forget what was written, unless more was noted since."""
        with self._lock:
            for worker_id, times in snapshot.items():
                if self._noted.get(worker_id) == times:
                    del self._noted[worker_id]
