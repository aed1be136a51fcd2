"""The tables of the store in SQLite, on one connection.

Tasks, metadata and the bodies of spans are JSON text; one of more than 64 kB is kept once, by its hash, and the
row holds `@hash`. A rollout is read together with its latest attempt, which nearly every rule needs.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from ..errors import InvalidInputError, UnknownIdError
from ..types import (
    Event,
    Link,
    OtelResource,
    PaginatedResult,
    Resource,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutStatus,
    Span,
    SpanContext,
    TraceStatus,
    Worker,
    WorkerStatus,
)
from .base import FilterLogic
from .checks import encode_equal
from .ledger import public_rollout
from .tables import AttemptRow, Counts, Match, Page, RolloutFilter, RolloutRow
from .transitions import FINISHED, QUEUED

BLOB_BYTES = 64 * 1024
CHUNK = 500  # values in one IN (...); SQLite allows 32,766

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_resources = msgspec.json.Decoder(dict[str, Resource]).decode
_default_config = RolloutConfig()


class _Body(msgspec.Struct, omit_defaults=True):
    """What a span holds beside its columns."""

    status: TraceStatus = TraceStatus()
    attributes: dict[str, Any] = {}
    events: list[Event] = []
    links: list[Link] = []
    context: SpanContext | None = None
    parent: SpanContext | None = None
    resource: OtelResource = OtelResource()


_decode_body = msgspec.json.Decoder(_Body).decode


class _Record(RolloutRow):
    """A rollout row with its latest attempt."""

    latest: "_AttemptRecord | None" = None


class _AttemptRecord(AttemptRow):
    """An attempt row that remembers which of its indexed columns stood in the file."""

    was: tuple[Any, ...] = ()


_ROLLOUT = (
    "r.rollout_id, r.input, r.start_time, r.mode, r.resources_id, r.resources_version, r.config, r.metadata, "
    "r.status, r.end_time, r.reward, r.attempts, r.last_span, r.number"
)
_ATTEMPT = (
    "a.attempt_id, a.sequence_id, a.start_time, a.end_time, a.status, a.worker_id, a.last_heartbeat_time, "
    "a.metadata, a.deadline, a.unwanted, a.request_id, a.number"
)
_LATEST = "LEFT JOIN attempts a ON a.number = r.number AND a.sequence_id = r.attempts"
_SELECT_ROLLOUT = f"SELECT {_ROLLOUT}, {_ATTEMPT} FROM rollouts r {_LATEST} WHERE r.rollout_id = ?"
_SELECT_BOTH = f"SELECT {_ROLLOUT}, {_ATTEMPT} FROM attempts a JOIN rollouts r ON r.number = a.number"
_WORKER = ", ".join(Worker.__struct_fields__)


@lru_cache(maxsize=256)
def _config(text: str) -> RolloutConfig:
    return msgspec.json.decode(text, type=RolloutConfig)


@lru_cache(maxsize=256)
def _config_text(*fields: Any) -> str | None:
    config = RolloutConfig(*fields[:-1], list(fields[-1]))
    return None if config == _default_config else _encode(config).decode()


def _packed_config(config: RolloutConfig) -> str | None:
    if config is _default_config:
        return None
    return _config_text(
        config.timeout_seconds, config.unresponsive_seconds, config.max_attempts, tuple(config.retry_condition)
    )


def _attempt_record(rollout_id: str, values: Sequence[Any]) -> _AttemptRecord:
    attempt_id, sequence_id, start, end, status, worker, heartbeat, metadata, deadline, unwanted, request, number = values
    return _AttemptRecord(
        rollout_id,
        attempt_id,
        sequence_id,
        start,
        end,
        status,
        worker,
        heartbeat,
        metadata,
        deadline,
        bool(unwanted),
        request,
        number,
        (end, worker, bool(unwanted)),
    )


def _record(values: Sequence[Any]) -> _Record:
    config = values[6]
    row = _Record(*values[:6], _default_config if config is None else _config(config), *values[7:14])
    if len(values) > 14 and values[14] is not None:
        row.latest = _attempt_record(row.rollout_id, values[14:])
    return row


class SQLiteTables:
    """All questions and changes as SQL on one connection, inside the caller's transaction."""

    rollout_row = _Record
    attempt_row = _AttemptRecord

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._sql = connection.execute
        self._connection = connection

    def _one(self, sql: str, *values: Any) -> Any:
        return self._sql(sql, values).fetchone()

    # -- rollouts ------------------------------------------------------------------------------------

    def rollout(self, rollout_id: str) -> _Record | None:
        values = self._one(_SELECT_ROLLOUT, rollout_id)
        return None if values is None else _record(values)

    def add_rollouts(self, rows: list[RolloutRow]) -> None:
        if not rows:
            return
        (number,) = self._one("SELECT coalesce(max(number), 0) FROM rollouts")
        (place,) = self._one("SELECT coalesce(max(queue_place), 0) FROM rollouts WHERE queue_place IS NOT NULL")
        inserted = []
        for row in rows:
            number += 1
            row.number = number
            is_queued = row.status in QUEUED
            place += is_queued
            inserted.append(
                (
                    number,
                    row.rollout_id,
                    row.status,
                    row.mode,
                    row.start_time,
                    row.resources_id,
                    row.resources_version,
                    _packed_config(row.config),
                    place if is_queued else None,
                    row.input,
                    row.metadata,
                )
            )
        self._connection.executemany(
            "INSERT INTO rollouts (number, rollout_id, status, mode, start_time, resources_id, resources_version, "
            "config, queue_place, input, metadata, attempts, last_span) VALUES (?,?,?,?,?,?,?,?,?,?,?,0,0)",
            inserted,
        )

    def save_rollout(self, row: RolloutRow, old_status: RolloutStatus) -> None:
        """Write what can change. Indexed columns are named only where they do change."""
        status = row.status
        if status == old_status:
            self._sql(
                "UPDATE rollouts SET reward = ?, attempts = ?, last_span = ? WHERE number = ?",
                (row.reward, row.attempts, row.last_span, row.number),
            )
            return
        extra = ""
        if old_status in QUEUED and status not in QUEUED:
            extra = ", queue_place = NULL"
        elif status in QUEUED and old_status not in QUEUED:
            extra = (
                ", queue_place = (SELECT coalesce(max(queue_place), 0) + 1 FROM rollouts WHERE queue_place IS NOT NULL)"
            )
        values: tuple[Any, ...] = (status, row.reward, row.attempts, row.last_span)
        if status in FINISHED:
            (finish,) = self._one("UPDATE counters SET value = value + 1 WHERE name = 'finished' RETURNING value")
            extra += ", end_time = ?, finish_number = ?"
            values += (row.end_time, finish)
        self._sql(
            f"UPDATE rollouts SET status = ?, reward = ?, attempts = ?, last_span = ?{extra} WHERE number = ?",
            (*values, row.number),
        )

    def save_body(self, row: RolloutRow) -> None:
        self._sql(
            "UPDATE rollouts SET input = ?, metadata = ?, mode = ?, config = ?, resources_id = ?, "
            "resources_version = ? WHERE number = ?",
            (
                row.input,
                row.metadata,
                row.mode,
                _packed_config(row.config),
                row.resources_id,
                row.resources_version,
                row.number,
            ),
        )

    def queue_length(self) -> int:
        return int(self._one("SELECT coalesce(sum(value), 0) FROM counters WHERE name IN ('queuing', 'requeuing')")[0])

    def queue_head(self, limit: int) -> list[RolloutRow]:
        # The attempts are not joined: most rollouts that wait have none.
        found = self._sql(
            f"SELECT {_ROLLOUT} FROM rollouts r WHERE r.queue_place IS NOT NULL ORDER BY r.queue_place LIMIT ?",
            (limit,),
        )
        return [_record(values) for values in found]

    def delete_finished_before(self, time: float) -> int:
        numbers = [
            number
            for (number,) in self._sql(
                "SELECT number FROM rollouts WHERE finish_number IS NOT NULL AND end_time < ?", (time,)
            )
        ]
        for part in _chunks(numbers):
            self._delete(part)
        return len(numbers)

    def _delete(self, numbers: Sequence[int]) -> None:
        marks = _marks(numbers)
        refs = list(self._sql(f"SELECT input FROM rollouts WHERE number IN ({marks}) AND substr(input, 1, 1) = '@'", numbers))
        refs += self._sql(f"SELECT metadata FROM rollouts WHERE number IN ({marks}) AND substr(metadata, 1, 1) = '@'", numbers)
        refs += self._sql(f"SELECT data FROM spans WHERE number IN ({marks}) AND substr(data, 1, 1) = '@'", numbers)
        self._connection.executemany("UPDATE blobs SET uses = uses - 1 WHERE hash = substr(?, 2)", refs)
        if refs:
            self._sql("DELETE FROM blobs WHERE uses <= 0")
        gone = self._sql(f"DELETE FROM spans WHERE number IN ({marks})", numbers).rowcount
        self._count("spans", -gone)
        self._sql(f"DELETE FROM attempts WHERE number IN ({marks})", numbers)
        self._sql(f"DELETE FROM rollouts WHERE number IN ({marks})", numbers)

    def rollouts(self, wanted: RolloutFilter, page: Page) -> PaginatedResult[Rollout]:
        total = self._total(wanted)
        order = "number" if page.sort_by is None else page.sort_by
        if page.sort_by is None and wanted.status_in is not None and wanted.logic == "and":
            rows = self._by_status(wanted, page)
        else:
            where, values = _conditions(wanted)
            rows = self._sql(
                f"SELECT {_ROLLOUT} FROM rollouts r {where} ORDER BY r.{order} {page.sort_order}, "
                f"r.number {page.sort_order} LIMIT ? OFFSET ?",
                (*values, page.limit, page.offset),
            )
        return PaginatedResult([self._public(values) for values in rows], page.limit, page.offset, total)

    def _by_status(self, wanted: RolloutFilter, page: Page) -> Iterable[Sequence[Any]]:
        """Each status in the order of its index, then merged: no more rows are read than the page needs."""
        assert wanted.status_in is not None
        where, values = _conditions(wanted, with_status=False)
        most = -1 if page.limit < 0 else page.limit + page.offset
        parts, arguments = [], []
        for status in sorted(wanted.status_in):
            parts.append(
                f"SELECT * FROM (SELECT {_ROLLOUT} FROM rollouts r {where} AND r.status = ? "
                f"ORDER BY r.number {page.sort_order} LIMIT {most})"
            )
            arguments += [*values, status]
        if not parts:
            return []
        merged = " UNION ALL ".join(parts)
        return self._sql(
            f"SELECT * FROM ({merged}) ORDER BY number {page.sort_order} LIMIT ? OFFSET ?",
            (*arguments, page.limit, page.offset),
        )

    def _total(self, wanted: RolloutFilter) -> int:
        rest = (wanted.rollout_id_in, wanted.rollout_id_contains, wanted.mode, wanted.reward_min, wanted.reward_max)
        if any(condition is not None for condition in rest):
            where, values = _conditions(wanted)
            return int(self._one(f"SELECT count(*) FROM rollouts r {where}", *values)[0])
        by_status = self._counters()
        return sum(n for status, n in by_status.items() if wanted.status_in is None or status in wanted.status_in)

    def _counters(self) -> dict[str, int]:
        """Rollouts by status, kept by triggers so that no question has to count them."""
        return dict(self._sql("SELECT name, value FROM counters WHERE name NOT IN ('attempts', 'spans', 'finished')"))

    def _public(self, values: Sequence[Any]) -> Rollout:
        return public_rollout(_record(values), self.unpack)

    def finished(self, after: int, limit: int) -> list[tuple[int, Rollout]]:
        found = self._sql(
            f"SELECT {_ROLLOUT}, r.finish_number FROM rollouts r WHERE r.finish_number > ? "
            "ORDER BY r.finish_number LIMIT ?",
            (after, limit),
        )
        return [(values[-1], self._public(values[:-1])) for values in found]

    def unfinished(self, rollout_ids: Sequence[str]) -> list[str]:
        statuses: dict[str, str] = {}
        for part in _chunks(list(rollout_ids)):
            statuses |= dict(
                self._sql(f"SELECT rollout_id, status FROM rollouts WHERE rollout_id IN ({_marks(part)})", part)
            )
        for rollout_id in rollout_ids:
            if rollout_id not in statuses:
                raise UnknownIdError(f"there is no rollout {rollout_id!r}")
        return [rollout_id for rollout_id in rollout_ids if statuses[rollout_id] not in FINISHED]

    # -- attempts ------------------------------------------------------------------------------------

    def attempt(self, rollout: RolloutRow, attempt_id: str) -> AttemptRow | None:
        latest = self.latest_attempt(rollout)
        if latest is None or latest.attempt_id == attempt_id:
            return latest
        values = self._one(
            f"SELECT {_ATTEMPT} FROM attempts a WHERE a.number = ? AND a.attempt_id = ?", rollout.number, attempt_id
        )
        return None if values is None else _attempt_record(rollout.rollout_id, values)

    def latest_attempt(self, rollout: RolloutRow) -> AttemptRow | None:
        assert isinstance(rollout, _Record)
        if rollout.latest is None and rollout.attempts:
            values = self._one(
                f"SELECT {_ATTEMPT} FROM attempts a WHERE a.number = ? AND a.sequence_id = ?",
                rollout.number,
                rollout.attempts,
            )
            rollout.latest = _attempt_record(rollout.rollout_id, values)
        return rollout.latest

    def attempts(self, rollout: RolloutRow) -> list[AttemptRow]:
        found = self._sql(
            f"SELECT {_ATTEMPT} FROM attempts a WHERE a.number = ? ORDER BY a.sequence_id", (rollout.number,)
        )
        return [_attempt_record(rollout.rollout_id, values) for values in found]

    def add_attempt(self, row: AttemptRow) -> None:
        assert isinstance(row, _AttemptRecord)
        self._sql(
            "INSERT INTO attempts (number, sequence_id, attempt_id, start_time, status, worker_id, deadline, "
            "request_id, unwanted) VALUES (?,?,?,?,?,?,?,?,0)",
            (
                row.number,
                row.sequence_id,
                row.attempt_id,
                row.start_time,
                row.status,
                row.worker_id,
                row.deadline,
                row.request_id,
            ),
        )
        self._count("attempts", 1)
        row.was = (None, row.worker_id, False)

    def save_attempt(self, row: AttemptRow) -> None:
        assert isinstance(row, _AttemptRecord)
        changed = (row.end_time, row.worker_id, row.unwanted)
        values = (row.status, row.last_heartbeat_time, row.metadata, row.deadline)
        if changed == row.was:
            self._sql(
                "UPDATE attempts SET status = ?, last_heartbeat_time = ?, metadata = ?, deadline = ? "
                "WHERE number = ? AND sequence_id = ?",
                (*values, row.number, row.sequence_id),
            )
            return
        self._sql(
            "UPDATE attempts SET status = ?, last_heartbeat_time = ?, metadata = ?, deadline = ?, end_time = ?, "
            "worker_id = ?, unwanted = ? WHERE number = ? AND sequence_id = ?",
            (*values, *changed, row.number, row.sequence_id),
        )
        row.was = changed

    def _pairs(self, where: str, *values: Any) -> list[tuple[RolloutRow, AttemptRow]]:
        """Attempts with their rollouts, where a rollout that comes twice is one row."""
        rows: dict[int, _Record] = {}
        pairs: list[tuple[RolloutRow, AttemptRow]] = []
        for found in self._sql(f"{_SELECT_BOTH} {where}", values).fetchall():
            row = _record(found[:14])
            row = rows.setdefault(row.number, row)
            attempt = _attempt_record(row.rollout_id, found[14:])
            if attempt.sequence_id == row.attempts:
                row.latest = attempt
            pairs.append((row, attempt))
        return pairs

    def claimed(self, request_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        return self._pairs("WHERE a.request_id = ? ORDER BY a.number, a.sequence_id", request_id)

    def open_attempts(self, worker_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        return self._pairs("WHERE a.worker_id = ? AND a.end_time IS NULL", worker_id)

    def unwanted(self, worker_id: str) -> list[str]:
        found = self._sql("SELECT attempt_id FROM attempts WHERE worker_id = ? AND unwanted", (worker_id,))
        return [attempt_id for (attempt_id,) in found]

    def due(self, now: float) -> list[tuple[RolloutRow, AttemptRow]]:
        return self._pairs("WHERE a.deadline <= ? ORDER BY a.deadline", now)

    def next_deadline(self) -> float | None:
        found: float | None = self._one("SELECT min(deadline) FROM attempts WHERE deadline IS NOT NULL")[0]
        return found

    # -- spans ---------------------------------------------------------------------------------------

    def add_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: list[Span]) -> list[bool]:
        number, sequence = rollout.number, attempt.sequence_id
        rows = [self._span_values(number, sequence, span) for span in spans]
        if len(rows) == 1:
            flags = [self._sql(_INSERT_SPAN, rows[0]).rowcount == 1]
        else:
            flags = self._insert_spans(number, sequence, rows)
        self._count("spans", sum(flags))
        return flags

    def _insert_spans(self, number: int, sequence: int, rows: list[tuple[Any, ...]]) -> list[bool]:
        """Many at once; only when some were there already is it worth asking which."""
        ids = [row[3] for row in rows]
        known: set[str] = set()
        if self._one("SELECT 1 FROM spans WHERE number = ? AND attempt = ?", number, sequence):
            for part in _chunks(ids):
                known |= {
                    span_id
                    for (span_id,) in self._sql(
                        f"SELECT span_id FROM spans WHERE number = ? AND attempt = ? AND span_id IN ({_marks(part)})",
                        (number, sequence, *part),
                    )
                }
        flags = []
        for span_id in ids:
            flags.append(span_id not in known)
            known.add(span_id)
        fresh = [row for row, is_new in zip(rows, flags, strict=True) if is_new]
        self._connection.executemany(_INSERT_SPAN, fresh)
        return flags

    def _span_values(self, number: int, sequence: int, span: Span) -> tuple[Any, ...]:
        body = _Body(
            span.status, span.attributes, span.events, span.links, span.context, span.parent, span.resource
        )
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
        where, values = "WHERE number = ?", [rollout.number]
        if attempt is not None:
            where, values = f"{where} AND attempt = ?", [rollout.number, attempt.sequence_id]
            ids = {attempt.sequence_id: attempt.attempt_id}
        else:
            ids = {a.sequence_id: a.attempt_id for a in self.attempts(rollout)}
        condition, more = _matching(matches, logic)
        where, values = f"{where}{condition}", [*values, *more]
        total = self._one(f"SELECT count(*) FROM spans {where}", *values)[0]
        found = self._sql(
            "SELECT attempt, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, data FROM spans "
            f"{where} ORDER BY {page.sort_by} {page.sort_order}, id {page.sort_order} LIMIT ? OFFSET ?",
            (*values, page.limit, page.offset),
        )
        items = [self._span(rollout.rollout_id, ids, row) for row in found]
        return PaginatedResult(items, page.limit, page.offset, total)

    def _span(self, rollout_id: str, attempts: dict[int, str], values: Sequence[Any]) -> Span:
        attempt, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, data = values
        body = _decode_body(self._fetch(data))
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

    # -- resources -----------------------------------------------------------------------------------

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
        found = self._sql(
            f"SELECT resources_id, create_time, update_time, version, data FROM resources {rest}", values
        )
        return [ResourcesUpdate(*row[:4], _decode_resources(row[4])) for row in found]

    def resources(self, resources_id: str, version: int | None) -> ResourcesUpdate | None:
        if version is None:
            found = self._resources("WHERE resources_id = ? ORDER BY version DESC LIMIT 1", resources_id)
        else:
            found = self._resources("WHERE resources_id = ? AND version = ?", resources_id, version)
        return found[0] if found else None

    def resources_version(self, resources_id: str | None) -> tuple[str, int] | None:
        if resources_id is None:
            found = self._one("SELECT resources_id, version FROM resources ORDER BY position DESC LIMIT 1")
        else:
            found = self._one(
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
        self, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[ResourcesUpdate]:
        condition, values = _matching(matches, logic)
        total = self._one(f"SELECT count(*) FROM resources WHERE 1{condition}", *values)[0]
        order = page.sort_by or "position"
        items = self._resources(
            f"WHERE 1{condition} ORDER BY {order} {page.sort_order}, position {page.sort_order} LIMIT ? OFFSET ?",
            *values,
            page.limit,
            page.offset,
        )
        return PaginatedResult(items, page.limit, page.offset, total)

    # -- workers -------------------------------------------------------------------------------------

    def _workers(self, rest: str, *values: Any) -> list[Worker]:
        found = self._sql(f"SELECT {_WORKER} FROM workers {rest}", values)
        return [Worker(*row[:2], None if row[2] is None else _decode(row[2]), *row[3:]) for row in found]

    def worker(self, worker_id: str) -> Worker | None:
        found = self._workers("WHERE worker_id = ?", worker_id)
        return found[0] if found else None

    def save_heartbeat(self, worker_id: str, now: float, stats: dict[str, Any] | None) -> Worker:
        is_busy = self._one("SELECT 1 FROM attempts WHERE worker_id = ? AND end_time IS NULL", worker_id)
        status = "busy" if is_busy else "idle"
        self._sql(
            "INSERT INTO workers (worker_id, status, heartbeat_stats, last_heartbeat_time, last_idle_time) "
            "VALUES (?1, ?2, ?3, ?4, CASE ?2 WHEN 'idle' THEN ?4 END) ON CONFLICT DO UPDATE SET "
            "status = ?2, heartbeat_stats = ?3, last_heartbeat_time = ?4",
            (worker_id, status, None if stats is None else _encode(stats).decode(), now),
        )
        return self._workers("WHERE worker_id = ?", worker_id)[0]

    def mark_busy(self, worker_id: str, attempt: AttemptRow, now: float) -> None:
        self._sql(
            "INSERT INTO workers (worker_id, status, last_dequeue_time, last_busy_time, current_rollout_id, "
            "current_attempt_id) VALUES (?1, 'busy', ?2, ?2, ?3, ?4) ON CONFLICT DO UPDATE SET status = 'busy', "
            "last_dequeue_time = ?2, last_busy_time = ?2, current_rollout_id = ?3, current_attempt_id = ?4",
            (worker_id, now, attempt.rollout_id, attempt.attempt_id),
        )

    def mark_idle(self, worker_id: str, now: float) -> None:
        self._sql(
            "UPDATE workers SET status = 'idle', last_idle_time = ?2, current_rollout_id = NULL, "
            "current_attempt_id = NULL WHERE worker_id = ?1 AND NOT EXISTS "
            "(SELECT 1 FROM attempts a WHERE a.worker_id = ?1 AND a.end_time IS NULL)",
            (worker_id, now),
        )

    def workers(
        self, status_in: frozenset[WorkerStatus] | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Worker]:
        conditions, values = [_condition(match) for match in matches], [match.value for match in matches]
        if status_in is not None:
            conditions.append(f"status IN ({_marks(status_in)})")
            values += status_in
        where = f"WHERE {f' {logic} '.join(conditions)}" if conditions else ""
        total = self._one(f"SELECT count(*) FROM workers {where}", *values)[0]
        order = page.sort_by or "worker_id"
        items = self._workers(
            f"{where} ORDER BY {order} {page.sort_order}, worker_id {page.sort_order} LIMIT ? OFFSET ?",
            *values,
            page.limit,
            page.offset,
        )
        return PaginatedResult(items, page.limit, page.offset, total)

    # -- bodies and sizes ----------------------------------------------------------------------------

    def pack(self, value: Any, what: str) -> Any:
        return None if value is None else self._keep(encode_equal(value, what))

    def unpack(self, value: Any) -> Any:
        return None if value is None else _decode(self._fetch(value))

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

    def _fetch(self, text: str) -> str | bytes:
        if not text.startswith("@"):
            return text
        data: bytes = self._one("SELECT data FROM blobs WHERE hash = ?", text[1:])[0]
        return data

    def _count(self, name: str, change: int) -> None:
        self._sql("UPDATE counters SET value = value + ? WHERE name = ?", (change, name))

    def counts(self) -> Counts:
        sums = dict(self._sql("SELECT name, value FROM counters WHERE name IN ('attempts', 'spans')"))
        return Counts(
            self._counters(),
            sums["attempts"],
            self._one("SELECT count(*) FROM attempts WHERE end_time IS NULL")[0],
            sums["spans"],
            self._one("SELECT count(*) FROM resources")[0],
            self._one("SELECT count(*) FROM workers")[0],
            self._one("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")[0],
        )


_INSERT_SPAN = (
    "INSERT OR IGNORE INTO spans (number, attempt, sequence_id, span_id, trace_id, parent_id, name, start_time, "
    "end_time, data) VALUES (?,?,?,?,?,?,?,?,?,?)"
)


def _chunks(values: Sequence[Any]) -> list[Sequence[Any]]:
    return [values[start : start + CHUNK] for start in range(0, len(values), CHUNK)]


def _marks(values: Iterable[Any]) -> str:
    return ",".join("?" for _ in values)


def _condition(match: Match) -> str:
    return f"instr({match.field}, ?) > 0" if match.contains else f"{match.field} = ?"


def _matching(matches: list[Match], logic: FilterLogic) -> tuple[str, list[str]]:
    if not matches:
        return "", []
    together = f" {logic} ".join(_condition(match) for match in matches)
    return f" AND ({together})", [match.value for match in matches]


def _conditions(wanted: RolloutFilter, *, with_status: bool = True) -> tuple[str, list[Any]]:
    """The WHERE clause; the statuses may be left to a caller who asks for each by its index."""
    parts: list[str] = []
    values: list[Any] = []

    def add(condition: str, *given: Any) -> None:
        parts.append(condition)
        values.extend(given)

    if wanted.status_in is not None and with_status:
        add(f"r.status IN ({_marks(wanted.status_in)})", *wanted.status_in)
    if wanted.rollout_id_in is not None:
        add("r.rollout_id IN (SELECT value FROM json_each(?))", _encode(sorted(wanted.rollout_id_in)).decode())
    if wanted.rollout_id_contains is not None:
        add("instr(r.rollout_id, ?) > 0", wanted.rollout_id_contains)
    if wanted.mode is not None:
        add("r.mode = ?", wanted.mode)
    if wanted.reward_min is not None:
        add("r.reward >= ?", wanted.reward_min)
    if wanted.reward_max is not None:
        add("r.reward <= ?", wanted.reward_max)
    if not parts:
        return "WHERE 1", values
    return f"WHERE ({f' {wanted.logic} '.join(parts)})", values
