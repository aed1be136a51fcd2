"""Methods on their way to a thread, and what each of them needs to be asked together with BEGIN."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..jobs import Job
from .rollouts import RolloutTables

# One question each, which needs no view of its own; `finished_rollouts` has to see what is committed meanwhile.
ONE_QUESTION = frozenset(
    {
        "get_rollout_by_id",
        "get_latest_attempt",
        "get_resources_by_id",
        "get_latest_resources",
        "finished_rollouts",
        "unfinished",
        "queue_length",
        "next_deadline",
    }
)


class PostgresJob(Job):
    """A method to run on some connection, for a task of an event loop or for a thread that waits."""

    __slots__ = ("began", "done", "is_read", "takes_seat")

    def __init__(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_read: bool) -> None:
        super().__init__(name, args, kwargs)
        self.is_read = is_read
        self.takes_seat = False
        self.began = time.monotonic()
        self.done: threading.Event | None = None

    def finish(self) -> None:
        """Give the answer to whoever waits for it."""
        if self.done is not None:
            self.done.set()
        elif self.loop is not None:
            try:
                self.loop.call_soon_threadsafe(self.resolve)
            except RuntimeError:  # its loop has closed, and nobody waits any more
                return


def preload(tables: RolloutTables, job: Job) -> None:
    """Ask for the rows that the method will want: locked in one order, and with one question."""
    if job.name == "dequeue_many_rollouts":
        limit, request_id = job.kwargs.get("limit", 1), job.kwargs.get("request_id")
        if isinstance(limit, int) and 0 < limit < 2**31 and (request_id is None or _is_plain(request_id)):
            tables.load_claim(limit, request_id)
        return
    find = _NAMED.get(job.name)
    rollout_ids = [] if find is None else find(job)
    if rollout_ids and all(_is_plain(rollout_id) for rollout_id in rollout_ids):
        tables.load(rollout_ids)


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def _first(job: Job, name: str) -> Any:
    return job.args[0] if job.args else job.kwargs.get(name)


def _one_id(job: Job) -> Sequence[Any]:
    rollout_id = _first(job, "rollout_id")
    return [] if rollout_id is None else [rollout_id]


def _listed(name: str, pick: Callable[[Any], Any]) -> Callable[[Job], Sequence[Any]]:
    def find(job: Job) -> Sequence[Any]:
        given = _first(job, name)
        if not isinstance(given, list | tuple):
            return []
        return list(dict.fromkeys(found for each in given if (found := pick(each)) is not None))

    return find


_NAMED: dict[str, Callable[[Job], Sequence[Any]]] = {
    "start_rollout": lambda job: [job.kwargs["rollout_id"]] if job.kwargs.get("rollout_id") is not None else [],
    "start_attempt": _one_id,
    "update_rollout": _one_id,
    "update_attempt": _one_id,
    "complete_attempt": _one_id,
    "get_rollout_by_id": _one_id,
    "enqueue_many_rollouts": _listed("requests", lambda request: getattr(request, "rollout_id", None)),
    "cancel_rollouts": _listed("rollout_ids", lambda rollout_id: rollout_id),
    "add_many_spans": _listed("spans", lambda span: getattr(span, "rollout_id", None)),
    "get_many_span_sequence_ids": _listed("pairs", lambda pair: pair[0] if isinstance(pair, list | tuple) else None),
}
