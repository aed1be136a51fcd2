"""The tables of the store in PostgreSQL, on one connection."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ...types import PaginatedResult, Resource, ResourcesUpdate, Span, Worker, WorkerStatus
from ..base import FilterLogic
from ..jobs import TIMES, WorkerTimes, worker_of
from ..tables import AttemptRow, Counts, Match, Page, RolloutRow, paginate, select_workers
from ..task_json import decode_equal, encode_equal
from .records import Record
from .rollouts import RolloutTables
from .session import Row, Session, Statement, Value
from .spans import COPY, FEW, INSERT, SpanValues, copied, findable_bytes, restore_span, span_values
from .values import bounded, findable

PRUNED_AT_ONCE = 1000

_encode = msgspec.json.Encoder().encode
_decode_resources = msgspec.json.Decoder(dict[str, Resource]).decode

_SPAN_IDS = Statement("SELECT span_id FROM spans WHERE number = $1 AND attempt = $2 AND span_id = ANY($3::bytea[])")
_RESOURCES = "SELECT resources_id, create_time, update_time, version, data FROM resources"
_RESOURCES_NEWEST = Statement(f"{_RESOURCES} WHERE resources_id = $1 ORDER BY version DESC LIMIT 1")
_RESOURCES_VERSION = Statement(f"{_RESOURCES} WHERE resources_id = $1 AND version = $2")
_RESOURCES_REQUEST = Statement(f"{_RESOURCES} WHERE request_id = $1")
_RESOURCES_LATEST = Statement(f"{_RESOURCES} ORDER BY position DESC LIMIT 1")
_VERSION = Statement(
    "SELECT resources_id, version FROM resources WHERE resources_id = $1 ORDER BY version DESC LIMIT 1"
)
_VERSION_LATEST = Statement("SELECT resources_id, version FROM resources ORDER BY position DESC LIMIT 1")
_ADD_RESOURCES = Statement(
    "INSERT INTO resources (resources_id, version, create_time, update_time, data, request_id, changes) "
    "VALUES ($1, $2, $3, $4, $5, $6, $7)"
)
_FIND_RESOURCES_MARK = Statement("SELECT changes FROM resources WHERE resources_id = $1 AND version = $2")
_WORKER_COLUMNS = "worker_id, heartbeat_stats, last_heartbeat_time, last_dequeue_time, last_busy_time, last_idle_time"
_WORKER = Statement(f"SELECT {_WORKER_COLUMNS} FROM workers WHERE worker_id = $1")
_IN_HAND = "phase = 'active' AND attempt_status IN ('preparing', 'running')"
_WORK_OF = Statement(
    f"SELECT rollout_id, attempt_id FROM rollouts WHERE {_IN_HAND} AND worker_id = $1 "
    "ORDER BY attempt_start DESC, attempt_id DESC LIMIT 1"
)
_ALL_WORK = (
    "SELECT DISTINCT ON (worker_id) worker_id, rollout_id, attempt_id FROM rollouts "
    f"WHERE {_IN_HAND} AND worker_id IS NOT NULL ORDER BY worker_id, attempt_start DESC, attempt_id DESC"
)
_HEARTBEAT = Statement(
    "INSERT INTO workers (worker_id, heartbeat_stats, last_heartbeat_time) VALUES ($1, $2, $3) "
    "ON CONFLICT (worker_id) DO UPDATE SET heartbeat_stats = $2, last_heartbeat_time = $3"
)
_WORKER_TIMES = Statement(
    "INSERT INTO workers (worker_id, last_dequeue_time, last_busy_time, last_idle_time) VALUES ($1, $2, $3, $4) "
    "ON CONFLICT (worker_id) DO UPDATE SET last_dequeue_time = greatest($2, workers.last_dequeue_time), "
    "last_busy_time = greatest($3, workers.last_busy_time), last_idle_time = greatest($4, workers.last_idle_time)"
)
_OLD_ROLLOUTS = Statement(
    "SELECT number FROM rollouts WHERE finish IS NOT NULL AND end_time < $1 ORDER BY finish LIMIT $2 "
    "FOR UPDATE SKIP LOCKED"
)
_DELETES = [
    Statement(f"DELETE FROM {table} WHERE number = ANY($1::bigint[])")
    for table in ("spans", "old_attempts", "rollouts")
]
_COUNTS = "SELECT status, count(*), sum(attempts), sum(spans) FROM rollouts GROUP BY status"
_OTHER_COUNTS = (
    "SELECT (SELECT count(*) FROM rollouts WHERE phase = 'active' AND attempts > 0 AND attempt_end IS NULL), "
    "(SELECT count(*) FROM resources), "
    "(SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class "
    "WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r')"
)


class PostgresTables(RolloutTables):
    """Everything that the rules need, as SQL."""

    def __init__(self, session: Session, schema_key: int, worker_times: WorkerTimes) -> None:
        super().__init__(session, schema_key)
        self._worker_times = worker_times
        self._spans: list[SpanValues] = []

    # -- spans ---------------------------------------------------------------------------------------

    def missing_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: Sequence[Span]) -> list[bool]:
        assert isinstance(rollout, Record)
        if not rollout.spans:
            return [True] * len(spans)
        ids = [findable_bytes(span.span_id) for span in spans]
        known = {span_id for (span_id,) in self.rows(_SPAN_IDS, rollout.number, attempt.sequence_id, ids)}
        place = (rollout.number, attempt.sequence_id)
        known |= {values[3] for values in self._spans if values[:2] == place}  # under "latest", say, in the same call
        return [span_id not in known for span_id in ids]

    def add_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: list[Span]) -> None:
        assert isinstance(rollout, Record)
        self._spans += [span_values(rollout.number, attempt.sequence_id, span) for span in spans]
        rollout.spans += len(spans)
        self._touch(rollout)

    def _flush(self) -> None:
        if len(self._spans) > FEW:
            self.ask([])
            self.session.copy(COPY, copied(self._spans))
        else:
            for values in self._spans:
                self.later(INSERT, *values)
        super()._flush()

    def forget(self) -> None:
        super().forget()
        self._spans = []

    def spans(
        self, rollout: RolloutRow, attempt: AttemptRow | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Span]:
        values: list[Value] = [rollout.number]
        where = "WHERE number = $1"
        if attempt is not None:
            values.append(attempt.sequence_id)
            where += " AND attempt = $2"
            ids = {attempt.sequence_id: attempt.attempt_id}
        else:
            ids = {each.sequence_id: each.attempt_id for each in self.attempts(rollout)}
        where += _matching(matches, logic, values, "bytea")
        total = self.one(f"SELECT count(*) FROM spans {where}", *values)[0]
        columns = "attempt, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, data"
        found = self._page(f"SELECT {columns} FROM spans {where}", values, page, page.sort_by or "id", "id")
        items = [restore_span(rollout.rollout_id, ids, row) for row in found]
        return PaginatedResult(items, page.limit, page.offset, total)

    def _page(self, select: str, values: Sequence[Value], page: Page, sort_by: str, last: str) -> list[Row]:
        """Sorted and cut by the database, nulls first as in the other stores."""
        order, at = page.sort_order, len(values)
        nulls = "FIRST" if order == "asc" else "LAST"
        return self.rows(
            f"{select} ORDER BY {sort_by} {order} NULLS {nulls}, {last} {order} "
            f"LIMIT ${at + 1}::bigint OFFSET ${at + 2}::bigint",
            *values,
            None if page.limit < 0 else bounded(page.limit),
            bounded(page.offset),
        )

    # -- resources -----------------------------------------------------------------------------------

    def add_resources(self, update: ResourcesUpdate, request_id: str | None) -> None:
        self.later(
            _ADD_RESOURCES,
            update.resources_id,
            update.version,
            update.create_time,
            update.update_time,
            _encode(update.resources),
            request_id,
            self.mark,
        )
        self.evidence = (_FIND_RESOURCES_MARK, (update.resources_id, update.version))

    def _resources(self, statement: Statement, *values: Value) -> ResourcesUpdate | None:
        found = self.one(statement, *values)
        return None if found is None else _update(found)

    def resources(self, resources_id: str, version: int | None) -> ResourcesUpdate | None:
        if version is None:
            return self._resources(_RESOURCES_NEWEST, findable(resources_id))
        return self._resources(_RESOURCES_VERSION, findable(resources_id), int(version))

    def resources_version(self, resources_id: str | None) -> tuple[str, int] | None:
        found = self.one(_VERSION_LATEST) if resources_id is None else self.one(_VERSION, findable(resources_id))
        return None if found is None else (found[0], found[1])

    def resources_by_request(self, request_id: str) -> ResourcesUpdate | None:
        return self._resources(_RESOURCES_REQUEST, request_id)

    def latest_resources(self) -> ResourcesUpdate | None:
        return self._resources(_RESOURCES_LATEST)

    def all_resources(
        self, matches: list[Match], logic: FilterLogic, page: Page, *, all_versions: bool
    ) -> PaginatedResult[ResourcesUpdate]:
        values: list[Value] = []
        where = f"WHERE true{_matching(matches, logic, values, 'text')}"
        if not all_versions:
            where += " AND position IN (SELECT max(position) FROM resources GROUP BY resources_id)"
        total = self.one(f"SELECT count(*) FROM resources {where}", *values)[0]
        found = self._page(f"{_RESOURCES} {where}", values, page, page.sort_by or "position", "position")
        return PaginatedResult([_update(row) for row in found], page.limit, page.offset, total)

    # -- workers -------------------------------------------------------------------------------------

    def worker(self, worker_id: str) -> Worker | None:
        wanted = findable(worker_id)
        rows, work = (self.session.rows(answer) for answer in self.ask([(_WORKER, (wanted,)), (_WORK_OF, (wanted,))]))
        if not rows and worker_id not in self._worker_times:
            return None
        return self._worker(rows[0] if rows else _unseen(worker_id), work[0] if work else None)

    def _worker(self, values: Row, work: Sequence[str] | None) -> Worker:
        return worker_of(values, self._worker_times.get(values[0], {}), work)

    def save_heartbeat(self, worker_id: str, now: float, stats: dict[str, Any] | None) -> Worker:
        self.later(_HEARTBEAT, worker_id, None if stats is None else _encode(stats), now)
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
            self.later(_WORKER_TIMES, worker_id, *(times.get(name) for name in TIMES))

    def workers(
        self, status_in: frozenset[WorkerStatus] | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Worker]:
        """Workers are few, and whether one is busy follows from the rollouts: they are filtered here."""
        select = f"SELECT {_WORKER_COLUMNS} FROM workers ORDER BY worker_id"
        answers = self.ask([(select, ()), (_ALL_WORK, ())])
        rows = {values[0]: values for values in self.session.rows(answers[0])}
        work = {values[0]: values[1:] for values in self.session.rows(answers[1])}
        for worker_id in self._worker_times.names():
            rows.setdefault(worker_id, _unseen(worker_id))
        found = [self._worker(values, work.get(worker_id)) for worker_id, values in rows.items()]
        return paginate(select_workers(found, status_in, matches, logic), page)

    # -- the rest ------------------------------------------------------------------------------------

    def delete_finished_before(self, time: float) -> int:
        """Delete the oldest of them, so many at once: whoever wants more calls again."""
        numbers = [str(number) for (number,) in self.rows(_OLD_ROLLOUTS, time, PRUNED_AT_ONCE)]
        if numbers:
            for statement in _DELETES:
                self.later(statement, numbers)
        return len(numbers)

    def pack(self, value: Any, what: str) -> Any:
        return None if value is None else encode_equal(value, what).decode()

    def unpack(self, value: Any, what: str) -> Any:
        return None if value is None else decode_equal(value, what)

    def drop(self, value: Any) -> None:
        """Bodies stand in their rows and go with them."""

    def counts(self) -> Counts:
        rows = self.rows(_COUNTS)
        open_attempts, resources, size_bytes = self.one(_OTHER_COUNTS)
        workers = {row[0] for row in self.rows("SELECT worker_id FROM workers")} | self._worker_times.names()
        return Counts(
            {status: count for status, count, _, _ in rows},
            sum(int(attempts) for _, _, attempts, _ in rows),
            open_attempts,
            sum(int(spans) for _, _, _, spans in rows),
            resources,
            len(workers),
            size_bytes or 0,
        )


def _unseen(worker_id: str) -> Row:
    return (worker_id, None, None, None, None, None)


def _update(row: Row) -> ResourcesUpdate:
    return ResourcesUpdate(row[0], row[1], row[2], row[3], _decode_resources(row[4]))


def _matching(matches: Iterable[Match], logic: FilterLogic, values: list[Value], kind: str) -> str:
    """The conditions on texts, as the end of a WHERE clause; what they look for is added to the values."""
    parts = []
    for match in matches:
        values.append(findable_bytes(match.value) if kind == "bytea" else findable(match.value))
        value = f"${len(values)}::{kind}"
        parts.append(f"position({value} in {match.field}) > 0" if match.contains else f"{match.field} = {value}")
    return f" AND ({f' {logic} '.join(parts)})" if parts else ""
