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
from .tables import (
    AttemptRow,
    Counts,
    Match,
    Page,
    RolloutFilter,
    RolloutRow,
    paginate,
    public_rollout,
    select_workers,
)
from .transitions import FINISHED, OPEN, PHASES, phases_of

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
    """A rollout row with its latest attempt, and its indexed columns as they stand in the file."""

    latest: "_AttemptRecord | None" = None
    phase: str = ""
    place: Any = None
    was: tuple[Any, ...] = ()


class _AttemptRecord(AttemptRow):
    """An attempt: the latest of its rollout, or one that has been replaced."""

    is_old: bool = False


_ROLLOUT = (
    "rollout_id, input, start_time, mode, resources_id, resources_version, config, metadata, status, end_time, "
    "reward, reward_span, attempts, last_span, number, phase, place"
)
_ATTEMPT = (
    "attempt_id, attempts, attempt_start, attempt_end, attempt_status, worker_id, heartbeat, attempt_metadata, "
    "deadline, unwanted, request_id"
)
_BOTH = f"SELECT {_ROLLOUT}, {_ATTEMPT} FROM rollouts"
_OLD_ATTEMPT = (
    "attempt_id, sequence_id, start_time, end_time, status, worker_id, last_heartbeat_time, metadata, NULL, unwanted, "
    "request_id"
)
_TOTALS = ("queuing", "requeuing", "active", "succeeded", "failed", "cancelled", "finished", "attempts", "spans_gone")
_UPDATE_TOTALS = f"UPDATE totals SET {', '.join(f'{name} = {name} + ?' for name in _TOTALS)}"
_BODIES = (
    ("rollouts", "input"),
    ("rollouts", "metadata"),
    ("rollouts", "attempt_metadata"),
    ("old_attempts", "metadata"),
    ("spans", "data"),
)
_MAX_PLACE = "SELECT max(place) FROM rollouts WHERE phase = 'queued'"


@lru_cache(maxsize=256)
def _config(text: str) -> RolloutConfig:
    return msgspec.json.decode(text, type=RolloutConfig)


def _packed_config(config: RolloutConfig) -> str | None:
    return None if config is _default_config or config == _default_config else _encode(config).decode()


def _attempt_record(rollout_id: str, number: int, values: Sequence[Any], *, is_old: bool) -> _AttemptRecord:
    attempt_id, sequence_id, start, end, status, worker, heartbeat, metadata, deadline, unwanted, request = values
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
        is_old,
    )


def _record(values: Sequence[Any]) -> _Record:
    config = values[6]
    row = _Record(
        *values[:6], _default_config if config is None else _config(config), *values[7:15], None, values[15], values[16]
    )
    if values[17] is not None:
        row.latest = _attempt_record(row.rollout_id, row.number, values[17:28], is_old=False)
    row.was = _indexed(row)
    return row


def _indexed(row: _Record) -> tuple[Any, ...]:
    """Columns that stand in indexes beside phase and place: named in an update only where they change."""
    latest = row.latest
    return (None, None, False, None) if latest is None else (
        latest.deadline, latest.worker_id, latest.unwanted, latest.request_id
    )  # fmt: skip


@lru_cache(maxsize=64)
def _update_sql(moved: bool, changed: tuple[bool, ...]) -> str:
    columns = ["status", "end_time", "reward", "reward_span", "attempts", "last_span", "attempt_id", "attempt_start"]
    columns += ["attempt_end", "attempt_status", "heartbeat", "attempt_metadata"]
    columns += ["phase", "place"] if moved else []
    indexed = ("deadline", "worker_id", "unwanted", "request_id")
    columns += [name for name, is_changed in zip(indexed, changed, strict=True) if is_changed]
    return f"UPDATE rollouts SET {', '.join(f'{name} = ?' for name in columns)} WHERE number = ?"


class WorkerTimes(dict[str, dict[str, float]]):
    """When workers were last seen to claim, work or rest. Written behind, since only people look at it."""

    def note(self, worker_id: str, now: float, *names: str) -> None:
        known = self.setdefault(worker_id, {})
        for name in names:
            known[name] = now


