"""Rollouts and attempts in SQLite: the questions and changes of the rules, as SQL."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ..errors import UnknownIdError
from ..types import PaginatedResult, Rollout, RolloutPage, RolloutStatus
from .search import RolloutSearch
from .sqlite_records import (
    BOTH,
    OLD_ATTEMPT,
    TOTALS,
    AttemptRecord,
    Record,
    UnitOfWork,
    attempt_record,
    chunks,
    marks,
    record,
)
from .sqlite_search import SQLiteSearch
from .tables import AttemptRow, Page, RolloutFilter, RolloutRow, packed_config, public_rollout
from .transitions import FINISHED, OPEN, PHASES, phases_of

_BODIES = (
    ("rollouts", "input"),
    ("rollouts", "metadata"),
    ("rollouts", "attempt_metadata"),
    ("old_attempts", "metadata"),
    ("spans", "data"),
)


class RolloutTables(UnitOfWork):
    """The table of rollouts, each with its latest attempt, and that of attempts that were replaced."""

    rollout_row = Record
    attempt_row = AttemptRecord

    def unpack(self, value: Any, what: str) -> Any:
        raise NotImplementedError

    def rollout(self, rollout_id: str) -> Record | None:
        known = self._loaded.get(rollout_id)
        if known is not None:
            return known
        values = self.one(f"{BOTH} WHERE rollout_id = ?", rollout_id)
        return None if values is None else self._load(values)

    def add_rollouts(self, rows: list[RolloutRow]) -> None:
        if not rows:
            return
        number = int(self.one("SELECT max(number) FROM rollouts")[0] or 0)
        place = self._next_place() - 1
        inserted = []
        for row in rows:
            assert isinstance(row, Record)
            number, place = number + 1, place + 1
            row.number, row.phase = number, PHASES[row.status]
            row.place = place if row.phase == "queued" else ""
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
                    packed_config(row.config),
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
        assert isinstance(row, Record)
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
                packed_config(row.config),
                row.resources_id,
                row.resources_version,
                row.number,
            ),
        )

    def queue_length(self) -> int:
        return int(self.one("SELECT queuing + requeuing FROM totals")[0])

    def queue_head(self, limit: int) -> list[RolloutRow]:
        found = self._sql(f"{BOTH} WHERE phase = 'queued' ORDER BY place LIMIT ?", (limit,)).fetchall()
        return [self._load(values) for values in found]

    def delete_finished_before(self, time: float) -> int:
        numbers = [
            number
            for (number,) in self._sql(
                "SELECT number FROM rollouts WHERE phase IN ('succeeded', 'failed', 'cancelled') AND end_time < ?",
                (time,),
            )
        ]
        for part in chunks(numbers):
            self._delete(part)
        return len(numbers)

    def _delete(self, numbers: Sequence[int]) -> None:
        these = marks(numbers)
        refs: list[tuple[str]] = []
        for table, column in _BODIES:
            refs += self._sql(
                f"SELECT {column} FROM {table} WHERE number IN ({these}) AND substr({column}, 1, 1) = '@'", numbers
            )
        self.connection.executemany("UPDATE blobs SET uses = uses - 1 WHERE hash = substr(?, 2)", refs)
        if refs:
            self._sql("DELETE FROM blobs WHERE uses <= 0")
        spans = self._span_total()
        spans -= self._sql(f"DELETE FROM spans WHERE number IN ({these})", numbers).rowcount
        self._sql("UPDATE totals SET spans_gone = coalesce((SELECT max(id) FROM spans), 0) - ?", (spans,))
        self._sql(f"DELETE FROM old_attempts WHERE number IN ({these})", numbers)
        for phase, count, attempts in self._sql(
            f"SELECT phase, count(*), sum(attempts) FROM rollouts WHERE number IN ({these}) GROUP BY phase", numbers
        ):
            self._add(phase, -count)
            self._add("attempts", -attempts)
        self._sql(f"DELETE FROM rollouts WHERE number IN ({these})", numbers)

    def _span_total(self) -> int:
        """Ids of spans only grow, so the newest one tells how many there were."""
        return int(self.one("SELECT coalesce((SELECT max(id) FROM spans), 0) - spans_gone FROM totals")[0])

    def rollouts(self, wanted: RolloutFilter, page: Page) -> PaginatedResult[Rollout]:
        total = self._total(wanted)
        if page.sort_by is None and wanted.status_in is not None and wanted.logic == "and":
            rows = self._by_status(wanted, page)
        else:
            where, values = _conditions(wanted)
            rows = self._sql(
                f"{BOTH} {where} ORDER BY {page.sort_by or 'number'} {page.sort_order}, number {page.sort_order} "
                "LIMIT ? OFFSET ?",
                (*values, page.limit, page.offset),
            )
        found = [public_rollout(row, self.unpack, row.latest) for row in map(record, rows)]
        return PaginatedResult(found, page.limit, page.offset, total)

    def _by_status(self, wanted: RolloutFilter, page: Page) -> Iterable[Sequence[Any]]:
        """Phase after phase, each in the order of its index: no more rows are read than the page needs."""
        assert wanted.status_in is not None
        where, values = _conditions(wanted)
        skip, left = page.offset, page.limit
        for phase in phases_of(wanted.status_in, reverse=page.sort_order == "desc"):
            found = 0
            for found, row in enumerate(
                self._sql(
                    f"{BOTH} {where} AND phase = ? ORDER BY place {page.sort_order}, number {page.sort_order} LIMIT ?",
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
        if not wanted.asks_only_status:
            where, values = _conditions(wanted)
            return int(self.one(f"SELECT count(*) FROM rollouts {where}", *values)[0])
        return sum(n for status, n in self.totals().items() if wanted.status_in is None or status in wanted.status_in)

    def totals(self) -> dict[str, int]:
        """Rollouts by status. Those at work are counted: there are never more than workers have hands."""
        values = self.one(f"SELECT {', '.join(TOTALS[:6])} FROM totals")
        totals = {name: value for name, value in zip(TOTALS[:6], values, strict=True) if name != "active"}
        return totals | dict(self._sql("SELECT status, count(*) FROM rollouts WHERE phase = 'active' GROUP BY status"))

    def public(self, values: Sequence[Any]) -> Rollout:
        return public_rollout(record(values), self.unpack)

    def search(self, search: RolloutSearch, same_input_as: RolloutRow | None) -> RolloutPage:
        return SQLiteSearch(self, search, same_input_as).page()

    def finished(self, after: int, limit: int) -> list[tuple[int, Rollout]]:
        """The three ways to finish, each in order, merged by their numbers."""
        found: list[Sequence[Any]] = []
        for phase in FINISHED:
            found += self._sql(f"{BOTH} WHERE phase = ? AND place > ? ORDER BY place LIMIT ?", (phase, after, limit))
        found.sort(key=lambda values: values[16])
        return [(values[16], self.public(values)) for values in found[:limit]]

    def unfinished(self, rollout_ids: Sequence[str]) -> list[str]:
        statuses: dict[str, str] = {}
        for part in chunks(list(rollout_ids)):
            statuses |= dict(
                self._sql(f"SELECT rollout_id, status FROM rollouts WHERE rollout_id IN ({marks(part)})", part)
            )
        for rollout_id in rollout_ids:
            if rollout_id not in statuses:
                raise UnknownIdError(f"rollout {rollout_id!r} does not exist")
        return [rollout_id for rollout_id in rollout_ids if statuses[rollout_id] not in FINISHED]

    def attempt(self, rollout: RolloutRow, attempt_id: str) -> AttemptRow | None:
        latest = self.latest_attempt(rollout)
        if latest is not None and latest.attempt_id == attempt_id:
            return latest
        if rollout.attempts < 2:
            return None
        values = self.one(
            f"SELECT {OLD_ATTEMPT} FROM old_attempts WHERE number = ? AND attempt_id = ?", rollout.number, attempt_id
        )
        return values and attempt_record(rollout.rollout_id, rollout.number, values, is_old=True)

    def latest_attempt(self, rollout: RolloutRow) -> AttemptRow | None:
        assert isinstance(rollout, Record)
        return rollout.latest

    def attempts(self, rollout: RolloutRow) -> list[AttemptRow]:
        latest = self.latest_attempt(rollout)
        old = self._sql(
            f"SELECT {OLD_ATTEMPT} FROM old_attempts WHERE number = ? ORDER BY sequence_id", (rollout.number,)
        )
        found: list[AttemptRow] = [
            attempt_record(rollout.rollout_id, rollout.number, values, is_old=True) for values in old
        ]
        return found if latest is None else [*found, latest]

    def add_attempt(self, row: AttemptRow) -> None:
        assert isinstance(row, AttemptRecord)
        rollout = self._loaded[row.rollout_id]
        if rollout.latest is not None:
            self._retire(rollout.latest)
        if row.request_id is not None:
            self._requested += 1
            row.request_id = f"{row.request_id}#{self._requested:05d}"
        rollout.latest = row
        self._dirty[rollout.number] = rollout
        self._add("attempts", 1)

    def _retire(self, row: AttemptRecord) -> None:
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
        assert isinstance(row, AttemptRecord)
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
        rows = [self._load(found) for found in self._sql(f"{BOTH} WHERE {where}", values).fetchall()]
        return [(row, row.latest) for row in rows if row.latest is not None]

    def claimed(self, request_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        """The attempts of a request in the order of its answer, replaced ones included."""
        bounds = f"{request_id}#", f"{request_id}$"
        found = self._latest_of("request_id > ? AND request_id < ?", *bounds)
        for values in self._sql(
            f"SELECT number, {OLD_ATTEMPT} FROM old_attempts WHERE request_id > ? AND request_id < ?", bounds
        ).fetchall():
            row = self._load(self.one(f"{BOTH} WHERE number = ?", values[0]))
            found.append((row, attempt_record(row.rollout_id, row.number, values[1:], is_old=True)))
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
        found: float | None = self.one("SELECT min(deadline) FROM rollouts WHERE deadline IS NOT NULL")[0]
        return found


def _total_of(status: str) -> str:
    phase = PHASES[status]
    return status if phase == "queued" else phase


def _conditions(wanted: RolloutFilter) -> tuple[str, list[Any]]:
    """The WHERE clause."""
    parts: list[str] = []
    values: list[Any] = []

    def add(condition: str, *given: Any) -> None:
        parts.append(condition)
        values.extend(given)

    if wanted.status_in is not None:
        add(f"status IN ({marks(wanted.status_in)})", *wanted.status_in)
    if wanted.rollout_id_in is not None:
        add(
            "rollout_id IN (SELECT value FROM json_each(?))", msgspec.json.encode(sorted(wanted.rollout_id_in)).decode()
        )
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
