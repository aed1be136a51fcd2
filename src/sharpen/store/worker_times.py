"""When workers were last seen to claim, work or rest. Written behind, since only people look at it."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..types import Worker

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