class SQLiteTables:
    """All questions and changes as SQL on one connection, inside the caller's transaction.

    Rollouts that a method touched are written once, by `flush`, when the method has succeeded.
    """

    rollout_row = _Record
    attempt_row = _AttemptRecord

    def __init__(self, connection: sqlite3.Connection, worker_times: WorkerTimes) -> None:
        self.connection = connection
        self._sql = connection.execute
        self._worker_times = worker_times
        self._loaded: dict[str, _Record] = {}
        self._dirty: dict[int, _Record] = {}
        self._sums: dict[str, int] = {}
        self._sums_before: dict[str, int] = {}
        self._finish_number: int | None = None
        self._requested = 0

    def _one(self, sql: str, *values: Any) -> Any:
        return self._sql(sql, values).fetchone()

    # -- the unit of work ----------------------------------------------------------------------------

    def begin(self) -> None:
        """A method starts: what it counts can be undone."""
        self._sums_before = dict(self._sums)
        self._requested = 0

    def forget(self) -> None:
        """Drop what a method read or changed and did not write."""
        self._loaded.clear()
        self._dirty.clear()

    def undo(self) -> None:
        """The method failed: nothing of it is written or counted."""
        self.forget()
        self._sums = self._sums_before
        self._finish_number = None

    def flush(self) -> None:
        """Write the rollouts that the method changed, each in one statement."""
        for row in self._dirty.values():
            self._update(row)
        self.forget()

    def flush_sums(self) -> None:
        """Write the totals, once a transaction."""
        if self._sums:
            self._sql(_UPDATE_TOTALS, [self._sums.get(name, 0) for name in _TOTALS])
        self.forget_sums()

    def forget_sums(self) -> None:
        self._sums = {}
        self._finish_number = None

    def _add(self, name: str, change: int) -> None:
        self._sums[name] = self._sums.get(name, 0) + change

    def _update(self, row: _Record) -> None:
        latest = row.latest
        phase, place = self._position(row)
        moved = (phase, place) != (row.phase, row.place)
        now = _indexed(row)
        changed = tuple(new != old for new, old in zip(now, row.was, strict=True))
        values: list[Any] = [row.status, row.end_time, row.reward, row.reward_span, row.attempts, row.last_span]
        if latest is None:
            values += [None] * 6
        else:
            values += [latest.attempt_id, latest.start_time, latest.end_time, latest.status]
            values += [latest.last_heartbeat_time, latest.metadata]
        values += [phase, place] if moved else []
        values += [value for value, is_changed in zip(now, changed, strict=True) if is_changed]
        self._sql(_update_sql(moved, changed), (*values, row.number))

    def _position(self, row: _Record) -> tuple[str, Any]:
        """Phase and place, as they follow from the status."""
        phase = PHASES[row.status]
        if phase == "active":
            return phase, (row.latest and row.latest.worker_id) or ""
        if phase == row.phase:
            return phase, row.place
        return phase, self._next_place() if phase == "queued" else self._next_finish()

    def _next_place(self) -> int:
        return int(self._one(_MAX_PLACE)[0] or 0) + 1

    def _next_finish(self) -> int:
        if self._finish_number is None:
            self._finish_number = int(self._one("SELECT finished FROM totals")[0]) + self._sums.get("finished", 0)
        self._finish_number += 1
        self._add("finished", 1)
        return self._finish_number

    def _load(self, values: Sequence[Any]) -> _Record:
        known = self._loaded.get(values[0])
        if known is None:
            known = self._loaded[values[0]] = _record(values)
        return known

    # -- rollouts ------------------------------------------------------------------------------------

    def rollout(self, rollout_id: str) -> _Record | None:
        known = self._loaded.get(rollout_id)
        if known is not None:
            return known
        values = self._one(f"{_BOTH} WHERE rollout_id = ?", rollout_id)
        return None if values is None else self._load(values)

    def add_rollouts(self, rows: list[RolloutRow]) -> None:
        if not rows:
            return
        number = int(self._one("SELECT max(number) FROM rollouts")[0] or 0)
        place = self._next_place() - 1
        inserted = []
        for row in rows:
            assert isinstance(row, _Record)
            number, place = number + 1, place + 1
            row.number, row.phase = number, PHASES[row.status]
            row.place = place if row.phase == "queued" else ""
            row.was = _indexed(row)
            self._loaded[row.rollout_id] = row
            self._add(row.status if row.phase == "queued" else row.phase, 1)
            inserted.append(
                (
                    number,
                    row.rollout_id,
                    row.status,
                    row.phase,
                    row.place,
                    row.mode,
                    row.start_time,
                    row.resources_id,
                    row.resources_version,
                    _packed_config(row.config),
                    row.input,
                    row.metadata,
                )
            )
        self.connection.executemany(
            "INSERT INTO rollouts (number, rollout_id, status, phase, place, mode, start_time, resources_id, "
            "resources_version, config, input, metadata, attempts, last_span) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,0,0)",
            inserted,
        )

    def save_rollout(self, row: RolloutRow, old_status: RolloutStatus) -> None:
        assert isinstance(row, _Record)
        self._dirty[row.number] = row
        if row.status != old_status:
            old, new = _total_of(old_status), _total_of(row.status)
            if old != new:
                self._add(old, -1)
                self._add(new, 1)

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
        return int(self._one("SELECT queuing + requeuing FROM totals")[0])

    def queue_head(self, limit: int) -> list[RolloutRow]:
        found = self._sql(f"{_BOTH} WHERE phase = 'queued' ORDER BY place LIMIT ?", (limit,)).fetchall()
        return [self._load(values) for values in found]

    def delete_finished_before(self, time: float) -> int:
        numbers = [
            number
            for (number,) in self._sql(
                "SELECT number FROM rollouts WHERE phase IN ('succeeded', 'failed', 'cancelled') AND end_time < ?",
                (time,),
            )
        ]
        for part in _chunks(numbers):
            self._delete(part)
        return len(numbers)

    def _delete(self, numbers: Sequence[int]) -> None:
        marks = _marks(numbers)
        refs: list[tuple[str]] = []
        for table, column in _BODIES:
            refs += self._sql(
                f"SELECT {column} FROM {table} WHERE number IN ({marks}) AND substr({column}, 1, 1) = '@'", numbers
            )
        self.connection.executemany("UPDATE blobs SET uses = uses - 1 WHERE hash = substr(?, 2)", refs)
        if refs:
            self._sql("DELETE FROM blobs WHERE uses <= 0")
        spans = self._span_total()
        spans -= self._sql(f"DELETE FROM spans WHERE number IN ({marks})", numbers).rowcount
        self._sql("UPDATE totals SET spans_gone = coalesce((SELECT max(id) FROM spans), 0) - ?", (spans,))
        self._sql(f"DELETE FROM old_attempts WHERE number IN ({marks})", numbers)
        for phase, count, attempts in self._sql(
            f"SELECT phase, count(*), sum(attempts) FROM rollouts WHERE number IN ({marks}) GROUP BY phase", numbers
        ):
            self._add(phase, -count)
            self._add("attempts", -attempts)
        self._sql(f"DELETE FROM rollouts WHERE number IN ({marks})", numbers)

    def _span_total(self) -> int:
        """Ids of spans only grow, so the newest one tells how many there were."""
        return int(self._one("SELECT coalesce((SELECT max(id) FROM spans), 0) - spans_gone FROM totals")[0])

    def rollouts(self, wanted: RolloutFilter, page: Page) -> PaginatedResult[Rollout]:
        total = self._total(wanted)
        if page.sort_by is None and wanted.status_in is not None and wanted.logic == "and":
            rows = self._by_status(wanted, page)
        else:
            where, values = _conditions(wanted)
            rows = self._sql(
                f"{_BOTH} {where} ORDER BY {page.sort_by or 'number'} {page.sort_order}, number {page.sort_order} "
                "LIMIT ? OFFSET ?",
                (*values, page.limit, page.offset),
            )
        return PaginatedResult([self._public(values) for values in rows], page.limit, page.offset, total)

    def _by_status(self, wanted: RolloutFilter, page: Page) -> Iterable[Sequence[Any]]:
        """Phase after phase, each in the order of its index: no more rows are read than the page needs."""
        assert wanted.status_in is not None
        where, values = _conditions(wanted)
        skip, left = page.offset, page.limit
        for phase in phases_of(wanted.status_in, reverse=page.sort_order == "desc"):
            found = 0
            for found, row in enumerate(
                self._sql(
                    f"{_BOTH} {where} AND phase = ? ORDER BY place {page.sort_order}, number {page.sort_order} LIMIT ?",
                    (*values, phase, -1 if left < 0 else left + skip),
                ),
                start=1,
            ):
                if found > skip:
                    yield row
            if left >= 0:
                left -= max(found - skip, 0)
                if left == 0:
                    return
            skip = max(skip - found, 0)

    def _total(self, wanted: RolloutFilter) -> int:
        rest = (wanted.rollout_id_in, wanted.rollout_id_contains, wanted.mode, wanted.reward_min, wanted.reward_max)
        if any(condition is not None for condition in rest):
            where, values = _conditions(wanted)
            return int(self._one(f"SELECT count(*) FROM rollouts {where}", *values)[0])
        return sum(n for status, n in self._totals().items() if wanted.status_in is None or status in wanted.status_in)

    def _totals(self) -> dict[str, int]:
        """Rollouts by status. Those at work are counted: there are never more than workers have hands."""
        values = self._one(f"SELECT {', '.join(_TOTALS[:6])} FROM totals")
        totals = {name: value for name, value in zip(_TOTALS[:6], values, strict=True) if name != "active"}
        return totals | dict(self._sql("SELECT status, count(*) FROM rollouts WHERE phase = 'active' GROUP BY status"))

    def _public(self, values: Sequence[Any]) -> Rollout:
        return public_rollout(_record(values), self.unpack)

    def finished(self, after: int, limit: int) -> list[tuple[int, Rollout]]:
        """The three ways to finish, each in order, merged by their numbers."""
        found: list[Sequence[Any]] = []
        for phase in FINISHED:
            found += self._sql(f"{_BOTH} WHERE phase = ? AND place > ? ORDER BY place LIMIT ?", (phase, after, limit))
        found.sort(key=lambda values: values[16])
        return [(values[16], self._public(values)) for values in found[:limit]]

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
        if latest is not None and latest.attempt_id == attempt_id:
            return latest
        if rollout.attempts < 2:
            return None
        values = self._one(
            f"SELECT {_OLD_ATTEMPT} FROM old_attempts WHERE number = ? AND attempt_id = ?", rollout.number, attempt_id
        )
        return values and _attempt_record(rollout.rollout_id, rollout.number, values, is_old=True)

    def latest_attempt(self, rollout: RolloutRow) -> AttemptRow | None:
        assert isinstance(rollout, _Record)
        return rollout.latest

    def attempts(self, rollout: RolloutRow) -> list[AttemptRow]:
        latest = self.latest_attempt(rollout)
        old = self._sql(
            f"SELECT {_OLD_ATTEMPT} FROM old_attempts WHERE number = ? ORDER BY sequence_id", (rollout.number,)
        )
        found: list[AttemptRow] = [
            _attempt_record(rollout.rollout_id, rollout.number, values, is_old=True) for values in old
        ]
        return found if latest is None else [*found, latest]

    def add_attempt(self, row: AttemptRow) -> None:
        assert isinstance(row, _AttemptRecord)
        rollout = self._loaded[row.rollout_id]
        if rollout.latest is not None:
            self._retire(rollout.latest)
        if row.request_id is not None:
            self._requested += 1
            row.request_id = f"{row.request_id}#{self._requested:05d}"
        rollout.latest = row
        self._dirty[rollout.number] = rollout
        self._add("attempts", 1)

    def _retire(self, row: _AttemptRecord) -> None:
        self._sql(
            "INSERT INTO old_attempts (number, sequence_id, attempt_id, start_time, end_time, status, worker_id, "
            "last_heartbeat_time, metadata, unwanted, request_id) VALUES (?,?,?,?,?,?,?,?,?,?,?)",
            (
                row.number,
                row.sequence_id,
                row.attempt_id,
                row.start_time,
                row.end_time,
                row.status,
                row.worker_id,
                row.last_heartbeat_time,
                row.metadata,
                row.unwanted,
                row.request_id,
            ),
        )

    def save_attempt(self, row: AttemptRow) -> None:
        assert isinstance(row, _AttemptRecord)
        if not row.is_old:
            self._dirty[row.number] = self._loaded[row.rollout_id]
            return
        self._sql(
            "UPDATE old_attempts SET status = ?, end_time = ?, worker_id = ?, last_heartbeat_time = ?, metadata = ?, "
            "unwanted = ? WHERE number = ? AND sequence_id = ?",
            (
                row.status,
                row.end_time,
                row.worker_id,
                row.last_heartbeat_time,
                row.metadata,
                row.unwanted,
                row.number,
                row.sequence_id,
            ),
        )

    def _latest_of(self, where: str, *values: Any) -> list[tuple[RolloutRow, AttemptRow]]:
        rows = [self._load(found) for found in self._sql(f"{_BOTH} WHERE {where}", values).fetchall()]
        return [(row, row.latest) for row in rows if row.latest is not None]

    def claimed(self, request_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        """The attempts of a request in the order of its answer, replaced ones included."""
        bounds = f"{request_id}#", f"{request_id}$"
        found = self._latest_of("request_id > ? AND request_id < ?", *bounds)
        for values in self._sql(
            f"SELECT number, {_OLD_ATTEMPT} FROM old_attempts WHERE request_id > ? AND request_id < ?", bounds
        ).fetchall():
            row = self._load(self._one(f"{_BOTH} WHERE number = ?", values[0]))
            found.append((row, _attempt_record(row.rollout_id, row.number, values[1:], is_old=True)))
        return sorted(found, key=lambda pair: pair[1].request_id or "")

    def open_attempts(self, worker_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        found = self._latest_of("phase = 'active' AND place = ?", worker_id)
        return [(row, attempt) for row, attempt in found if attempt.status in OPEN]

    def unwanted(self, worker_id: str) -> list[str]:
        found = self._sql(
            "SELECT attempt_id FROM rollouts WHERE worker_id = ?1 AND unwanted UNION ALL "
            "SELECT attempt_id FROM old_attempts WHERE worker_id = ?1 AND unwanted",
            (worker_id,),
        )
        return [attempt_id for (attempt_id,) in found]

    def due(self, now: float) -> list[tuple[RolloutRow, AttemptRow]]:
        return self._latest_of("deadline <= ? ORDER BY deadline", now)

    def next_deadline(self) -> float | None:
        found: float | None = self._one("SELECT min(deadline) FROM rollouts WHERE deadline IS NOT NULL")[0]
        return found

    # -- spans ---------------------------------------------------------------------------------------

    def missing_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: Sequence[Span]) -> list[bool]:
        if not rollout.last_span:  # the first spans of a rollout are new
            return [True] * len(spans)
        known: set[str] = set()
        for part in _chunks([span.span_id for span in spans]):
            known |= {
                span_id
                for (span_id,) in self._sql(
                    f"SELECT span_id FROM spans WHERE number = ? AND attempt = ? AND span_id IN ({_marks(part)})",
                    (rollout.number, attempt.sequence_id, *part),
                )
            }
        return [span.span_id not in known for span in spans]

    def add_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: list[Span]) -> None:
        rows = [self._span_values(rollout.number, attempt.sequence_id, span) for span in spans]
        self.connection.executemany(_INSERT_SPAN, rows)

    def _span_values(self, number: int, sequence: int, span: Span) -> tuple[Any, ...]:
        body = _Body(span.status, span.attributes, span.events, span.links, span.context, span.parent, span.resource)
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
        found = self._sql(f"SELECT resources_id, create_time, update_time, version, data FROM resources {rest}", values)
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

    def all_resources(self, matches: list[Match], logic: FilterLogic, page: Page) -> PaginatedResult[ResourcesUpdate]:
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

    def worker(self, worker_id: str) -> Worker | None:
        values = self._one("SELECT * FROM workers WHERE worker_id = ?", worker_id)
        if values is None and worker_id not in self._worker_times:
            return None
        return self._worker(values or (worker_id, None, None, None, None, None))

    def _worker(self, values: Sequence[Any]) -> Worker:
        """A worker from its row, what was noted since, and what it has in hand."""
        worker_id, stats, heartbeat, *times = values
        noted = self._worker_times.get(worker_id, {})
        dequeue, busy, idle = (noted.get(name, old) for name, old in zip(_TIMES, times, strict=True))
        current = self._one(
            "SELECT rollout_id, attempt_id FROM rollouts WHERE phase = 'active' AND place = ? "
            "AND attempt_status IN ('preparing', 'running') ORDER BY attempt_start DESC LIMIT 1",
            worker_id,
        )
        return Worker(
            worker_id,
            "busy" if current else "idle",
            None if stats is None else _decode(stats),
            heartbeat,
            dequeue,
            busy,
            idle,
            *(current or (None, None)),
        )

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
        rows = [(worker_id, *(times.get(name) for name in _TIMES)) for worker_id, times in self._worker_times.items()]
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
        for worker_id in self._worker_times:
            rows.setdefault(worker_id, (worker_id, None, None, None, None, None))
        found = [self._worker(values) for values in rows.values()]
        return paginate(select_workers(found, status_in, matches, logic), page)

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

    def drop(self, value: Any) -> None:
        """A body that was packed is no longer needed: forget a large one after its last use."""
        if value is not None and value.startswith("@"):
            self._sql("UPDATE blobs SET uses = uses - 1 WHERE hash = ?", (value[1:],))
            self._sql("DELETE FROM blobs WHERE hash = ? AND uses <= 0", (value[1:],))

    def _fetch(self, text: str) -> str | bytes:
        if not text.startswith("@"):
            return text
        data: bytes = self._one("SELECT data FROM blobs WHERE hash = ?", text[1:])[0]
        return data

    def counts(self) -> Counts:
        return Counts(
            self._totals(),
            self._one("SELECT attempts FROM totals")[0],
            self._one("SELECT count(*) FROM rollouts WHERE phase = 'active' AND attempt_end IS NULL")[0],
            self._span_total(),
            self._one("SELECT count(*) FROM resources")[0],
            len({row[0] for row in self._sql("SELECT worker_id FROM workers")} | self._worker_times.keys()),
            self._one("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")[0],
        )


