"""Rollouts and attempts in PostgreSQL: the questions and changes of the rules, as SQL."""

from collections.abc import Iterable, Sequence

from ...types import RolloutPage, RolloutStatus
from ..search import RolloutSearch
from ..tables import AttemptRow, RolloutRow, packed_config
from ..transitions import OPEN
from .groups import group_name
from .listing import RolloutLists
from .records import (
    BOTH,
    OLD_ATTEMPT,
    AttemptRecord,
    Record,
    attempt_record,
)
from .search import PostgresSearch
from .session import Query, Row, Statement
from .values import bounded, findable

_BY_ID = Statement(f"{BOTH} WHERE rollout_id = $1")
_BY_ID_LOCKED = Statement(f"{BOTH} WHERE rollout_id = $1 FOR UPDATE")
_BY_IDS = Statement(f"{BOTH} WHERE rollout_id = ANY($1::text[])")
# In one order, so that two methods that touch the same rollouts wait for each other in turn.
_BY_IDS_LOCKED = Statement(f"{BOTH} WHERE rollout_id = ANY($1::text[]) ORDER BY rollout_id FOR UPDATE")
_BY_NUMBERS = Statement(f"{BOTH} WHERE number = ANY($1::bigint[])")
_HEAD = f"{BOTH} WHERE place IS NOT NULL ORDER BY place LIMIT {{}} FOR UPDATE SKIP LOCKED"
_HEADS = {limit: Statement(_HEAD.format(limit)) for limit in range(1, 17)}
_DUE = Statement(f"{BOTH} WHERE deadline <= $1 ORDER BY deadline FOR UPDATE SKIP LOCKED")
_NEXT_DEADLINE = Statement("SELECT min(deadline) FROM rollouts WHERE deadline IS NOT NULL")
_OF_WORKER = Statement(f"{BOTH} WHERE phase = 'active' AND worker_id = $1 ORDER BY rollout_id FOR UPDATE")
_SAVE_BODY = Statement(
    "UPDATE rollouts SET input = $2, metadata = $3, mode = $4, config = $5, resources_id = $6, resources_version = $7, "
    "group_name = $8 WHERE number = $1"
)
_ONE_CLAIM = Statement("SELECT pg_advisory_xact_lock(hashtextextended($1, $2))")
_CLAIMED = Statement(f"{BOTH} WHERE request_id > $1 AND request_id < $2")
_CLAIMED_OLD = Statement(f"SELECT number, {OLD_ATTEMPT} FROM old_attempts WHERE request_id > $1 AND request_id < $2")
_OLD = Statement(f"SELECT {OLD_ATTEMPT} FROM old_attempts WHERE number = $1 ORDER BY sequence_id")
_RETIRE = Statement(
    "INSERT INTO old_attempts (number, sequence_id, attempt_id, start_time, end_time, status, worker_id, "
    "last_heartbeat_time, metadata, unwanted, request_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
)
_SAVE_OLD = Statement(
    "UPDATE old_attempts SET status = $3, end_time = $4, worker_id = $5, last_heartbeat_time = $6, metadata = $7, "
    "unwanted = $8 WHERE number = $1 AND sequence_id = $2"
)
_UNWANTED = Statement(
    "SELECT attempt_id FROM rollouts WHERE worker_id = $1 AND unwanted UNION ALL "
    "SELECT attempt_id FROM old_attempts WHERE worker_id = $1 AND unwanted"
)


