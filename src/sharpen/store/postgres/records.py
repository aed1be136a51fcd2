"""Rows of the database, and how a method's changes to them are written.

A rollout is read together with its latest attempt, and locked where the method may change it. The rollouts that a
method touched are written once, each in one statement, together with COMMIT. Whatever can be known before the rules
run is asked for together with BEGIN, so that most methods take two round trips.
"""

from collections.abc import Sequence
from typing import Any

from ..tables import AttemptRow, RolloutRow, packed_config, unpacked_config
from ..transitions import FINISHED, PHASES
from .groups import group_name
from .session import Lost, Query, Row, Session, Statement, Value

BATCH = 400  # statements that travel together
MARKS_LENGTH = 64  # of the marks of the last transactions that wrote a row, beside that of the first


class Record(RolloutRow):
    """A rollout row with its latest attempt, and how it stands in the database."""

    latest: "AttemptRecord | None" = None
    phase: str = ""
    place: int | None = None
    finish: int | None = None
    spans: int = 0
    changes: str = ""


class AttemptRecord(AttemptRow):
    """An attempt: the latest of its rollout, or one that has been replaced."""

    is_old: bool = False


BOTH_COLUMNS = (
    "rollout_id, input, start_time, mode, resources_id, resources_version, config, metadata, status, end_time, "
    "reward, reward_span, attempts, last_span, number, phase, place, finish, spans, changes, attempt_id, attempts, "
    "attempt_start, attempt_end, attempt_status, worker_id, heartbeat, attempt_metadata, deadline, unwanted, request_id"
)
BOTH = f"SELECT {BOTH_COLUMNS} FROM rollouts"
OLD_ATTEMPT = (
    "attempt_id, sequence_id, start_time, end_time, status, worker_id, last_heartbeat_time, metadata, "
    "NULL::double precision, unwanted, request_id"
)


def attempt_record(rollout_id: str, number: int, values: Sequence[Any], *, is_old: bool) -> AttemptRecord:
    return AttemptRecord(rollout_id, *values, number, is_old)  # type: ignore[call-arg]


def record(values: Row) -> Record:
    """A row of `BOTH`."""
    config = unpacked_config(values[6])
    row = Record(*values[:6], config, *values[7:15], None, *values[15:20])  # type: ignore[call-arg]
    if values[20] is not None:
        row.latest = attempt_record(row.rollout_id, row.number, values[20:31], is_old=False)
    return row


