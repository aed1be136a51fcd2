"""Rows of the SQLite file, and how a method's changes to them are written.

A rollout is read together with its latest attempt, which nearly every rule needs. The rollouts that a method touched
are written once, each in one statement, when the method has succeeded.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from .tables import AttemptRow, RolloutRow, unpacked_config
from .transitions import PHASES

CHUNK = 500  # values in one IN (...); SQLite allows 32,766


class Record(RolloutRow):
    """A rollout row with its latest attempt, and its indexed columns as they stand in the file."""

    latest: "AttemptRecord | None" = None
    phase: str = ""
    place: Any = None
    was: tuple[Any, ...] = (None, None, False, None)
    """Deadline, worker, whether unwanted, request: columns that stand in indexes."""
    reward_was: float | None = None
    """The reward stands in one, too."""


class AttemptRecord(AttemptRow):
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
BOTH_COLUMNS = f"{_ROLLOUT}, {_ATTEMPT}"
BOTH = f"SELECT {BOTH_COLUMNS} FROM rollouts"
OLD_ATTEMPT = (
    "attempt_id, sequence_id, start_time, end_time, status, worker_id, last_heartbeat_time, metadata, NULL, unwanted, "
    "request_id"
)
TOTALS = ("queuing", "requeuing", "active", "succeeded", "failed", "cancelled", "finished", "attempts", "spans_gone")
_UPDATE_TOTALS = f"UPDATE totals SET {', '.join(f'{name} = {name} + ?' for name in TOTALS)}"
_MAX_PLACE = "SELECT max(place) FROM rollouts WHERE phase = 'queued'"


def attempt_record(rollout_id: str, number: int, values: Sequence[Any], *, is_old: bool) -> AttemptRecord:
    attempt_id, sequence_id, start, end, status, worker, heartbeat, metadata, deadline, unwanted, request = values
    return AttemptRecord(
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


def record(values: Sequence[Any]) -> Record:
    config = values[6]
    row = Record(  # type: ignore[call-arg]
        *values[:6], unpacked_config(config), *values[7:15], None, values[15], values[16]
    )
    row.reward_was = row.reward
    if values[17] is not None:
        row.latest = attempt_record(row.rollout_id, row.number, values[17:28], is_old=False)
        row.was = (row.latest.deadline, row.latest.worker_id, row.latest.unwanted, row.latest.request_id)
    return row


# Columns that stand in indexes are named in an update only where they change: bit by bit, the cases.
_PLAIN = (
    "status = ?, end_time = ?, reward_span = ?, attempts = ?, last_span = ?, attempt_id = ?, "
    "attempt_start = ?, attempt_end = ?, attempt_status = ?, heartbeat = ?, attempt_metadata = ?"
)
_INDEXED = ("phase = ?, place = ?", "deadline = ?", "worker_id = ?", "unwanted = ?", "request_id = ?", "reward = ?")
_CASES = [", ".join([_PLAIN, *(_INDEXED[bit] for bit in range(6) if case >> bit & 1)]) for case in range(64)]
_UPDATES = [f"UPDATE rollouts SET {columns} WHERE number = ?" for columns in _CASES]
_NO_ATTEMPT = AttemptRecord("", "", 0, 0.0)


class UnitOfWork:
    """The rows that a method has read and changed, on one connection, inside the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._sql = connection.execute
        self._loaded: dict[str, Record] = {}
        self._dirty: dict[int, Record] = {}
        self._sums: dict[str, int] = {}
        self._sums_before: dict[str, int] = {}
        self._finish_number: int | None = None
        self._requested = 0

    def one(self, sql: str, *values: Any) -> Any:
        return self._sql(sql, values).fetchone()

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
            self._sql(_UPDATE_TOTALS, [self._sums.get(name, 0) for name in TOTALS])
        self.forget_sums()

    def forget_sums(self) -> None:
        self._sums = {}
        self._finish_number = None

    def _add(self, name: str, change: int) -> None:
        self._sums[name] = self._sums.get(name, 0) + change

    def _update(self, row: Record) -> None:
        latest = row.latest or _NO_ATTEMPT
        phase, place = self._position(row)
        deadline, worker_id, unwanted, request_id = row.was
        # fmt: off
        values: list[Any] = [
            row.status, row.end_time, row.reward_span, row.attempts, row.last_span,
            latest.attempt_id or None, latest.start_time, latest.end_time, latest.status,
            latest.last_heartbeat_time, latest.metadata,
        ]
        # fmt: on
        case = 0
        if phase != row.phase or place != row.place:
            case |= 1
            values += (phase, place)
        if latest.deadline != deadline:
            case |= 2
            values.append(latest.deadline)
        if latest.worker_id != worker_id:
            case |= 4
            values.append(latest.worker_id)
        if latest.unwanted != unwanted:
            case |= 8
            values.append(latest.unwanted)
        if latest.request_id != request_id:
            case |= 16
            values.append(latest.request_id)
        if row.reward != row.reward_was:
            case |= 32
            values.append(row.reward)
        values.append(row.number)
        self._sql(_UPDATES[case], values)

    def _position(self, row: Record) -> tuple[str, Any]:
        """Phase and place, as they follow from the status."""
        phase = PHASES[row.status]
        if phase == "active":
            return phase, (row.latest and row.latest.worker_id) or ""
        if phase == row.phase:
            return phase, row.place
        return phase, self._next_place() if phase == "queued" else self._next_finish()

    def _next_place(self) -> int:
        return int(self.one(_MAX_PLACE)[0] or 0) + 1

    def _next_finish(self) -> int:
        if self._finish_number is None:
            self._finish_number = int(self.one("SELECT finished FROM totals")[0]) + self._sums.get("finished", 0)
        self._finish_number += 1
        self._add("finished", 1)
        return self._finish_number

    def _load(self, values: Sequence[Any]) -> Record:
        known = self._loaded.get(values[0])
        if known is None:
            known = self._loaded[values[0]] = record(values)
        return known


def chunks(values: Sequence[Any]) -> list[Sequence[Any]]:
    return [values[start : start + CHUNK] for start in range(0, len(values), CHUNK)]


def marks(values: Iterable[Any]) -> str:
    return ",".join("?" for _ in values)
