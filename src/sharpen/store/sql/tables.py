"""The questions and changes of the rules, as SQL that SQLite and PostgreSQL both understand.

`SQLTables` is what one method has read and changed, on one connection: the rollouts that it touched are written once,
when it has succeeded. A subclass brings what its database does in its own way: how a statement is run, what is counted,
how rollouts enter and leave the queue, how large bodies are kept, and which index leads to what.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from ...errors import UnknownIdError
from ...types import (
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutPage,
    RolloutStatus,
    Span,
    Worker,
    WorkerStatus,
)
from ..base import FilterLogic
from ..database import TIMES, WorkerTimes, worker_of
from ..rules import StoreRules
from ..search import RolloutSearch, find_page
from ..tables import (
    AttemptRow,
    Match,
    Page,
    RolloutFilter,
    RolloutRow,
    Tables,
    paginate,
    public_rollout,
    select_workers,
)
from ..transitions import FINISHED, OPEN, PHASES, phases_of
from .rows import (
    COLUMNS,
    OLD_ATTEMPT,
    RETIRED,
    SPAN,
    AttemptRecord,
    Condition,
    RolloutRecord,
    Row,
    body_values,
    bounded,
    decode_resources,
    encode,
    findable,
    joined,
    marks,
    restore_old_attempt,
    restore_rollout,
    restore_span,
    retired_values,
)
from .search import Source, SQLScan

_RETIRE = f"INSERT INTO old_attempts ({RETIRED}) VALUES ({marks(RETIRED.split())})"
_SAVE_OLD = (
    "UPDATE old_attempts SET status = ?, end_time = ?, worker_id = ?, last_heartbeat_time = ?, metadata = ?, "
    "unwanted = ? WHERE number = ? AND sequence_id = ?"
)
_UNWANTED = (
    "SELECT attempt_id FROM rollouts WHERE worker_id = ? AND unwanted UNION ALL "
    "SELECT attempt_id FROM old_attempts WHERE worker_id = ? AND unwanted"
)
_RESOURCES = "SELECT resources_id, create_time, update_time, version, data FROM resources"
_WORKERS = (
    "SELECT worker_id, heartbeat_stats, last_heartbeat_time, last_dequeue_time, last_busy_time, last_idle_time "
    "FROM workers"
)
_OPEN = "phase = 'active' AND attempt_status IN ('preparing', 'running')"
_HEARTBEAT = (
    "INSERT INTO workers (worker_id, heartbeat_stats, last_heartbeat_time) VALUES (?, ?, ?) ON CONFLICT (worker_id) "
    "DO UPDATE SET heartbeat_stats = excluded.heartbeat_stats, last_heartbeat_time = excluded.last_heartbeat_time"
)
# Other stores note times of the same workers: the latest stays.
_LATEST = "{0} = CASE WHEN workers.{0} IS NULL OR excluded.{0} > workers.{0} THEN excluded.{0} ELSE workers.{0} END"
_WORKER_TIMES = (
    f"INSERT INTO workers (worker_id, {', '.join(TIMES)}) VALUES (?, ?, ?, ?) ON CONFLICT (worker_id) "
    f"DO UPDATE SET {', '.join(_LATEST.format(name) for name in TIMES)}"
)


class SQLRules(StoreRules):
    """The rules, and what the store itself writes."""

    tables: "SQLTables"

    def write_worker_times(self, noted: dict[str, dict[str, float]]) -> None:
        self.tables.write_worker_times(noted)


class SQLTables(Tables):
    """What one method has read and changed on one connection; the questions that it may ask."""

    rollout_row: type[RolloutRecord] = RolloutRecord
    attempt_row = AttemptRecord
    columns: ClassVar[str] = COLUMNS
    open_of_worker: ClassVar[str]
    """The condition on the rollouts that a worker works on, as an index serves it."""
    finish_column: ClassVar[str]
    """The number in the order of finishing, NULL before that."""
    has_reward_index = True

    def __init__(self, worker_times: WorkerTimes) -> None:
        self.both = f"SELECT {self.columns} FROM rollouts"
        self.locks = ""
        """What a question for rollouts ends with, where the method may change them."""
        self._worker_times = worker_times
        self._loaded: dict[str, RolloutRecord | None] = {}
        self._dirty: dict[str, RolloutRecord] = {}
        self._requested = 0

    # -- what each database does in its own way ------------------------------------------------------

    @abstractmethod
    def rows(self, sql: str, *values: Any) -> list[Row]:
        """Return the rows of one of a fixed number of questions; they see what the method has changed."""

    @abstractmethod
    def query(self, sql: str, values: Sequence[Any]) -> list[Row]:
        """Return the rows of a question that was put together for this call."""

    @abstractmethod
    def write(self, sql: str, *values: Any) -> None:
        """Change something, now or together with what comes next."""

    @abstractmethod
    def totals(self, statuses: Iterable[str]) -> dict[str, int]:
        """Return how many rollouts there are in each of the statuses, and maybe in others."""

    @abstractmethod
    def unpack(self, value: Any, what: str) -> Any:
        """Return the task or the metadata of a column."""

    @abstractmethod
    def any_of(self, column: str, values: Sequence[str]) -> Condition:
        """Return the condition that the column has one of any number of values."""

    @abstractmethod
    def in_phase(self, phase: str, order: str) -> tuple[str, str]:
        """Return a condition on the rollouts of a phase, and their order, as one index serves both."""

    def contains(self, column: str) -> str:
        """Return the condition that a text contains a value."""
        return f"instr({column}, ?) > 0"

    def limit(self, limit: int) -> int | None:
        return bounded(limit)

    def span_text(self, value: str) -> Any:
        """Return what an id or a name of a span is compared with."""
        return value

    def restore_span(self, rollout_id: str, attempts: dict[int, str], values: Row) -> Span:
        return restore_span(rollout_id, attempts, values[:8], values[8])

    # -- what a search asks of a database ------------------------------------------------------------

    @abstractmethod
    def begin_search(self) -> None:
        """Look at what there is to search with."""

    @abstractmethod
    def query_in_time(self, sql: str, values: Sequence[Any], seconds: float | None) -> list[Row] | None:
        """Return the rows of a question, None if it takes longer."""

    @abstractmethod
    def totals_in_time(self, statuses: Iterable[str]) -> dict[str, int] | None:
        """Return `totals`, None if counting takes too long."""

    @abstractmethod
    def last_finish(self) -> int:
        """Return the highest number in the order of finishing."""

    @abstractmethod
    def finish_of(self, row: Row) -> int:
        """Return the number of a rollout in the order of finishing, 0 if it has not finished."""

    @abstractmethod
    def by_number(self, where: str) -> Source:
        """Return the rollouts that meet a condition, to be read by their numbers."""

    @abstractmethod
    def by_reward(self, where: str, values: Sequence[Any]) -> Source:
        """Return the rollouts that meet a condition on their rewards."""

    @abstractmethod
    def phase_sources(self, phases: Sequence[str]) -> list[Source] | None:
        """Return the rollouts of some phases, None where no index leads to them."""

    @abstractmethod
    def finished_between(self, phases: Sequence[str], first: int, last: int) -> tuple[Source, str]:
        """Return the rollouts of some phases with these numbers in the order of finishing, and that order, reversed."""

    @abstractmethod
    def group_source(self, group: str) -> Source | None:
        """Return the rollouts among which those of a group are, None where no index leads to them."""

    @abstractmethod
    def has_group(self, group: str) -> Condition:
        """Return the condition on the group in the metadata."""

    @abstractmethod
    def has_text(self, needles: Sequence[str]) -> Condition:
        """Return the condition that the id, the input or the metadata contains one of the texts."""

    # -- reading and keeping rows --------------------------------------------------------------------

    def one(self, sql: str, *values: Any) -> Any:
        found = self.rows(sql, *values)
        return found[0] if found else None

    def forget(self) -> None:
        """Drop what a method read or changed and did not write."""
        self._loaded, self._dirty, self._requested = {}, {}, 0

    def _load(self, values: Row) -> RolloutRecord:
        known = self._loaded.get(values[0])
        if known is None:
            known = self._loaded[values[0]] = restore_rollout(self.rollout_row, values)
        return known

    def _touch(self, row: RolloutRow) -> None:
        assert isinstance(row, RolloutRecord)
        self._dirty[row.rollout_id] = row

    def _touch_rollout_of(self, attempt: AttemptRow) -> RolloutRecord:
        rollout = self._loaded[attempt.rollout_id]
        assert rollout is not None
        self._touch(rollout)
        return rollout

    def public(self, values: Row) -> Rollout:
        return public_rollout(restore_rollout(self.rollout_row, values), self.unpack)

    # -- rollouts ------------------------------------------------------------------------------------

    def rollout(self, rollout_id: str) -> RolloutRecord | None:
        if rollout_id in self._loaded:
            return self._loaded[rollout_id]
        values = self.one(f"{self.both} WHERE rollout_id = ?{self.locks}", findable(rollout_id))
        return None if values is None else self._load(values)

    def save_rollout(self, row: RolloutRow, old_status: RolloutStatus) -> None:
        self._touch(row)

    def save_body(self, row: RolloutRow) -> None:
        self.write(
            "UPDATE rollouts SET mode = ?, resources_id = ?, resources_version = ?, config = ?, input = ?, "
            "metadata = ? WHERE number = ?",
            *body_values(row),
            row.number,
        )

    def rollouts(self, wanted: RolloutFilter, page: Page) -> PaginatedResult[Rollout]:
        where, values = self._conditions(wanted)
        rows: Iterable[Row]
        if page.sort_by is None and wanted.status_in is not None and wanted.logic == "and":
            rows = self._by_status(wanted.status_in, where, values, page)
        else:
            rows = self._page(f"{self.both} WHERE {where}", values, page, "number")
        if wanted.asks_only_status:
            totals = self.totals(wanted.status_in or PHASES)
            total = sum(n for status, n in totals.items() if wanted.status_in is None or status in wanted.status_in)
        else:
            total = self.query(f"SELECT count(*) FROM rollouts WHERE {where}", values)[0][0]
        found = [restore_rollout(self.rollout_row, values) for values in rows]
        items = [public_rollout(row, self.unpack, row.latest) for row in found]
        return PaginatedResult(items, page.limit, page.offset, total)

    def _by_status(self, statuses: Iterable[str], where: str, values: list[Any], page: Page) -> Iterable[Row]:
        """Phase after phase, each in the order of its index: no more rows are read than the page needs."""
        skip, left = bounded(page.offset), page.limit
        for phase in phases_of(statuses, reverse=page.sort_order == "desc"):
            within, order = self.in_phase(phase, page.sort_order)
            found = self.query(
                f"{self.both} WHERE {where} AND {within} ORDER BY {order} LIMIT ?",
                (*values, self.limit(left if left < 0 else left + skip)),
            )
            yield from found[skip:]
            if left >= 0:
                left -= max(len(found) - skip, 0)
                if left == 0:
                    return
            skip = max(skip - len(found), 0)

    def _page(self, select: str, values: Sequence[Any], page: Page, last: str) -> list[Row]:
        """Return rows sorted and cut by the database, those without the value first in ascending order."""
        order, by = page.sort_order, ""
        if page.sort_by is not None:
            by = f"{page.sort_by} {order} NULLS {'FIRST' if order == 'asc' else 'LAST'}, "
        cut = (self.limit(page.limit), bounded(page.offset))
        return self.query(f"{select} ORDER BY {by}{last} {order} LIMIT ? OFFSET ?", (*values, *cut))

    def _conditions(self, wanted: RolloutFilter) -> Condition:
        found: list[Condition] = []
        if wanted.status_in is not None:
            found.append((f"status IN ({marks(wanted.status_in)})", sorted(wanted.status_in)))
        if wanted.rollout_id_in is not None:
            found.append(self.any_of("rollout_id", sorted(findable(each) for each in wanted.rollout_id_in)))
        if wanted.rollout_id_contains is not None:
            found.append((self.contains("rollout_id"), [findable(wanted.rollout_id_contains)]))
        if wanted.mode is not None:
            found.append(("mode = ?", [wanted.mode]))
        if wanted.reward_min is not None:
            found.append(("reward >= ?", [float(wanted.reward_min)]))
        if wanted.reward_max is not None:
            found.append(("reward <= ?", [float(wanted.reward_max)]))
        return joined(found, wanted.logic)

    def search(self, search: RolloutSearch, same_input_as: RolloutRow | None) -> RolloutPage:
        return find_page(SQLScan(self, search, same_input_as), search, self.public)

    def unfinished(self, rollout_ids: Sequence[str]) -> list[str]:
        where, values = self.any_of("rollout_id", [findable(each) for each in rollout_ids])
        statuses: dict[str, str] = dict(self.rows(f"SELECT rollout_id, status FROM rollouts WHERE {where}", *values))
        for rollout_id in rollout_ids:
            if rollout_id not in statuses:
                raise UnknownIdError(f"rollout {rollout_id!r} does not exist")
        return [rollout_id for rollout_id in rollout_ids if statuses[rollout_id] not in FINISHED]

    # -- attempts ------------------------------------------------------------------------------------

    def latest_attempt(self, rollout: RolloutRow) -> AttemptRecord | None:
        assert isinstance(rollout, RolloutRecord)
        return rollout.latest

    def attempt(self, rollout: RolloutRow, attempt_id: str) -> AttemptRow | None:
        latest = self.latest_attempt(rollout)
        if latest is not None and latest.attempt_id == attempt_id:
            return latest
        return next((old for old in self._replaced(rollout) if old.attempt_id == attempt_id), None)

    def attempts(self, rollout: RolloutRow) -> list[AttemptRow]:
        latest = self.latest_attempt(rollout)
        return [] if latest is None else [*self._replaced(rollout), latest]

    def _replaced(self, rollout: RolloutRow) -> list[AttemptRow]:
        if rollout.attempts < 2:
            return []
        found = self.rows(
            f"SELECT {OLD_ATTEMPT} FROM old_attempts WHERE number = ? ORDER BY sequence_id", rollout.number
        )
        return [restore_old_attempt(rollout.rollout_id, rollout.number, values) for values in found]

    def add_attempt(self, row: AttemptRow) -> None:
        assert isinstance(row, AttemptRecord)
        rollout = self._touch_rollout_of(row)
        if rollout.latest is not None:
            self.write(_RETIRE, *retired_values(rollout.latest))
        if row.request_id is not None:
            self._requested += 1
            row.request_id = f"{row.request_id}#{self._requested:05d}"  # its position in the answer
        rollout.latest = row

    def save_attempt(self, row: AttemptRow) -> None:
        assert isinstance(row, AttemptRecord)
        self._touch_rollout_of(row)
        if row.is_old:
            self.write(
                _SAVE_OLD,
                row.status,
                row.end_time,
                row.worker_id,
                row.last_heartbeat_time,
                row.metadata,
                row.unwanted,
                row.number,
                row.sequence_id,
            )

    def _with_latest(self, rows: Iterable[Row]) -> list[tuple[RolloutRow, AttemptRow]]:
        loaded = [self._load(values) for values in rows]
        return [(row, row.latest) for row in loaded if row.latest is not None]

    def claimed(self, request_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        """The attempts of a request in the order of its answer, replaced ones included."""
        latest, old = self._claimed_rows(request_id)
        found = self._with_latest(latest)
        for number, *values in old:
            row = self._load(self.one(f"{self.both} WHERE number = ?", number))
            found.append((row, restore_old_attempt(row.rollout_id, number, values)))
        return sorted(found, key=lambda pair: pair[1].request_id or "")

    def _claimed_rows(self, request_id: str) -> tuple[list[Row], list[Row]]:
        latest, old = (self.rows(sql, *values) for sql, values in self.claim_questions(request_id))
        return latest, old

    def claim_questions(self, request_id: str) -> list[Condition]:
        """What finds the rollouts of an answer that was given before: those it is the latest attempt of, and others."""
        bounds = [f"{request_id}#", f"{request_id}$"]
        within = "request_id > ? AND request_id < ?"
        return [
            (f"{self.both} WHERE {within}", bounds),
            (f"SELECT number, {OLD_ATTEMPT} FROM old_attempts WHERE {within}", bounds),
        ]

    def open_attempts(self, worker_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        found = self.rows(f"{self.both} WHERE {self.open_of_worker} ORDER BY rollout_id{self.locks}", worker_id)
        return [(row, attempt) for row, attempt in self._with_latest(found) if attempt.status in OPEN]

    def unwanted(self, worker_id: str) -> list[str]:
        return [attempt_id for (attempt_id,) in self.rows(_UNWANTED, worker_id, worker_id)]

    def due(self, now: float) -> list[tuple[RolloutRow, AttemptRow]]:
        locks = f"{self.locks} SKIP LOCKED" if self.locks else ""
        return self._with_latest(self.rows(f"{self.both} WHERE deadline <= ? ORDER BY deadline{locks}", now))

    def next_deadline(self) -> float | None:
        found: float | None = self.one("SELECT min(deadline) FROM rollouts WHERE deadline IS NOT NULL")[0]
        return found

    # -- spans ---------------------------------------------------------------------------------------

    def spans(
        self, rollout: RolloutRow, attempt: AttemptRow | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Span]:
        found = [attempt] if attempt is not None else self.attempts(rollout)
        attempts = {each.sequence_id: each.attempt_id for each in found}
        matching = (self._matching(match, self.span_text(match.value)) for match in matches)
        where, values = joined(matching, logic)
        where, values = f"number = ? AND {where}", [rollout.number, *values]
        if attempt is not None:
            where, values = f"attempt = ? AND {where}", [attempt.sequence_id, *values]
        total = self.query(f"SELECT count(*) FROM spans WHERE {where}", values)[0][0]
        rows = self._page(f"SELECT {SPAN} FROM spans WHERE {where}", values, page, "id")
        items = [self.restore_span(rollout.rollout_id, attempts, row) for row in rows]
        return PaginatedResult(items, page.limit, page.offset, total)

    def _matching(self, match: Match, value: Any) -> Condition:
        return self.contains(match.field) if match.contains else f"{match.field} = ?", [value]

    # -- resources -----------------------------------------------------------------------------------

    def add_resources(self, update: ResourcesUpdate, request_id: str | None) -> None:
        self.write(
            "INSERT INTO resources (resources_id, version, create_time, update_time, data, request_id) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            update.resources_id,
            update.version,
            update.create_time,
            update.update_time,
            encode(update.resources).decode(),
            request_id,
        )

    def _resources(self, which: str, *values: Any) -> ResourcesUpdate | None:
        found = self.one(f"{_RESOURCES} {which}", *values)
        return None if found is None else _update(found)

    def resources(self, resources_id: str, version: int | None) -> ResourcesUpdate | None:
        wanted = findable(resources_id)
        if version is None:
            return self._resources("WHERE resources_id = ? ORDER BY version DESC LIMIT 1", wanted)
        return self._resources("WHERE resources_id = ? AND version = ?", wanted, int(version))

    def resources_version(self, resources_id: str | None) -> tuple[str, int] | None:
        select = "SELECT resources_id, version FROM resources"
        if resources_id is None:
            found = self.one(f"{select} ORDER BY position DESC LIMIT 1")
        else:
            found = self.one(f"{select} WHERE resources_id = ? ORDER BY version DESC LIMIT 1", findable(resources_id))
        return None if found is None else (found[0], found[1])

    def resources_by_request(self, request_id: str) -> ResourcesUpdate | None:
        return self._resources("WHERE request_id = ?", request_id)

    def latest_resources(self) -> ResourcesUpdate | None:
        return self._resources("ORDER BY position DESC LIMIT 1")

    def all_resources(
        self, matches: list[Match], logic: FilterLogic, page: Page, *, all_versions: bool
    ) -> PaginatedResult[ResourcesUpdate]:
        where, values = joined((self._matching(match, findable(match.value)) for match in matches), logic)
        if not all_versions:
            where += " AND position IN (SELECT max(position) FROM resources GROUP BY resources_id)"
        total = self.query(f"SELECT count(*) FROM resources WHERE {where}", values)[0][0]
        found = self._page(f"{_RESOURCES} WHERE {where}", values, page, "position")
        return PaginatedResult([_update(row) for row in found], page.limit, page.offset, total)

    # -- workers -------------------------------------------------------------------------------------

    def worker(self, worker_id: str) -> Worker | None:
        wanted = findable(worker_id)
        found = self.one(f"{_WORKERS} WHERE worker_id = ?", wanted)
        if found is None and worker_id not in self._worker_times:
            return None
        work = self.rows(
            f"SELECT rollout_id, attempt_id FROM rollouts WHERE {self.open_of_worker} AND {_OPEN} "
            "ORDER BY attempt_start DESC, attempt_id DESC LIMIT 1",
            wanted,
        )
        return self._worker(found or _unseen(worker_id), work[0] if work else None)

    def _worker(self, values: Row, work: Row | None) -> Worker:
        return worker_of(values, self._worker_times.get(values[0], {}), work)

    def workers(
        self, status_in: frozenset[WorkerStatus] | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Worker]:
        """Workers are few, and whether one is busy follows from the rollouts: they are filtered here."""
        rows = {values[0]: values for values in self.rows(f"{_WORKERS} ORDER BY worker_id")}
        for worker_id in self._worker_times.names():
            rows.setdefault(worker_id, _unseen(worker_id))
        work = {
            worker_id: (rollout_id, attempt_id)
            for worker_id, rollout_id, attempt_id in self.rows(
                f"SELECT worker_id, rollout_id, attempt_id FROM rollouts WHERE {_OPEN} AND worker_id IS NOT NULL "
                "ORDER BY attempt_start, attempt_id"
            )
        }
        found = [self._worker(values, work.get(worker_id)) for worker_id, values in rows.items()]
        return paginate(select_workers(found, status_in, matches, logic), page)

    def save_heartbeat(self, worker_id: str, now: float, stats: dict[str, Any] | None) -> Worker:
        self.write(_HEARTBEAT, worker_id, None if stats is None else encode(stats).decode(), now)
        worker = self.worker(worker_id)
        assert worker is not None
        if worker.status == "idle" and worker.last_idle_time is None:
            self._worker_times.note(worker_id, now, "last_idle_time")
        return worker

    def mark_busy(self, worker_id: str, attempt: AttemptRow, now: float) -> None:
        self._worker_times.note(worker_id, now, "last_dequeue_time", "last_busy_time")

    def mark_idle(self, worker_id: str, now: float) -> None:
        self._worker_times.note(worker_id, now, "last_idle_time")

    def write_worker_times(self, noted: dict[str, dict[str, float]]) -> None:
        """Write what was noted of workers, in one order since others do the same."""
        for worker_id, times in sorted(noted.items()):
            self.write(_WORKER_TIMES, worker_id, *(times.get(name) for name in TIMES))

    def known_workers(self) -> int:
        return len(
            {worker_id for (worker_id,) in self.rows("SELECT worker_id FROM workers")} | self._worker_times.names()
        )


def _update(row: Row) -> ResourcesUpdate:
    return ResourcesUpdate(row[0], row[1], row[2], row[3], decode_resources(row[4]))


def _unseen(worker_id: str) -> Row:
    return worker_id, None, None, None, None, None