BEGIN = Statement("BEGIN")
BEGIN_READING = Statement("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
COMMIT = Statement("COMMIT")
# Questions of people are planned each for itself.
_PLAN_FREELY = Statement(
    "SELECT set_config('plan_cache_mode', 'force_custom_plan', true), set_config('enable_seqscan', 'on', true)"
)
_KEPT = (
    "status = $2, phase = $3, end_time = $4, reward = $5, reward_span = $6, attempts = $7, last_span = $8, spans = $9, "
    "attempt_id = $10, attempt_start = $11, attempt_end = $12, attempt_status = $13, worker_id = $14, heartbeat = $15, "
    "attempt_metadata = $16, deadline = $17, unwanted = $18, request_id = $19, changes = $20"
)
_STAYS = Statement(f"UPDATE rollouts SET {_KEPT} WHERE number = $1")
_MOVES = {
    "queued": Statement(f"UPDATE rollouts SET {_KEPT}, place = nextval('places') WHERE number = $1"),
    "active": Statement(f"UPDATE rollouts SET {_KEPT}, place = NULL WHERE number = $1"),
} | {
    phase: Statement(f"UPDATE rollouts SET {_KEPT}, place = NULL, finish = nextval('finishes') WHERE number = $1")
    for phase in ("succeeded", "failed", "cancelled")
}
_INSERT = Statement(
    "INSERT INTO rollouts (rollout_id, status, phase, end_time, reward, reward_span, attempts, last_span, spans, "
    "attempt_id, attempt_start, attempt_end, attempt_status, worker_id, heartbeat, attempt_metadata, deadline, "
    "unwanted, request_id, changes, place, mode, start_time, resources_id, resources_version, config, input, metadata, "
    "group_name) "
    "VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, "
    "CASE WHEN $3 = 'queued' THEN nextval('places') END, $21, $22, $23, $24, $25, $26, $27, $28)"
)
# Whoever takes numbers in the order of finishing stands registered with one below them until its commit is visible.
_WILL_FINISH = Statement(
    "SELECT pg_advisory_xact_lock_shared($1::int, ((last_value - 1) % 2147483648)::int) FROM finishes"
)
_FIND_MARK = Statement("SELECT changes FROM rollouts WHERE rollout_id = $1")
_NO_ATTEMPT = AttemptRecord("", "", 0, 0.0)


class UnitOfWork:
    """What one method has read and changed, on one connection."""

    def __init__(self, session: Session, schema_key: int) -> None:
        self.session = session
        self._schema_key = schema_key
        self._pending: list[Query] = []
        self._loaded: dict[str, Record | None] = {}
        self._dirty: dict[str, Record] = {}
        self._new: list[Record] = []
        self._requested = 0
        self._head: list[Row] | None = None
        self._given: list[Row] | None = None
        self._given_old: list[Row] | None = None
        self.locks = ""
        """What a question for rollouts ends with: those that the method may change are locked."""
        self.mark = ""
        self.is_committing = False
        """Whether COMMIT was sent and not answered."""
        self.evidence: Query | None = None
        """Once COMMIT was sent: what finds the mark of this transaction, where it left one."""

    # -- asking --------------------------------------------------------------------------------------

    def rows(self, statement: Statement | str, *values: Value) -> list[Row]:
        """The rows of a question, which sees what the method has asked to be written."""
        return self.session.rows(self.ask([(statement, values)])[0])

    def one(self, statement: Statement | str, *values: Value) -> Any:
        found = self.rows(statement, *values)
        return found[0] if found else None

    def ask(self, queries: Sequence[Query]) -> list[Any]:
        batch, self._pending = [*self._pending, *queries], []
        answers = []
        for start in range(0, len(batch), BATCH):
            answers += self.session.ask(batch[start : start + BATCH])
        return answers[len(answers) - len(queries) :]

    def later(self, statement: Statement | str, *values: Value) -> None:
        """To be written with what comes next."""
        self._pending.append((statement, values))

    # -- beginning and ending ------------------------------------------------------------------------

    def begin(self, *, mark: str) -> None:
        """A method that writes starts."""
        self.forget()
        self._pending = [(BEGIN, ())]
        self.locks, self.mark = " FOR UPDATE", mark

    def begin_reading(self, *, one_question: bool) -> None:
        """A method that reads starts: one view for all of its questions, unless it has only one."""
        self.forget()
        self._pending = [] if one_question else [(BEGIN_READING, ()), (_PLAN_FREELY, ())]
        self.locks = ""

    def forget(self) -> None:
        """Drop what a method read or changed and did not write."""
        self._pending, self._loaded, self._dirty, self._new = [], {}, {}, []
        self._head = self._given = self._given_old = None
        self._requested, self.evidence, self.is_committing = 0, None, False

    def commit(self, after: Sequence[Query] = ()) -> list[list[Row]]:
        """Write what the method changed; gives the rows of `after`, which is done once that is durable."""
        self._flush()
        if self._pending == [(BEGIN, ())]:
            self._pending = []  # nothing was asked, nothing is written
            return []
        while len(self._pending) >= BATCH:
            first, self._pending = self._pending[:BATCH], self._pending[BATCH:]
            self.session.ask(first)
        batch, self._pending = [*self._pending, (COMMIT, ())], []
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
        changed = [(row, PHASES[row.status]) for row in self._dirty.values()]
        if any(phase != row.phase and phase in FINISHED for row, phase in changed):
            self.later(_WILL_FINISH, self._schema_key)
        for row in self._new:
            phase = PHASES[row.status]
            self.later(_INSERT, row.rollout_id, *self._state(row, phase), *_body(row))
        for row, phase in changed:
            self.later(_STAYS if phase == row.phase else _MOVES[phase], row.number, *self._state(row, phase))
        for row in (*self._new, *self._dirty.values()):
            self.evidence = (_FIND_MARK, (row.rollout_id,))
            break

    def _state(self, row: Record, phase: str) -> tuple[Value, ...]:
        latest = row.latest or _NO_ATTEMPT
        # fmt: off
        return (
            row.status, phase, row.end_time, row.reward, row.reward_span, row.attempts, row.last_span, row.spans,
            latest.attempt_id or None, latest.start_time, latest.end_time, latest.status, latest.worker_id,
            latest.last_heartbeat_time, latest.metadata, latest.deadline, latest.unwanted, latest.request_id,
            self._marks(row),
        )
        # fmt: on

    def _marks(self, row: Record) -> str:
        """Those of the last transactions and, for as long as the row lives, of the one that made it."""
        recent, _, first = row.changes.rstrip().rpartition(" ")
        return f"{f'{self.mark} {recent}'[:MARKS_LENGTH].rstrip()} {first}"

    # -- rows ----------------------------------------------------------------------------------------

    def _load(self, values: Row) -> Record:
        known = self._loaded.get(values[0])
        if known is None:
            known = self._loaded[values[0]] = record(values)
        return known

    def _touch(self, row: Record) -> None:
        if row.number:  # a new one is written as it is in the end
            self._dirty[row.rollout_id] = row


def _body(row: Record) -> tuple[Value, ...]:
    return (
        row.mode,
        row.start_time,
        row.resources_id,
        row.resources_version,
        packed_config(row.config),
        row.input,
        row.metadata,
        group_name(row.metadata),
    )
