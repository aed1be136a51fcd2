"""The tables of the store in SQLite, on one connection.

Tasks, metadata and the bodies of spans are JSON text; one of more than 64 kB is kept once, by its hash, and the
row holds `@hash`.
"""

import hashlib
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import InvalidInputError
from ..types import (
    PaginatedResult,
    Resource,
    ResourcesUpdate,
    Span,
    Worker,
    WorkerStatus,
)
from .base import FilterLogic
from .jobs import TIMES, worker_of
from .sqlite_records import chunks, marks
from .sqlite_rollouts import RolloutTables
from .tables import AttemptRow, Counts, Match, Page, RolloutRow, body_of, paginate, select_workers, unpacked_body
from .task_json import decode_equal, encode_equal

BLOB_BYTES = 64 * 1024

_encode = msgspec.json.Encoder().encode
_decode_resources = msgspec.json.Decoder(dict[str, Resource]).decode
_INSERT_SPAN = (
    "INSERT INTO spans (number, attempt, sequence_id, span_id, trace_id, parent_id, name, start_time, "
    "end_time, data) VALUES (?,?,?,?,?,?,?,?,?,?)"
)


class WorkerTimes(dict[str, dict[str, float]]):
    """When workers were last seen to claim, work or rest. Written behind, since only people look at it."""

    def note(self, worker_id: str, now: float, *names: str) -> None:
        known = self.setdefault(worker_id, {})
        for name in names:
            known[name] = now