class RolloutTables(RolloutLists):
    """The table of rollouts, each with its latest attempt, and that of attempts that were replaced."""

    rollout_row = Record
    attempt_row = AttemptRecord

    # -- rollouts ------------------------------------------------------------------------------------

    def rollout(self, rollout_id: str) -> Record | None:
        if rollout_id in self._loaded:
            return self._loaded[rollout_id]
        values = self.one(_BY_ID_LOCKED if self.locks else _BY_ID, findable(rollout_id))
        return None if values is None else self._load(values)

    def load(self, rollout_ids: Sequence[str]) -> None:
        """Ask for several rollouts at once, together with what begins the transaction."""
        for values in self.rows(_BY_IDS_LOCKED if self.locks else _BY_IDS, [findable(each) for each in rollout_ids]):
            self._load(values)
        for rollout_id in rollout_ids:
            self._loaded.setdefault(rollout_id, None)

    def load_claim(self, limit: int, request_id: str | None) -> None:
        """Ask for what a claim needs, together with what begins the transaction."""
        if request_id is None:
            self._head = self.rows(_head(limit))
            return
        # Two calls with one request at once: the second waits, and then finds what the first was given.
        one_claim: Query = (_ONE_CLAIM, (request_id, self._schema_key))
        answers = self.ask([one_claim, *_claim_questions(request_id), (_head(limit), ())])
        self._given, self._given_old, self._head = (self.session.rows(answer) for answer in answers[1:])

    def queue_head(self, limit: int) -> list[RolloutRow]:
        found = self.rows(_head(bounded(limit))) if self._head is None else self._head
        return [self._load(values) for values in found]

    def add_rollouts(self, rows: list[RolloutRow]) -> None:
        for row in rows:
            assert isinstance(row, Record)
            self._loaded[row.rollout_id] = row
            self._new.append(row)

    def save_rollout(self, row: RolloutRow, old_status: RolloutStatus) -> None:
        assert isinstance(row, Record)
        self._touch(row)

    def save_body(self, row: RolloutRow) -> None:
        assert isinstance(row, Record)
        config = packed_config(row.config)
        body = (row.input, row.metadata, row.mode, config, row.resources_id, row.resources_version)
        self.later(_SAVE_BODY, row.number, *body, group_name(row.metadata))
        self._touch(row)  # leaves the mark of this transaction

    def search(self, search: RolloutSearch, same_input_as: RolloutRow | None) -> RolloutPage:
        return PostgresSearch(self, search, same_input_as).page()

    # -- attempts ------------------------------------------------------------------------------------

    def attempt(self, rollout: RolloutRow, attempt_id: str) -> AttemptRow | None:
        latest = self.latest_attempt(rollout)
        if latest is not None and latest.attempt_id == attempt_id:
            return latest
        if rollout.attempts < 2:
            return None
        return next((old for old in self._old(rollout) if old.attempt_id == attempt_id), None)

    def latest_attempt(self, rollout: RolloutRow) -> AttemptRow | None:
        assert isinstance(rollout, Record)
        return rollout.latest

    def attempts(self, rollout: RolloutRow) -> list[AttemptRow]:
        latest = self.latest_attempt(rollout)
        old = self._old(rollout) if rollout.attempts > 1 else []
        return old if latest is None else [*old, latest]

    def _old(self, rollout: RolloutRow) -> list[AttemptRow]:
        return [
            attempt_record(rollout.rollout_id, rollout.number, values, is_old=True)
            for values in self.rows(_OLD, rollout.number)
        ]

    def add_attempt(self, row: AttemptRow) -> None:
        assert isinstance(row, AttemptRecord)
        rollout = self._loaded[row.rollout_id]
        assert rollout is not None
        if rollout.latest is not None:
            self._retire(rollout.latest)
        if row.request_id is not None:
            self._requested += 1
            row.request_id = f"{row.request_id}#{self._requested:05d}"  # its position in the answer
        rollout.latest = row
        self._touch(rollout)

    def _retire(self, row: AttemptRecord) -> None:
        # fmt: off
        self.later(
            _RETIRE, row.number, row.sequence_id, row.attempt_id, row.start_time, row.end_time, row.status,
            row.worker_id, row.last_heartbeat_time, row.metadata, row.unwanted, row.request_id,
        )
        # fmt: on

    def save_attempt(self, row: AttemptRow) -> None:
        assert isinstance(row, AttemptRecord)
        rollout = self._loaded[row.rollout_id]
        assert rollout is not None
        self._touch(rollout)
        if row.is_old:
            # fmt: off
            self.later(
                _SAVE_OLD, row.number, row.sequence_id, row.status, row.end_time, row.worker_id,
                row.last_heartbeat_time, row.metadata, row.unwanted,
            )
            # fmt: on

    def _with_latest(self, rows: Iterable[Row]) -> list[tuple[RolloutRow, AttemptRow]]:
        loaded = [self._load(values) for values in rows]
        return [(row, row.latest) for row in loaded if row.latest is not None]

    def claimed(self, request_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        """The attempts of a request in the order of its answer, replaced ones included."""
        latest, old = self._given, self._given_old
        if latest is None or old is None:
            latest, old = (self.session.rows(answer) for answer in self.ask(_claim_questions(request_id)))
        found = self._with_latest(latest)
        rows = {row[14]: row for row in self.rows(_BY_NUMBERS, _numbers(old))} if old else {}
        for values in old:
            row = self._load(rows[values[0]])
            found.append((row, attempt_record(row.rollout_id, row.number, values[1:], is_old=True)))
        return sorted(found, key=lambda pair: pair[1].request_id or "")

    def open_attempts(self, worker_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        found = self._with_latest(self.rows(_OF_WORKER, worker_id))
        return [(row, attempt) for row, attempt in found if attempt.status in OPEN]

    def unwanted(self, worker_id: str) -> list[str]:
        return [attempt_id for (attempt_id,) in self.rows(_UNWANTED, worker_id)]

    def due(self, now: float) -> list[tuple[RolloutRow, AttemptRow]]:
        return self._with_latest(self.rows(_DUE, now))

    def next_deadline(self) -> float | None:
        found: float | None = self.one(_NEXT_DEADLINE)[0]
        return found


def _head(limit: int) -> Statement | str:
    """The first in the queue that nobody claims right now; its plan depends on how many are wanted."""
    return _HEADS.get(limit) or _HEAD.format(limit)


def _claim_questions(request_id: str) -> list[Query]:
    bounds = (f"{request_id}#", f"{request_id}$")
    return [(_CLAIMED, bounds), (_CLAIMED_OLD, bounds)]


def _numbers(rows: Iterable[Row]) -> list[str]:
    return [str(values[0]) for values in rows]
