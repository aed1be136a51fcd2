"""What the stores in a database share, whether it is a file or a server.

Each method is a job: it runs in a transaction and its answer goes to whoever waits for it. Finished work that cannot be
written now is buffered in memory and written with the next write. Times of workers are noted in memory, since only
people look at them, and written when the watchdog looks around.
"""

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..errors import SharpenError, StoreError, StoreWriteError
from ..types import Worker
from .base import LightningStoreCapabilities
from .local import LocalStore, Waiter

log = logging.getLogger(__name__)

INLINE_ROWS = 64  # a write of more rows leaves the caller's thread
CLAIMED_BY_OTHERS_SECONDS = 0.05  # a deadline that is over and still there is somebody else's: no hurry
FINISHED_WORK = frozenset({"add_many_spans", "complete_attempt"})
_SIZED = FINISHED_WORK | {"enqueue_many_rollouts", "cancel_rollouts", "get_many_span_sequence_ids", "prune"}


class DatabaseStore(LocalStore):
    """Base class of the stores in a database; `place` says in messages where it is."""

    def __init__(
        self,
        place: str,
        *,
        clock: Callable[[], float],
        max_kept_bytes: int,
        read_only: bool,
        expires_attempts: bool,
    ) -> None:
        super().__init__(clock=clock)
        self._expires_attempts = expires_attempts
        self._place, self._is_read_only = place, read_only
        self._kept = KeptWork(max_kept_bytes)
        self._worker_times = WorkerTimes()
        self._pid = os.getpid()
        self._closing, self._is_closed = threading.Lock(), False

    @property
    def is_read_only(self) -> bool:
        """Whether the database was opened for reading only."""
        return self._is_read_only

    @property
    def kept_bytes(self) -> int:
        """The bytes of finished work buffered in memory because the database cannot be written."""
        return self._kept.size

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": True, "async_safe": True, "zero_copy": False, "otlp_traces": False}

    def _read_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Like `_read`, from a thread without a loop."""
        raise NotImplementedError

    def _write_kept_work(self) -> None:
        """Write what was buffered, as any write does."""
        raise NotImplementedError

    def _close_connections(self) -> None:
        """Let go of the database, in a thread, and note that it `_is_closed`."""
        raise NotImplementedError

    def _check_writable(self, name: str) -> None:
        if self._is_read_only:
            raise StoreWriteError(
                f"{name} writes, but {self._place} was opened with read_only=True: open it without that, or use the "
                "store server of the run"
            )

    def _check_process(self) -> None:
        """Connections do not survive a fork."""
        if os.getpid() != self._pid:
            raise StoreError(f"{self!r} was opened in another process: open it again in process {os.getpid()}")

    def _write_worker_times(self) -> None:
        noted = self._worker_times.snapshot()
        if noted:
            self._write_now("write_worker_times", noted)
            self._worker_times.written(noted)

    def _write_what_is_left(self) -> None:
        """Before the store is closed: write what was buffered and noted, and log what cannot be written."""
        try:
            if self._kept.jobs:
                self._write_kept_work()
            self._write_worker_times()
        except StoreError as error:
            log.warning("%s was closed before all data was written: %s", self._place, error)
        if self._kept.jobs:
            log.error(
                "lost %d bytes of finished work: %s was closed before they could be written",
                self._kept.size,
                self._place,
            )

    def _next_deadline(self) -> float | None:
        found: float | None = self._read_now("next_deadline")
        if found is None or not self._clock.is_real:
            return found
        return max(found, self._clock() + CLAIMED_BY_OTHERS_SECONDS)

    def _look_at_next_deadline(self) -> None:
        deadline = self._next_deadline()
        if deadline is not None:
            self._watchdog.look_at(deadline)

    async def _woken(self, waiter: Waiter, seconds: float) -> bool:
        self._watchdog.start()  # a store that is only read needs it only to notice what others wrote
        return await super()._woken(waiter, seconds)

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self._close_once)

    def _close_once(self) -> None:
        """A close that was cancelled is finished by the next one, and whoever closes meanwhile waits for it."""
        with self._closing:
            if not self._is_closed:
                self._close_connections()


# -- jobs --------------------------------------------------------------------------------------------


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


# Where a method's parameters name rollouts: its place and name and, where it is a list, how each of them does.
_NAMING: dict[str, tuple[int, str, Callable[[Any], Any] | None]] = {
    "start_rollout": (6, "rollout_id", None),
    **dict.fromkeys(
        ("start_attempt", "update_rollout", "update_attempt", "complete_attempt", "get_rollout_by_id"),
        (0, "rollout_id", None),
    ),
    "enqueue_many_rollouts": (0, "requests", lambda request: getattr(request, "rollout_id", None)),
    "cancel_rollouts": (0, "rollout_ids", lambda rollout_id: rollout_id),
    "add_many_spans": (0, "spans", lambda span: getattr(span, "rollout_id", None)),
    "get_many_span_sequence_ids": (0, "pairs", lambda pair: pair[0] if isinstance(pair, list | tuple) else None),
}


def named_rollouts(job: Job) -> list[Any]:
    """Return the rollouts that a call names, each once; what is wrong with it, the rules say."""
    if job.name not in _NAMING:
        return []
    place, name, pick = _NAMING[job.name]
    given = job.args[place] if len(job.args) > place else job.kwargs.get(name)
    listed = given if isinstance(given, list | tuple) else []
    found = [given] if pick is None else [pick(each) for each in listed]
    return list(dict.fromkeys(each for each in found if isinstance(each, str)))


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