class SQLiteTables(RolloutTables):
    """Everything that the rules need, as SQL."""

    def __init__(self, connection: sqlite3.Connection, worker_times: WorkerTimes) -> None:
        super().__init__(connection)
        self._worker_times = worker_times

    def missing_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: Sequence[Span]) -> list[bool]:
        if not rollout.last_span:  # the first spans of a rollout are new
            return [True] * len(spans)
        known: set[str] = set()
        for part in chunks([span.span_id for span in spans]):
            known |= {
                span_id
                for (span_id,) in self._sql(
                    f"SELECT span_id FROM spans WHERE number = ? AND attempt = ? AND span_id IN ({marks(part)})",
                    (rollout.number, attempt.sequence_id, *part),
                )
            }
        return [span.span_id not in known for span in spans]

    def add_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: list[Span]) -> None:
        rows = [self._span_values(rollout.number, attempt.sequence_id, span) for span in spans]
        self.connection.executemany(_INSERT_SPAN, rows)

    def _span_values(self, number: int, sequence: int, span: Span) -> tuple[Any, ...]:
        body = body_of(span)
        try:
            data = self._keep(_encode(body))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"span {span.span_id!r} ({span.name}) cannot be written as JSON: {error}") from None
        return (
            number,
            sequence,
            span.sequence_id,
            span.span_id,
            span.trace_id,
            span.parent_id,
            span.name,
            span.start_time,
            span.end_time,
            data,
        )

    def spans(
        self, rollout: RolloutRow, attempt: AttemptRow | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Span]:
        where, values = "WHERE number = ?", list[Any]([rollout.number])
        if attempt is not None:
            where, values = f"{where} AND attempt = ?", [rollout.number, attempt.sequence_id]
            ids = {attempt.sequence_id: attempt.attempt_id}
        else:
            ids = {a.sequence_id: a.attempt_id for a in self.attempts(rollout)}
        condition, more = _matching(matches, logic)
        where, values = f"{where}{condition}", [*values, *more]
        total = self.one(f"SELECT count(*) FROM spans {where}", *values)[0]
        found = self._sql(
            "SELECT attempt, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, data FROM spans "
            f"{where} ORDER BY {page.sort_by} {page.sort_order}, id {page.sort_order} LIMIT ? OFFSET ?",
            (*values, page.limit, page.offset),
        )
        items = [self._span(rollout.rollout_id, ids, row) for row in found]
        return PaginatedResult(items, page.limit, page.offset, total)

    def _span(self, rollout_id: str, attempts: dict[int, str], values: Sequence[Any]) -> Span:
        attempt, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, data = values
        body = unpacked_body(self._fetch(data))
        return Span(
            rollout_id,
            attempts[attempt],
            sequence_id,
            trace_id,
            span_id,
            parent_id,
            name,
            body.status,
            body.attributes,
            body.events,
            body.links,
            start_time,
            end_time,
            body.context,
            body.parent,
            body.resource,
        )

    def add_resources(self, update: ResourcesUpdate, request_id: str | None) -> None:
        self._sql(
            "INSERT INTO resources (resources_id, version, create_time, update_time, data, request_id) "
            "VALUES (?,?,?,?,?,?)",
            (
                update.resources_id,
                update.version,
                update.create_time,
                update.update_time,
                _encode(update.resources).decode(),
                request_id,
            ),
        )

    def _resources(self, rest: str, *values: Any) -> list[ResourcesUpdate]:
        found = self._sql(f"SELECT resources_id, create_time, update_time, version, data FROM resources {rest}", values)
        return [ResourcesUpdate(row[0], row[1], row[2], row[3], _decode_resources(row[4])) for row in found]

    def resources(self, resources_id: str, version: int | None) -> ResourcesUpdate | None:
        if version is None:
            found = self._resources("WHERE resources_id = ? ORDER BY version DESC LIMIT 1", resources_id)
        else:
            found = self._resources("WHERE resources_id = ? AND version = ?", resources_id, version)
        return found[0] if found else None

    def resources_version(self, resources_id: str | None) -> tuple[str, int] | None:
        if resources_id is None:
            found = self.one("SELECT resources_id, version FROM resources ORDER BY position DESC LIMIT 1")
        else:
            found = self.one(
                "SELECT resources_id, version FROM resources WHERE resources_id = ? ORDER BY version DESC LIMIT 1",
                resources_id,
            )
        return None if found is None else (found[0], found[1])

    def resources_by_request(self, request_id: str) -> ResourcesUpdate | None:
        found = self._resources("WHERE request_id = ?", request_id)
        return found[0] if found else None

    def latest_resources(self) -> ResourcesUpdate | None:
        found = self._resources("ORDER BY position DESC LIMIT 1")
        return found[0] if found else None

    def all_resources(
        self, matches: list[Match], logic: FilterLogic, page: Page, *, all_versions: bool
    ) -> PaginatedResult[ResourcesUpdate]:
        condition, values = _matching(matches, logic)
        if not all_versions:
            condition += " AND position IN (SELECT max(position) FROM resources GROUP BY resources_id)"
        total = self.one(f"SELECT count(*) FROM resources WHERE 1{condition}", *values)[0]
        order = page.sort_by or "position"
        items = self._resources(
            f"WHERE 1{condition} ORDER BY {order} {page.sort_order}, position {page.sort_order} LIMIT ? OFFSET ?",
            *values,
            page.limit,
            page.offset,
        )
        return PaginatedResult(items, page.limit, page.offset, total)

    def worker(self, worker_id: str) -> Worker | None:
        values = self.one("SELECT * FROM workers WHERE worker_id = ?", worker_id)
        if values is None and worker_id not in self._worker_times:
            return None
        return self._worker(values or (worker_id, None, None, None, None, None))

    def _worker(self, values: Sequence[Any]) -> Worker:
        current = self.one(
            "SELECT rollout_id, attempt_id FROM rollouts WHERE phase = 'active' AND place = ? "
            "AND attempt_status IN ('preparing', 'running') ORDER BY attempt_start DESC LIMIT 1",
            values[0],
        )
        return worker_of(values, self._worker_times.get(values[0], {}), current)

    def save_heartbeat(self, worker_id: str, now: float, stats: dict[str, Any] | None) -> Worker:
        self._sql(
            "INSERT INTO workers (worker_id, heartbeat_stats, last_heartbeat_time) VALUES (?1, ?2, ?3) "
            "ON CONFLICT DO UPDATE SET heartbeat_stats = ?2, last_heartbeat_time = ?3",
            (worker_id, None if stats is None else _encode(stats).decode(), now),
        )
        worker = self.worker(worker_id)
        assert worker is not None
        if worker.status == "idle" and worker.last_idle_time is None:
            self._worker_times.note(worker_id, now, "last_idle_time")
        return worker

    def mark_busy(self, worker_id: str, attempt: AttemptRow, now: float) -> None:
        self._worker_times.note(worker_id, now, "last_dequeue_time", "last_busy_time")

    def mark_idle(self, worker_id: str, now: float) -> None:
        self._worker_times.note(worker_id, now, "last_idle_time")

    def write_worker_times(self) -> None:
        """Write what was noted of workers."""
        rows = [(worker_id, *(times.get(name) for name in TIMES)) for worker_id, times in self._worker_times.items()]
        self.connection.executemany(
            "INSERT INTO workers (worker_id, last_dequeue_time, last_busy_time, last_idle_time) VALUES (?1,?2,?3,?4) "
            "ON CONFLICT DO UPDATE SET last_dequeue_time = coalesce(?2, last_dequeue_time), "
            "last_busy_time = coalesce(?3, last_busy_time), last_idle_time = coalesce(?4, last_idle_time)",
            rows,
        )

    def workers(
        self, status_in: frozenset[WorkerStatus] | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Worker]:
        """Workers are few, and whether one is busy follows from the rollouts: they are filtered here."""
        rows = {values[0]: values for values in self._sql("SELECT * FROM workers ORDER BY worker_id").fetchall()}
        for worker_id in list(self._worker_times):  # the writer adds to it from its own thread
            rows.setdefault(worker_id, (worker_id, None, None, None, None, None))
        found = [self._worker(values) for values in rows.values()]
        return paginate(select_workers(found, status_in, matches, logic), page)

    def pack(self, value: Any, what: str) -> Any:
        return None if value is None else self._keep(encode_equal(value, what))

    def unpack(self, value: Any, what: str) -> Any:
        return None if value is None else decode_equal(self._fetch(value), what)

    def _keep(self, encoded: bytes) -> str:
        """The text for the row: the JSON itself or, where it is large, a reference to where it is kept once."""
        if len(encoded) <= BLOB_BYTES:
            return encoded.decode()
        digest = hashlib.sha256(encoded).hexdigest()
        self._sql(
            "INSERT INTO blobs (hash, uses, data) VALUES (?, 1, ?) ON CONFLICT (hash) DO UPDATE SET uses = uses + 1",
            (digest, encoded),
        )
        return f"@{digest}"

    def drop(self, value: Any) -> None:
        """A body that was packed is no longer needed: forget a large one after its last use."""
        if value is not None and value.startswith("@"):
            self._sql("UPDATE blobs SET uses = uses - 1 WHERE hash = ?", (value[1:],))
            self._sql("DELETE FROM blobs WHERE hash = ? AND uses <= 0", (value[1:],))

    def _fetch(self, text: str) -> str | bytes:
        if not text.startswith("@"):
            return text
        data: bytes = self.one("SELECT data FROM blobs WHERE hash = ?", text[1:])[0]
        return data

    def counts(self) -> Counts:
        return Counts(
            self.totals(),
            self.one("SELECT attempts FROM totals")[0],
            self.one("SELECT count(*) FROM rollouts WHERE phase = 'active' AND attempts > 0 AND attempt_end IS NULL")[
                0
            ],
            self._span_total(),
            self.one("SELECT count(*) FROM resources")[0],
            len({row[0] for row in self._sql("SELECT worker_id FROM workers")} | self._worker_times.keys()),
            self.one("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")[0],
        )


def _condition(match: Match) -> str:
    return f"instr({match.field}, ?) > 0" if match.contains else f"{match.field} = ?"


def _matching(matches: list[Match], logic: FilterLogic) -> tuple[str, list[str]]:
    if not matches:
        return "", []
    together = f" {logic} ".join(_condition(match) for match in matches)
    return f" AND ({together})", [match.value for match in matches]
