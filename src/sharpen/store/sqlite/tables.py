"""The tables of the store in a SQLite file, on one connection.

How many rollouts are where stands in a table of its own, `totals`, so that no question has to count them. Columns that
stand in indexes are written only where they change. Tasks, metadata and the bodies of spans are JSON text; one of more
than 64 kB is kept once, by its hash, and the row holds `@hash`.
"""

import hashlib
import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ...types import Rollout, RolloutStatus, Span
from ..database import WorkerTimes
from ..sql.rows import (
    NO_ATTEMPT,
    PHASE_AT,
    PLACE_AT,
    Condition,
    RolloutRecord,
    Row,
    body_values,
    encode,
    joined,
    marks,
    restore_rollout,
    restore_span,
)
from ..sql.search import Source
from ..sql.tables import SQLTables
from ..tables import AttemptRow, Counts, RolloutRow, body_of, refused_span
from ..task_json import decode_equal, encode_equal
from ..transitions import FINISHED, PHASES
from .schema import GROUP

BLOB_BYTES = 64 * 1024
CHUNK = 500  # values in one IN (...); SQLite allows 32,766
STEPS_BETWEEN_LOOKS = 5_000  # of SQLite's machine, between two looks at the clock

TOTALS = ("queuing", "requeuing", "active", "succeeded", "failed", "cancelled", "finished", "attempts", "spans_gone")
_UPDATE_TOTALS = f"UPDATE totals SET {', '.join(f'{name} = {name} + ?' for name in TOTALS)}"
_INSERT_ROLLOUT = (
    "INSERT INTO rollouts (number, rollout_id, status, phase, place, start_time, mode, resources_id, "
    "resources_version, config, input, metadata, attempts, last_span) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,0,0)"
)
_INSERT_SPAN = (
    "INSERT INTO spans (number, attempt, sequence_id, span_id, trace_id, parent_id, name, start_time, end_time, data) "
    "VALUES (?,?,?,?,?,?,?,?,?,?)"
)
# Bit by bit, the indexed columns that an update names.
_PLAIN = (
    "status = ?, end_time = ?, reward_span = ?, attempts = ?, last_span = ?, attempt_id = ?, "
    "attempt_start = ?, attempt_end = ?, attempt_status = ?, heartbeat = ?, attempt_metadata = ?"
)
_INDEXED = ("phase = ?, place = ?", "deadline = ?", "worker_id = ?", "unwanted = ?", "request_id = ?", "reward = ?")
_UPDATES = [
    f"UPDATE rollouts SET {', '.join([_PLAIN, *(_INDEXED[bit] for bit in range(6) if case >> bit & 1)])} "
    "WHERE number = ?"
    for case in range(64)
]
_BODIES = (
    ("rollouts", "input"),
    ("rollouts", "metadata"),
    ("rollouts", "attempt_metadata"),
    ("old_attempts", "metadata"),
    ("spans", "data"),
)


class SQLiteRollout(RolloutRecord):
    """A rollout, and its indexed columns as they stand in the file."""

    was: tuple[Any, ...] = (None, None, False, None, None)
    """Deadline, worker, whether unwanted, request, reward."""


