"""The tables of the store in Redis: rollouts, and beside them spans, resources and workers.

Tasks, metadata and spans are JSON.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from ...types import (
    PaginatedResult,
    ResourcesUpdate,
    Worker,
    WorkerStatus,
)
from ..base import FilterLogic
from ..tables import AttemptRow, Counts, Match, Page, RolloutRow, newest_versions, paginate, select, select_workers
from ..task_json import TASK, decode_equal, encode_equal
from .bodies import SHARED_BYTES
from .records import Record
from .scripts import WORKER
from .spans import SpanTables
from .texts import is_text

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_update = msgspec.json.Decoder(ResourcesUpdate).decode


class RedisTables(SpanTables):
    """Everything that the rules need."""

    # -- resources -----------------------------------------------------------------------------------

    def add_resources(self, update: ResourcesUpdate, request_id: str | None) -> None:
        place = self._published_count()
        self._do("RPUSH", "published", _encode(update))
        self._do("HSET", "versions", f"v:{update.resources_id}", update.version)
        self._do("HSET", "versions", f"p:{update.resources_id}:{update.version}", place)
        if request_id is not None:
            self._do("HSET", "versions", f"q:{request_id}", place)

    def _published_count(self) -> int:
        """How many there are; a change that depends on it is refused where more have come meanwhile."""
        if ("published", "") not in self._checks:
            self.see_published(self.connection.at_once(("LLEN", self.connection.key("published")))[0])
        return int(self._checks["published", ""])

    def see_published(self, count: int) -> None:
        self._checks["published", ""] = str(count)

    def _update_at(self, place: Any) -> ResourcesUpdate | None:
        if place is None:
            return None
        (found,) = self.connection.at_once(("LINDEX", self.connection.key("published"), int(place)))
        return None if found is None else _decode_update(found)

    def _version_field(self, field: str) -> Any:
        self._published_count()
        if not is_text(field):
            return None
        return self.connection.at_once(("HGET", self.connection.key("versions"), field))[0]

    def resources(self, resources_id: str, version: int | None) -> ResourcesUpdate | None:
        if version is None:
            latest = self._version_field(f"v:{resources_id}")
            if latest is None:
                return None
            version = int(latest)
        return self._update_at(self._version_field(f"p:{resources_id}:{version}"))

    def resources_version(self, resources_id: str | None) -> tuple[str, int] | None:
        if resources_id is None:
            latest = self.latest_resources()
            return None if latest is None else (latest.resources_id, latest.version)
        version = self._version_field(f"v:{resources_id}")
        return None if version is None else (resources_id, int(version))

    def resources_by_request(self, request_id: str) -> ResourcesUpdate | None:
        return self._update_at(self._version_field(f"q:{request_id}"))

    def latest_resources(self) -> ResourcesUpdate | None:
        count = self._published_count()
        return self._update_at(count - 1) if count else None

    def all_resources(
        self, matches: list[Match], logic: FilterLogic, page: Page, *, all_versions: bool
    ) -> PaginatedResult[ResourcesUpdate]:
        (found,) = self.connection.at_once(("LRANGE", self.connection.key("published"), 0, -1))
        published = [_decode_update(update) for update in found]
        return paginate(select(published if all_versions else newest_versions(published), matches, logic), page)

    # -- workers -------------------------------------------------------------------------------------

    def worker(self, worker_id: str) -> Worker | None:
        return self._worker(worker_id, self._seen_worker(worker_id)) if is_text(worker_id) else None

    def _seen_worker(self, worker_id: str) -> Sequence[Any]:
        if worker_id not in self._workers:
            self.see_worker(worker_id, self.connection.run(WORKER, worker_id))
        return self._workers[worker_id]

    def see_worker(self, worker_id: str, answer: Sequence[Any]) -> None:
        self._workers[worker_id] = answer

    def _worker(self, worker_id: str, answer: Sequence[Any]) -> Worker | None:
        is_known, (stats, beat, *times), _, _ = answer
        noted = self._times.get(worker_id, {})
        if not is_known and not noted:
            return None
        held = self._in_hand(worker_id, answer)
        current = max(held, key=lambda row: row.latest.start_time if row.latest else 0.0, default=None)
        beat, *times = (
            noted.get(name, None if old is None else float(old))
            for name, old in zip(("beat", "dequeue", "busy", "idle"), (beat, *times), strict=True)
        )
        return Worker(
            worker_id,
            "idle" if current is None else "busy",
            _decode(stats) if (stats := noted.get("stats", stats)) else None,
            beat,
            *times,
            *(
                (None, None)
                if current is None or current.latest is None
                else (current.rollout_id, current.latest.attempt_id)
            ),
        )

    def _in_hand(self, worker_id: str, answer: Sequence[Any]) -> list[Record]:
        """The rollouts that the worker has now, with what this transaction has changed."""
        rows = [self._see(found) for found in answer[2] if found is not None]
        named = {row.rollout_id for row in rows}
        rows += [row for row in self._loaded.values() if row is not None and row.rollout_id not in named]
        return [row for row in rows if (holder := row.stands().holder) is not None and holder[0] == worker_id]

    def open_attempts(self, worker_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        rows = self._in_hand(worker_id, self._seen_worker(worker_id))
        return [(self.touch(row), row.latest) for row in rows if row.latest is not None]

    def unwanted(self, worker_id: str) -> list[str]:
        found = {name.decode() for name in self._seen_worker(worker_id)[3]}
        for row in self._loaded.values():
            if row is not None:
                found -= {attempt_id for name, attempt_id in row.stood.unwanted if name == worker_id}
                found |= {attempt_id for name, attempt_id in row.stands().unwanted if name == worker_id}
        return sorted(found)

    def save_heartbeat(self, worker_id: str, now: float, stats: dict[str, Any] | None) -> Worker:
        self._note(worker_id, stats=b"" if stats is None else _encode(stats), beat=now)
        worker = self.worker(worker_id)
        assert worker is not None
        if worker.status == "idle" and worker.last_idle_time is None:
            self._note(worker_id, idle=now)
            worker = msgspec.structs.replace(worker, last_idle_time=now)
        return worker

    def _note(self, worker_id: str, **fields: Any) -> None:
        self._times.setdefault(worker_id, {}).update(fields)

    def mark_busy(self, worker_id: str, attempt: AttemptRow, now: float) -> None:
        self._note(worker_id, dequeue=now, busy=now)

    def mark_idle(self, worker_id: str, now: float) -> None:
        self._note(worker_id, idle=now)

    def workers(
        self, status_in: frozenset[WorkerStatus] | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Worker]:
        """Workers are few, and whether one is busy follows from the rollouts: they are filtered here."""
        (members,) = self.connection.at_once(("SMEMBERS", self.connection.key("workers")))
        names = sorted(name.decode() for name in members)
        answers = self.connection.at_once(*(self.connection.script(WORKER, name) for name in names)) if names else []
        found = [self._worker(name, answer) for name, answer in zip(names, answers, strict=True)]
        return paginate(select_workers([each for each in found if each is not None], status_in, matches, logic), page)

    # -- the rest ------------------------------------------------------------------------------------

    def pack(self, value: Any, what: str) -> Any:
        if value is None:
            return None
        encoded = encode_equal(value, what)
        if what != TASK or len(encoded) < SHARED_BYTES:
            return encoded.decode()
        name = self.bodies.name(encoded)
        self._do("USE", name, encoded)
        return f"@{name}"

    def unpack(self, value: Any, what: str) -> Any:
        if value is None:
            return None
        return decode_equal(self.bodies.get(value[1:]) if value.startswith("@") else value, what)

    def drop(self, value: Any) -> None:
        """A task that was packed is no longer needed: forget a large one after its last use."""
        if value is not None and value.startswith("@"):
            self._do("UNUSE", value[1:])

    def counts(self) -> Counts:
        totals = self.totals()
        key, at_once = self.connection.key, self.connection.at_once
        published, workers = at_once(("LLEN", key("published")), ("SCARD", key("workers")))
        memory = self.connection.again(lambda: self.connection.client.info("memory"))
        return Counts(
            totals,
            totals.get("attempts", 0),
            totals.get("open", 0),
            totals.get("spans", 0),
            published,
            workers,
            int(memory["used_memory"]),
        )