_TIMES = ("last_dequeue_time", "last_busy_time", "last_idle_time")
_INSERT_SPAN = (
    "INSERT INTO spans (number, attempt, sequence_id, span_id, trace_id, parent_id, name, start_time, "
    "end_time, data) VALUES (?,?,?,?,?,?,?,?,?,?)"
)


def _chunks(values: Sequence[Any]) -> list[Sequence[Any]]:
    return [values[start : start + CHUNK] for start in range(0, len(values), CHUNK)]


def _marks(values: Iterable[Any]) -> str:
    return ",".join("?" for _ in values)


def _total_of(status: str) -> str:
    phase = PHASES[status]
    return status if phase == "queued" else phase


def _condition(match: Match) -> str:
    return f"instr({match.field}, ?) > 0" if match.contains else f"{match.field} = ?"


def _matching(matches: list[Match], logic: FilterLogic) -> tuple[str, list[str]]:
    if not matches:
        return "", []
    together = f" {logic} ".join(_condition(match) for match in matches)
    return f" AND ({together})", [match.value for match in matches]


def _conditions(wanted: RolloutFilter) -> tuple[str, list[Any]]:
    """The WHERE clause."""
    parts: list[str] = []
    values: list[Any] = []

    def add(condition: str, *given: Any) -> None:
        parts.append(condition)
        values.extend(given)

    if wanted.status_in is not None:
        add(f"status IN ({_marks(wanted.status_in)})", *wanted.status_in)
    if wanted.rollout_id_in is not None:
        add("rollout_id IN (SELECT value FROM json_each(?))", _encode(sorted(wanted.rollout_id_in)).decode())
    if wanted.rollout_id_contains is not None:
        add("instr(rollout_id, ?) > 0", wanted.rollout_id_contains)
    if wanted.mode is not None:
        add("mode = ?", wanted.mode)
    if wanted.reward_min is not None:
        add("reward >= ?", wanted.reward_min)
    if wanted.reward_max is not None:
        add("reward <= ?", wanted.reward_max)
    if not parts:
        return "WHERE 1", values
    return f"WHERE ({f' {wanted.logic} '.join(parts)})", values