class SQLiteTables(SQLTables):
    """Everything that the rules need, inside the caller's transaction."""

    rollout_row = SQLiteRollout
    open_of_worker = "phase = 'active' AND place = ?"
    finish_column = "CASE WHEN phase IN ('succeeded', 'failed', 'cancelled') THEN place END"

    def __init__(self, connection: sqlite3.Connection, worker_times: WorkerTimes) -> None:
        super().__init__(worker_times)
        self.connection = connection
        self.write_many = connection.executemany
        self._sql = connection.execute
        self._sums: dict[str, int] = {}
        self._sums_before: dict[str, int] = {}
        self._finish_number: int | None = None
        self._has_group_index = self._has_large = False

    def rows(self, sql: str, *values: Any) -> list[Row]:
        return self._sql(sql, values).fetchall()

    def query(self, sql: str, values: Sequence[Any]) -> list[Row]:
        return self._sql(sql, values).fetchall()

    def one(self, sql: str, *values: Any) -> Any:
        return self._sql(sql, values).fetchone()

    def write(self, sql: str, *values: Any) -> None:
        self._sql(sql, values)

    # -- one method ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """A method starts: what it counts can be undone."""
        self._sums_before = dict(self._sums)
        self._requested = 0

    def undo(self) -> None:
        """The method failed: nothing of it is written or counted."""
        self.forget()
        self._sums = self._sums_before
        self._finish_number = None

    def flush(self) -> None:
        """Write the rollouts that the method changed, each in one statement."""
        for row in self._dirty.values():
            assert isinstance(row, SQLiteRollout)
            self._update(row)
        self.forget()

    def flush_sums(self) -> None:
        """Write the totals, once a transaction."""
        if self._sums:
            self._sql(_UPDATE_TOTALS, [self._sums.get(name, 0) for name in TOTALS])
        self.forget_sums()

    def forget_sums(self) -> None:
        self._sums = {}
        self._finish_number = None

    def _add(self, name: str, change: int) -> None:
        self._sums[name] = self._sums.get(name, 0) + change

    def _load(self, values: Row) -> RolloutRecord:
        known = self._loaded.get(values[0])
        if known is None:
            known = self._loaded[values[0]] = row = restore_rollout(SQLiteRollout, values)
            row.was = _indexed(row)
        return known

    def _update(self, row: SQLiteRollout) -> None:
        latest = row.latest or NO_ATTEMPT
        values: list[Any] = [
            row.status,
            row.end_time,
            row.reward_span,
            row.attempts,
            row.last_span,
            latest.attempt_id or None,
            latest.start_time,
            latest.end_time,
            latest.status,
            latest.last_heartbeat_time,
            latest.metadata,
        ]
        case, (phase, place) = 0, self._position(row)
        if phase != row.phase or place != row.place:
            case = 1
            values += (phase, place)
        for bit, (value, was) in enumerate(zip(_indexed(row), row.was, strict=True), start=1):
            if value != was:
                case |= 1 << bit
                values.append(value)
        self._sql(_UPDATES[case], (*values, row.number))

    def _position(self, row: SQLiteRollout) -> tuple[str, Any]:
        """Phase and place, as they follow from the status."""
        phase = PHASES[row.status]
        if phase == "active":
            return phase, (row.latest and row.latest.worker_id) or ""
        if phase == row.phase:
            return phase, row.place
        return phase, self._next_place() if phase == "queued" else self._next_finish()

    def _next_place(self) -> int:
        return int(self.one("SELECT max(place) FROM rollouts WHERE phase = 'queued'")[0] or 0) + 1

    def _next_finish(self) -> int:
        if self._finish_number is None:
            self._finish_number = self.last_finish() + self._sums.get("finished", 0)
        self._finish_number += 1
        self._add("finished", 1)
        return self._finish_number

    # -- rollouts ------------------------------------------------------------------------------------

    def add_rollouts(self, rows: list[RolloutRow]) -> None:
        if not rows:
            return
        number = int(self.one("SELECT max(number) FROM rollouts")[0] or 0)
        place = self._next_place() - 1
        inserted = []
        for row in rows:
            assert isinstance(row, SQLiteRollout)
            number, place = number + 1, place + 1
            row.number, row.phase = number, PHASES[row.status]
            row.place = place if row.phase == "queued" else ""
            self._loaded[row.rollout_id] = row
            self._add(row.status if row.phase == "queued" else row.phase, 1)
            inserted.append(
                (number, row.rollout_id, row.status, row.phase, row.place, row.start_time, *body_values(row))
            )
        self.write_many(_INSERT_ROLLOUT, inserted)

    def save_rollout(self, row: RolloutRow, old_status: RolloutStatus) -> None:
        self._touch(row)
        if row.status != old_status:
            old, new = _total_of(old_status), _total_of(row.status)
            if old != new:
                self._add(old, -1)
                self._add(new, 1)

    def queue_length(self) -> int:
        return int(self.one("SELECT queuing + requeuing FROM totals")[0])

    def queue_head(self, limit: int) -> list[RolloutRow]:
        found = self.rows(f"{self.both} WHERE phase = 'queued' ORDER BY place LIMIT ?", self.limit(limit))
        return [self._load(values) for values in found]

    def add_attempt(self, row: AttemptRow) -> None:
        super().add_attempt(row)
        self._add("attempts", 1)

    def finished(self, after: int, limit: int) -> list[tuple[int, Rollout]]:
        """The three ways to finish, each in order, merged by their numbers."""
        found: list[Row] = []
        for phase in FINISHED:
            found += self.rows(
                f"{self.both} WHERE phase = ? AND place > ? ORDER BY place LIMIT ?", phase, after, self.limit(limit)
            )
        found.sort(key=lambda values: int(values[PLACE_AT]))
        return [(values[PLACE_AT], self.public(values)) for values in found[:limit]]

    def last_finish(self) -> int:
        return int(self.one("SELECT finished FROM totals")[0])

    def totals(self, statuses: Iterable[str] = ()) -> dict[str, int]:
        """Rollouts by status. Those at work are counted: there are never more than workers have hands."""
        values = self.one(f"SELECT {', '.join(TOTALS[:6])} FROM totals")
        totals = {name: value for name, value in zip(TOTALS[:6], values, strict=True) if name != "active"}
        return totals | dict(self.rows("SELECT status, count(*) FROM rollouts WHERE phase = 'active' GROUP BY status"))

    def in_phase(self, phase: str, order: str) -> tuple[str, str]:
        return f"phase = '{phase}'", f"place {order}, number {order}"

    def any_of(self, column: str, values: Sequence[Any]) -> Condition:
        return f"{column} IN (SELECT value FROM json_each(?))", [msgspec.json.encode(values).decode()]

    def delete_finished_before(self, time: float) -> int:
        numbers = [
            number
            for (number,) in self.rows(
                "SELECT number FROM rollouts WHERE phase IN ('succeeded', 'failed', 'cancelled') AND end_time < ?", time
            )
        ]
        for start in range(0, len(numbers), CHUNK):
            self._delete(numbers[start : start + CHUNK])
        return len(numbers)

    def _delete(self, numbers: Sequence[int]) -> None:
        these = marks(numbers)
        refs: list[Row] = []
        for table, column in _BODIES:
            large = f"number IN ({these}) AND substr({column}, 1, 1) = '@'"
            refs += self.query(f"SELECT {column} FROM {table} WHERE {large}", numbers)
        self.write_many("UPDATE blobs SET uses = uses - 1 WHERE hash = substr(?, 2)", refs)
        if refs:
            self.write("DELETE FROM blobs WHERE uses <= 0")
        spans = self._span_total() - self._sql(f"DELETE FROM spans WHERE number IN ({these})", numbers).rowcount
        self.write("UPDATE totals SET spans_gone = coalesce((SELECT max(id) FROM spans), 0) - ?", spans)
        self.write(f"DELETE FROM old_attempts WHERE number IN ({these})", *numbers)
        for phase, count, attempts in self.query(
            f"SELECT phase, count(*), sum(attempts) FROM rollouts WHERE number IN ({these}) GROUP BY phase", numbers
        ):
            self._add(phase, -count)
            self._add("attempts", -attempts)
        self.write(f"DELETE FROM rollouts WHERE number IN ({these})", *numbers)

    def _span_total(self) -> int:
        """Ids of spans only grow, so the newest one is how many there were."""
        return int(self.one("SELECT coalesce((SELECT max(id) FROM spans), 0) - spans_gone FROM totals")[0])

    def counts(self) -> Counts:
        return Counts(
            self.totals(),
            self.one("SELECT attempts FROM totals")[0],
            self.one("SELECT count(*) FROM rollouts WHERE phase = 'active' AND attempts > 0 AND attempt_end IS NULL")[
                0
            ],
            self._span_total(),
            self.one("SELECT count(*) FROM resources")[0],
            self.known_workers(),
            self.one("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")[0],
        )

    # -- spans ---------------------------------------------------------------------------------------

    def missing_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: Sequence[Span]) -> list[bool]:
        if not rollout.last_span:  # the first spans of a rollout are new
            return [True] * len(spans)
        ids, known = [span.span_id for span in spans], set[str]()
        for start in range(0, len(ids), CHUNK):
            part = ids[start : start + CHUNK]  # as they are: JSON ends for SQLite where a text has a NUL
            sql = f"SELECT span_id FROM spans WHERE number = ? AND attempt = ? AND span_id IN ({marks(part)})"
            known |= {span_id for (span_id,) in self.query(sql, (rollout.number, attempt.sequence_id, *part))}
        return [span_id not in known for span_id in ids]

    def add_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: list[Span]) -> None:
        rows = [
            (
                rollout.number,
                attempt.sequence_id,
                span.sequence_id,
                span.span_id,
                span.trace_id,
                span.parent_id,
                span.name,
                span.start_time,
                span.end_time,
                self._keep(_encoded_body(span)),
            )
            for span in spans
        ]
        self.write_many(_INSERT_SPAN, rows)

    def restore_span(self, rollout_id: str, attempts: dict[int, str], values: Row) -> Span:
        return restore_span(rollout_id, attempts, values[:8], self._fetch(values[8]))

    # -- bodies --------------------------------------------------------------------------------------

    def pack(self, value: Any, what: str) -> Any:
        return None if value is None else self._keep(encode_equal(value, what))

    def unpack(self, value: Any, what: str) -> Any:
        return None if value is None else decode_equal(self._fetch(value), what)

    def _keep(self, encoded: bytes) -> str:
        """The text for the row: the JSON itself or, where it is large, a reference to where it is kept once."""
        if len(encoded) <= BLOB_BYTES:
            return encoded.decode()
        digest = hashlib.sha256(encoded).hexdigest()
        self.write(
            "INSERT INTO blobs (hash, uses, data) VALUES (?, 1, ?) ON CONFLICT (hash) DO UPDATE SET uses = uses + 1",
            digest,
            encoded,
        )
        return f"@{digest}"

    def drop(self, value: Any) -> None:
        """A body that was packed is no longer needed: forget a large one after its last use."""
        if value is not None and value.startswith("@"):
            self.write("UPDATE blobs SET uses = uses - 1 WHERE hash = ?", value[1:])
            self.write("DELETE FROM blobs WHERE hash = ? AND uses <= 0", value[1:])

    def _fetch(self, text: str) -> str | bytes:
        if not text.startswith("@"):
            return text
        data: bytes = self.one("SELECT data FROM blobs WHERE hash = ?", text[1:])[0]
        return data

    # -- searching -----------------------------------------------------------------------------------

    def begin_search(self) -> None:
        made = {name for (name,) in self.rows("SELECT name FROM sqlite_master WHERE tbl_name = 'rollouts'")}
        self.has_reward_index = "rollouts_reward" in made  # not in a file of an older version that is only read
        self._has_group_index = "rollouts_group" in made
        self._has_large = self.one("SELECT 1 FROM blobs LIMIT 1") is not None

    def query_in_time(self, sql: str, values: Sequence[Any], seconds: float | None) -> list[Row] | None:
        if seconds is None:
            return self.query(sql, values)
        end = time.monotonic() + seconds
        self.connection.set_progress_handler(lambda: time.monotonic() > end, STEPS_BETWEEN_LOOKS)
        try:
            return self.query(sql, values)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            return None
        finally:
            self.connection.set_progress_handler(None, 0)

    def totals_in_time(self, statuses: Iterable[str]) -> dict[str, int]:
        return self.totals()

    def finish_of(self, row: Row) -> int:
        return row[PLACE_AT] if row[PHASE_AT] in FINISHED else 0

    def by_number(self, where: str) -> Source:
        return Source("rollouts NOT INDEXED", where)

    def by_reward(self, where: str, values: Sequence[Any]) -> Source:
        return Source("rollouts INDEXED BY rollouts_reward", where, values)

    def phase_sources(self, phases: Sequence[str]) -> list[Source] | None:
        return [Source("rollouts INDEXED BY rollouts_place", f"phase IN ({marks(phases)})", phases)]

    def finished_between(self, phases: Sequence[str], first: int, last: int) -> tuple[Source, str]:
        where = f"phase IN ({marks(phases)}) AND place BETWEEN ? AND ?"
        return Source("rollouts INDEXED BY rollouts_place", where, (*phases, first, last)), "place DESC"

    def group_source(self, group: str) -> Source | None:
        if not self._has_group_index:
            return None
        where = f"metadata IS NOT NULL AND {GROUP} IN (?, '@')"
        return Source("rollouts INDEXED BY rollouts_group", where, (group,))

    def has_group(self, group: str) -> Condition:
        """Parsing is dear, so it is done only where the words are there."""
        # Large metadata has the group "@" in SQL, and a true group of that name is told apart by the words.
        written = f'"group":{msgspec.json.encode(group).decode()}'
        found: list[Condition] = [(f"instr(metadata, ?) > 0 AND {GROUP} = ?", [written, group])]
        if self._has_large:
            found.append((_large("metadata", "json_extract(CAST(data AS TEXT), '$.group') = ?"), [group]))
        return joined(found, "or")

    def has_text(self, needles: Sequence[str]) -> Condition:
        found, like = list[Condition](), "LIKE ? ESCAPE '!'"
        for needle in needles:
            escaped = "".join(f"!{character}" if character in "!%_" else character for character in needle)
            pattern = f"%{escaped}%"
            found.append((f"rollout_id {like}", [pattern]))
            for column in ("input", "metadata"):
                found.append((f"({column} {like} AND {column} NOT LIKE '@%')", [pattern]))
                if self._has_large:
                    found.append((f"({_large(column, f'CAST(data AS TEXT) {like}')})", [pattern]))
        return joined(found, "or")


def _indexed(row: SQLiteRollout) -> tuple[Any, ...]:
    latest = row.latest or NO_ATTEMPT
    return latest.deadline, latest.worker_id, latest.unwanted, latest.request_id, row.reward


def _encoded_body(span: Span) -> bytes:
    try:
        return encode(body_of(span))
    except (TypeError, ValueError) as error:
        raise refused_span(span, error) from None


def _total_of(status: str) -> str:
    phase = PHASES[status]
    return status if phase == "queued" else phase


def _large(column: str, test: str) -> str:
    """A test of a body that is kept elsewhere for its size: the row holds `@hash`, as no JSON begins."""
    data = f"SELECT 1 FROM blobs WHERE hash = substr({column}, 2) AND {test}"
    return f"{column} >= '@' AND {column} < 'A' AND EXISTS ({data})"
