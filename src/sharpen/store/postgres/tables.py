"""The tables of the store in PostgreSQL, on one connection.

The rollouts that a method may change are locked when it reads them. What can be known before the rules run is asked for
together with BEGIN, and what they changed is written together with COMMIT, so that most methods take two round trips.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from psycopg.errors import QueryCanceled

from ...types import ResourcesUpdate, Rollout, Span
from ..database import WorkerTimes
from ..search import SEARCH_SECONDS
from ..sql.rows import (
    COLUMNS,
    EXTRA_AT,
    NO_ATTEMPT,
    Condition,
    RolloutRecord,
    Row,
    body_values,
    bounded,
    encode,
    findable,
    joined,
    restore_span,
)
from ..sql.search import Source
from ..sql.tables import SQLTables
from ..tables import AttemptRow, Counts, RolloutRow, body_of, refused_span
from ..task_json import decode_equal, encode_equal
from ..transitions import FINISHED, PHASES, phases_of
from .connection import Lost, Query, Session, Statement, Value, numbered, prepared

BATCH = 400  # statements that travel together
PRUNED_AT_ONCE = 1000
MARKS_LENGTH = 64  # of the marks of the last transactions that wrote a row, beside that of the first
LONGEST_GROUP = 500  # bytes; an index takes no more than some 2,000
COPIED_SPANS = 20  # more are sent by COPY, fewer one by one

_BEGIN = Statement("BEGIN")
_BEGIN_READING = Statement("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_COMMIT = Statement("COMMIT")
# Questions of people are planned each for itself.
_PLAN_FREELY = Statement(
    "SELECT set_config('plan_cache_mode', 'force_custom_plan', true), set_config('enable_seqscan', 'on', true)"
)
# No other way of reading than indexes keeps a bound, and no program is worth being compiled for one window.
_SEARCH: list[Query] = [("SET LOCAL enable_seqscan = off", ()), ("SET LOCAL jit = off", ())]

_STATE = (
    "status, phase, end_time, reward, reward_span, attempts, last_span, spans, attempt_id, attempt_start, attempt_end, "
    "attempt_status, worker_id, heartbeat, attempt_metadata, deadline, unwanted, request_id, changes"
)
_SET = ", ".join(f"{name} = ?" for name in _STATE.split(", "))
_STAYS = f"UPDATE rollouts SET {_SET} WHERE number = ?"
_MOVES = {
    "queued": f"UPDATE rollouts SET {_SET}, place = nextval('places') WHERE number = ?",
    "active": f"UPDATE rollouts SET {_SET}, place = NULL WHERE number = ?",
} | dict.fromkeys(FINISHED, f"UPDATE rollouts SET {_SET}, place = NULL, finish = nextval('finishes') WHERE number = ?")
_BODY = "mode, resources_id, resources_version, config, input, metadata, group_name, rollout_id, start_time"
_INSERT = {
    is_queued: f"INSERT INTO rollouts ({_STATE}, {_BODY}, place) "
    f"VALUES ({', '.join('?' for _ in [*_STATE.split(), *_BODY.split()])}, {place})"
    for is_queued, place in ((True, "nextval('places')"), (False, "NULL"))
}
# Whoever takes numbers in the order of finishing stands registered with one below them until its commit is visible.
_WILL_FINISH = "SELECT pg_advisory_xact_lock_shared(?::int, ((last_value - 1) % 2147483648)::int) FROM finishes"
_ONE_CLAIM = "SELECT pg_advisory_xact_lock(hashtextextended(?, ?))"
_LAST_FINISH = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM finishes"
# Those on their way have numbers above the one that they stand registered with, of which 31 bits are known.
_FINISHING = (
    "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 "
    "AND classid = (?::bigint & 4294967295)::oid "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
# What leads to the rollouts of a phase, and their order.
_PHASE_INDEXES = dict.fromkeys(FINISHED, ("finish IS NOT NULL", "finish")) | {
    "queued": ("place IS NOT NULL", "place"),
    "active": ("true", "number"),
}
# Nearly all have finished, and are counted by an index alone: their phase is their status.
_FINISHED_TOTALS = "SELECT phase, count(*) FROM rollouts WHERE finish IS NOT NULL GROUP BY phase"
_TOTALS = dict.fromkeys(FINISHED, _FINISHED_TOTALS) | {
    "queued": "SELECT status, count(*) FROM rollouts WHERE place IS NOT NULL GROUP BY status",
    "active": "SELECT status, count(*) FROM rollouts WHERE phase = 'active' GROUP BY status",
}
# How an index finds the rollouts of a phase. Those that succeeded are most of all: nothing is quicker than reading on.
_PHASE_SOURCES = {
    "queued": "place IS NOT NULL",
    "active": "phase = 'active'",
    "failed": "phase IN ('failed', 'cancelled') AND phase = 'failed'",
    "cancelled": "phase IN ('failed', 'cancelled') AND phase = 'cancelled'",
}
_COUNTS = "SELECT status, count(*), sum(attempts), sum(spans) FROM rollouts GROUP BY status"
_OTHER_COUNTS = (
    "SELECT (SELECT count(*) FROM rollouts WHERE phase = 'active' AND attempts > 0 AND attempt_end IS NULL), "
    "(SELECT count(*) FROM resources), "
    "(SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class "
    "WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r')"
)

_SPAN_COLUMNS = "number, attempt, sequence_id, span_id, trace_id, parent_id, name, start_time, end_time, data"
_INSERT_SPAN = Statement(
    numbered(f"INSERT INTO spans ({_SPAN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"),
    formats=(0, 0, 0, 1, 1, 1, 1, 0, 0, 1),
)
_COPY_SPANS = f"COPY spans ({_SPAN_COLUMNS}) FROM STDIN (FORMAT binary)"
_SPAN_TYPES = ("int8", "int4", "int8", *["bytea"] * 4, "float8", "float8", "bytea")
SpanValues = tuple[int, int, int, bytes, bytes, bytes | None, bytes, float | None, float | None, bytes]


class PostgresRollout(RolloutRecord):
    """A rollout, and how it stands in the database."""

    finish: int | None = None
    spans: int = 0
    changes: str = ""


class PostgresTables(SQLTables):
    """Everything that the rules need: what one method has read and changed, and what it asks."""

    rollout_row = PostgresRollout
    columns = f"{COLUMNS}, finish, spans, changes"
    open_of_worker = "phase = 'active' AND worker_id = ?"
    finish_column = "finish"

    def __init__(self, session: Session, schema_key: int, worker_times: WorkerTimes) -> None:
        super().__init__(worker_times)
        self.session, self._schema_key = session, schema_key
        self._pending: list[Query] = []
        self._new: list[PostgresRollout] = []
        self._spans: list[SpanValues] = []
        self._head: list[Row] | None = None
        self._given: tuple[list[Row], list[Row]] | None = None
        self.mark = ""
        self.is_committing = False
        """Whether COMMIT was sent and not answered."""
        self.evidence: Query | None = None
        """Once COMMIT was sent: what finds the mark of this transaction, where it left one."""

    # -- asking --------------------------------------------------------------------------------------

    def rows(self, sql: str, *values: Value) -> list[Row]:
        return self.session.rows(self.ask([(prepared(sql), values)])[0])

    def query(self, sql: str, values: Sequence[Value]) -> list[Row]:
        return self.session.rows(self.ask([(numbered(sql), values)])[0])

    def write(self, sql: str, *values: Value) -> None:
        self._pending.append((prepared(sql), values))

    def ask(self, queries: Sequence[Query]) -> list[Any]:
        batch, self._pending = [*self._pending, *queries], []
        answers = []
        for start in range(0, len(batch), BATCH):
            answers += self.session.ask(batch[start : start + BATCH])
        return answers[len(answers) - len(queries) :]

    # -- beginning and ending ------------------------------------------------------------------------

    def begin(self, *, mark: str) -> None:
        """A method that writes starts."""
        self.forget()
        self._pending = [(_BEGIN, ())]
        self.locks, self.mark = " FOR UPDATE", mark

    def begin_reading(self, *, one_question: bool) -> None:
        """A method that reads starts: one view for all of its questions, unless it has only one."""
        self.forget()
        self._pending = [] if one_question else [(_BEGIN_READING, ()), (_PLAN_FREELY, ())]
        self.locks = ""

    def forget(self) -> None:
        super().forget()
        self._pending, self._new, self._spans = [], [], []
        self._head = self._given = self.evidence = None
        self.is_committing = False

    def commit(self, after: Sequence[Query] = ()) -> list[list[Row]]:
        """Write what the method changed; return the rows of `after`, which is done once that is durable."""
        self._flush()
        if self._pending == [(_BEGIN, ())]:
            self._pending = []  # nothing was asked, nothing is written
            return []
        while len(self._pending) >= BATCH:
            first, self._pending = self._pending[:BATCH], self._pending[BATCH:]
            self.session.ask(first)
        batch, self._pending = [*self._pending, (_COMMIT, ())], []
        self.is_committing = True
        try:
            answers = self.session.ask([*batch, *after], surely=len(batch))
        except Lost as lost:
            if len(lost.answers) < len(batch):
                raise
            answers = lost.answers
        self.is_committing = False
        return [self.session.rows(answer) for answer in answers[len(batch) :]]

    def _flush(self) -> None:
        if len(self._spans) > COPIED_SPANS:
            self.ask([])
            self.session.copy(_COPY_SPANS, _SPAN_TYPES, self._spans)
        else:
            self._pending += [(_INSERT_SPAN, values) for values in self._spans]
        changed = [(row, PHASES[row.status]) for row in self._dirty.values() if isinstance(row, PostgresRollout)]
        if any(phase != row.phase and phase in FINISHED for row, phase in changed):
            self.write(_WILL_FINISH, self._schema_key)
        for row in self._new:
            phase = PHASES[row.status]
            body = (*body_values(row), group_name(row.metadata), row.rollout_id, row.start_time)
            self.write(_INSERT[phase == "queued"], *self._state(row, phase), *body)
        for row, phase in changed:
            self.write(_STAYS if phase == row.phase else _MOVES[phase], *self._state(row, phase), row.number)
        for row in (*self._new, *(row for row, _ in changed)):
            self.evidence = (prepared("SELECT changes FROM rollouts WHERE rollout_id = ?"), (row.rollout_id,))
            break

    def _state(self, row: PostgresRollout, phase: str) -> tuple[Value, ...]:
        latest = row.latest or NO_ATTEMPT
        return (
            row.status,
            phase,
            row.end_time,
            row.reward,
            row.reward_span,
            row.attempts,
            row.last_span,
            row.spans,
            latest.attempt_id or None,
            latest.start_time,
            latest.end_time,
            latest.status,
            latest.worker_id,
            latest.last_heartbeat_time,
            latest.metadata,
            latest.deadline,
            latest.unwanted,
            latest.request_id,
            self._marks(row),
        )

    def _marks(self, row: PostgresRollout) -> str:
        """Those of the last transactions and, for as long as the row lives, of the one that made it."""
        recent, _, first = row.changes.rstrip().rpartition(" ")
        return f"{f'{self.mark} {recent}'[:MARKS_LENGTH].rstrip()} {first}"

    def _touch(self, row: RolloutRow) -> None:
        if row.number:  # a new one is written as it is in the end
            super()._touch(row)

    # -- asking ahead --------------------------------------------------------------------------------

    def load(self, rollout_ids: Sequence[str]) -> None:
        """Ask for several rollouts at once, together with what begins the transaction."""
        # In one order, so that two methods that touch the same rollouts wait for each other in turn.
        order = f" ORDER BY rollout_id{self.locks}" if self.locks else ""
        which, values = self.any_of("rollout_id", [findable(each) for each in rollout_ids])
        for found in self.rows(f"{self.both} WHERE {which}{order}", *values):
            self._load(found)
        for rollout_id in rollout_ids:
            self._loaded.setdefault(rollout_id, None)

    def load_claim(self, limit: int, request_id: str | None) -> None:
        """Ask for what a claim needs, together with what begins the transaction."""
        head: Query = (self._first_in_queue(limit), ())
        if request_id is None:
            self._head = self.session.rows(self.ask([head])[0])
            return
        # Two calls with one request at once: the second waits, and then finds what the first was given.
        one_claim: Query = (prepared(_ONE_CLAIM), (request_id, self._schema_key))
        given: list[Query] = [(prepared(sql), values) for sql, values in self.claim_questions(request_id)]
        answers = self.ask([one_claim, *given, head])
        latest, old, self._head = (self.session.rows(answer) for answer in answers[1:])
        self._given = latest, old

    def _first_in_queue(self, limit: int) -> Statement | str:
        """The first in the queue that nobody claims right now; its plan depends on how many are wanted."""
        sql = f"{self.both} WHERE place IS NOT NULL ORDER BY place LIMIT {limit} FOR UPDATE SKIP LOCKED"
        return prepared(sql) if limit <= 16 else sql

    def queue_head(self, limit: int) -> list[RolloutRow]:
        if self._head is None:
            self._head = self.session.rows(self.ask([(self._first_in_queue(bounded(limit)), ())])[0])
        return [self._load(values) for values in self._head]

    def _claimed_rows(self, request_id: str) -> tuple[list[Row], list[Row]]:
        return self._given or super()._claimed_rows(request_id)

    # -- rollouts ------------------------------------------------------------------------------------

    def add_rollouts(self, rows: list[RolloutRow]) -> None:
        for row in rows:
            assert isinstance(row, PostgresRollout)
            self._loaded[row.rollout_id] = row
            self._new.append(row)

    def save_body(self, row: RolloutRow) -> None:
        super().save_body(row)
        self.write("UPDATE rollouts SET group_name = ? WHERE number = ?", group_name(row.metadata), row.number)
        self._touch(row)  # leaves the mark of this transaction

    def queue_length(self) -> int:
        return int(self.one("SELECT count(*) FROM rollouts WHERE place IS NOT NULL")[0])

    def queue_places(self, limit: int) -> list[int]:
        """Return the places of the first in the queue."""
        found = self.rows("SELECT place FROM rollouts WHERE place IS NOT NULL ORDER BY place LIMIT ?", limit)
        return [place for (place,) in found]

    def totals(self, statuses: Iterable[str]) -> dict[str, int]:
        asked = dict.fromkeys(_TOTALS[phase] for phase in phases_of(statuses))
        answers = self.ask([(prepared(sql), ()) for sql in asked])
        return dict(row for answer in answers for row in self.session.rows(answer))

    def finished(self, after: int, limit: int) -> list[tuple[int, Rollout]]:
        """Those that have finished, up to the first whose commit may still be on its way.

        Numbers are read before, and rows after, those who stand registered: whoever has gone meanwhile is seen.
        """
        answers = self.ask([(prepared(_LAST_FINISH), ()), (prepared(_FINISHING), (self._schema_key,))])
        last = self.session.rows(answers[0])[0][0]
        behind = [(last - key) % 2**31 for (key,) in self.session.rows(answers[1])]
        safe = last - max((distance for distance in behind if distance < 2**30), default=0)
        sql = f"{self.both} WHERE finish > ? AND finish <= ? ORDER BY finish LIMIT ?"
        found = self.rows(sql, bounded(after), safe, bounded(limit))
        return [(values[EXTRA_AT], self.public(values)) for values in found]

    def delete_finished_before(self, time: float) -> int:
        """Delete the oldest of them, so many at once: whoever wants more calls again."""
        found = self.rows(
            "SELECT number FROM rollouts WHERE finish IS NOT NULL AND end_time < ? ORDER BY finish LIMIT ? "
            "FOR UPDATE SKIP LOCKED",
            time,
            PRUNED_AT_ONCE,
        )
        numbers = [str(number) for (number,) in found]
        for table in ("spans", "old_attempts", "rollouts"):
            self.write(f"DELETE FROM {table} WHERE number = ANY(?::bigint[])", numbers)
        return len(numbers)

    def any_of(self, column: str, values: Sequence[str]) -> Condition:
        return f"{column} = ANY(?::text[])", [list(values)]

    def contains(self, column: str) -> str:
        return f"position(? in {column}) > 0"

    def in_phase(self, phase: str, order: str) -> tuple[str, str]:
        within, by = _PHASE_INDEXES[phase]
        return f"phase = '{phase}' AND {within}", f"{by} {order}"

    def limit(self, limit: int) -> int | None:
        return None if limit < 0 else bounded(limit)

    def counts(self) -> Counts:
        rows = self.query(_COUNTS, ())
        open_attempts, resources, size_bytes = self.query(_OTHER_COUNTS, ())[0]
        return Counts(
            {status: count for status, count, _, _ in rows},
            sum(int(attempts) for _, _, attempts, _ in rows),
            open_attempts,
            sum(int(spans) for _, _, _, spans in rows),
            resources,
            self.known_workers(),
            size_bytes or 0,
        )

    def add_resources(self, update: ResourcesUpdate, request_id: str | None) -> None:
        self.write(
            "INSERT INTO resources (resources_id, version, create_time, update_time, data, request_id, changes) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            update.resources_id,
            update.version,
            update.create_time,
            update.update_time,
            encode(update.resources).decode(),
            request_id,
            self.mark,
        )
        find_mark = prepared("SELECT changes FROM resources WHERE resources_id = ? AND version = ?")
        self.evidence = (find_mark, (update.resources_id, update.version))

    def pack(self, value: Any, what: str) -> Any:
        return None if value is None else encode_equal(value, what).decode()

    def unpack(self, value: Any, what: str) -> Any:
        return None if value is None else decode_equal(value, what)

    def drop(self, value: Any) -> None:
        """Bodies stand in their rows and go with them."""

    # -- spans ---------------------------------------------------------------------------------------

    def missing_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: Sequence[Span]) -> list[bool]:
        assert isinstance(rollout, PostgresRollout)
        if not rollout.spans:
            return [True] * len(spans)
        place, ids = (rollout.number, attempt.sequence_id), [_findable_bytes(span.span_id) for span in spans]
        sql = "SELECT span_id FROM spans WHERE number = ? AND attempt = ? AND span_id = ANY(?::bytea[])"
        known = {span_id for (span_id,) in self.rows(sql, *place, ids)}
        known |= {values[3] for values in self._spans if values[:2] == place}  # under "latest", say, in the same call
        return [span_id not in known for span_id in ids]

    def add_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: list[Span]) -> None:
        assert isinstance(rollout, PostgresRollout)
        self._spans += [_span_values(rollout.number, attempt.sequence_id, span) for span in spans]
        rollout.spans += len(spans)
        self._touch(rollout)

    def span_text(self, value: str) -> bytes:
        return _findable_bytes(value)

    def restore_span(self, rollout_id: str, attempts: dict[int, str], values: Row) -> Span:
        texts = (value.decode() if isinstance(value, bytes) else value for value in values[:8])
        return restore_span(rollout_id, attempts, tuple(texts), values[8])

    # -- searching -----------------------------------------------------------------------------------

    def begin_search(self) -> None:
        self.ask(_SEARCH)

    def query_in_time(self, sql: str, values: Sequence[Value], seconds: float | None) -> list[Row] | None:
        if seconds is None:
            return self.query(sql, values)
        found = self._in_time([(numbered(sql), values)], seconds)
        return None if found is None else found[0]

    def _in_time(self, queries: Sequence[Query], seconds: float) -> list[list[Row]] | None:
        limit = f"SET LOCAL statement_timeout = {max(1, round(seconds * 1000))}"
        back: Query = ("ROLLBACK TO part", ())  # which takes the setting back, too
        try:
            answers = self.ask([("SAVEPOINT part", ()), (limit, ()), *queries, back])
        except QueryCanceled:
            self.ask([back])
            return None
        return [self.session.rows(answer) for answer in answers[2:-1]]

    def totals_in_time(self, statuses: Iterable[str]) -> dict[str, int] | None:
        asked = dict.fromkeys(_TOTALS[phase] for phase in phases_of(statuses))
        found = self._in_time([(sql, ()) for sql in asked], SEARCH_SECONDS)
        return None if found is None else dict(row for rows in found for row in rows)

    def last_finish(self) -> int:
        return int(self.one(_LAST_FINISH)[0])

    def finish_of(self, row: Row) -> int:
        return row[EXTRA_AT] or 0

    def by_number(self, where: str) -> Source:
        return Source("rollouts", where)

    def by_reward(self, where: str, values: Sequence[Any]) -> Source:
        return Source("rollouts", where, values)

    def phase_sources(self, phases: Sequence[str]) -> list[Source] | None:
        if "succeeded" in phases:
            return None
        return [Source("rollouts", _PHASE_SOURCES[phase]) for phase in phases]

    def finished_between(self, phases: Sequence[str], first: int, last: int) -> tuple[Source, str]:
        return Source("rollouts", "finish BETWEEN ? AND ?", (first, last)), "finish DESC"

    def group_source(self, group: str) -> Source | None:
        return Source("rollouts", "group_name = ?", (_group_key(group),))

    def has_group(self, group: str) -> Condition:
        return "group_name = ?", [_group_key(group)]

    def has_text(self, needles: Sequence[str]) -> Condition:
        # Small letters as bytes know them: the texts compare by bytes, and `lower` changes A to Z only.
        small = [findable(needle.encode().lower().decode()) for needle in needles]
        columns = ("rollout_id", "input", "metadata")
        return joined([(f"strpos(lower({column}), ?) > 0", [each]) for each in small for column in columns], "or")


# -- groups, in a column of their own: searches find them by an index --------------------------------


class _Metadata(msgspec.Struct):
    group: Any = None


def group_name(metadata: str | None) -> str | None:
    """Return the group that this metadata, a JSON text, names: as JSON, since a group may hold a NUL."""
    if metadata is None or '"group":' not in metadata:
        return None
    group = msgspec.json.decode(metadata, type=_Metadata).group
    return _group_key(group) if isinstance(group, str) else None


def _group_key(group: str) -> str:
    """The group as the column holds it: its JSON text, or what stands for one that is too long for an index."""
    text = encode(group)
    return text.decode() if len(text) <= LONGEST_GROUP else hashlib.sha256(text).hexdigest()


# -- spans as PostgreSQL takes them: ids and names are bytes, since agents may put anything into them -


def _span_values(number: int, attempt: int, span: Span) -> SpanValues:
    try:
        return (
            number,
            attempt,
            span.sequence_id,
            span.span_id.encode(),
            span.trace_id.encode(),
            None if span.parent_id is None else span.parent_id.encode(),
            span.name.encode(),
            None if span.start_time is None else float(span.start_time),
            None if span.end_time is None else float(span.end_time),
            encode(body_of(span)),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise refused_span(span, error) from None


def _findable_bytes(text: Any) -> bytes:
    """A text as spans hold it; one that none of them could hold becomes bytes that are in no text."""
    try:
        return str(text).encode()
    except UnicodeEncodeError:
        return b"\xff"
