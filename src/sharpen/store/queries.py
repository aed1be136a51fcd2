"""Questions to the store: everything that only reads."""

from collections.abc import Sequence

from ..errors import InvalidInputError
from ..types import (
    ROLLOUT_MODES,
    ROLLOUT_STATUSES,
    Attempt,
    FinishedRollouts,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutMode,
    RolloutPage,
    RolloutStatus,
    Span,
    Worker,
    WorkerStatus,
)
from .base import (
    MAX_INT,
    FilterLogic,
    LightningStoreStatistics,
    RolloutOrder,
    SortOrder,
    check_choice,
    check_choices,
    check_id,
    check_number,
)
from .lifecycle import Lifecycle
from .search import RolloutSearch
from .tables import Match, Page, RolloutFilter, paginate
from .transitions import QUEUED

ROLLOUT_SORTS = ("rollout_id", "start_time", "end_time", "status", "mode", "reward", "resources_id")
SPAN_SORTS = ("sequence_id", "start_time", "end_time", "name", "span_id", "trace_id", "parent_id")
ATTEMPT_SORTS = ("sequence_id", "start_time", "end_time", "status", "worker_id", "attempt_id", "last_heartbeat_time")
RESOURCES_SORTS = ("resources_id", "version", "create_time", "update_time")
WORKER_SORTS = ("worker_id", "status", "last_heartbeat_time", "last_dequeue_time", "last_busy_time", "last_idle_time")
WORKER_STATUSES = ("idle", "busy", "unknown")


class Queries(Lifecycle):
    """Reads, with the names and parameters of `LightningStore`."""

    def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        row = self.tables.rollout(rollout_id)
        return None if row is None else self._with_attempt(row)

    def query_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        rollout_id_in: Sequence[str] | None = None,
        rollout_id_contains: str | None = None,
        mode: RolloutMode | None = None,
        reward_min: float | None = None,
        reward_max: float | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        statuses, ids = _either("status", status_in, status), _either("rollout_id", rollout_id_in, rollout_ids)
        if statuses is not None:
            check_choices("status_in", statuses, ROLLOUT_STATUSES)
        check_choice("mode", mode, ROLLOUT_MODES, optional=True)
        wanted = RolloutFilter(
            None if statuses is None else frozenset(statuses),
            None if ids is None else frozenset(ids),
            rollout_id_contains,
            mode,
            reward_min,
            reward_max,
            _logic(filter_logic),
        )
        return self.tables.rollouts(wanted, _page(sort_by, ROLLOUT_SORTS, sort_order, limit, offset))

    def search_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        mode: RolloutMode | None = None,
        reward_min: float | None = None,
        reward_max: float | None = None,
        text: str | None = None,
        worker_id: str | None = None,
        resources_id: str | None = None,
        resources_version: int | None = None,
        group: str | None = None,
        same_input_as: str | None = None,
        started_after: float | None = None,
        started_before: float | None = None,
        order: RolloutOrder = "newest",
        cursor: str | None = None,
        limit: int = 50,
    ) -> RolloutPage:
        search = RolloutSearch.of(
            status_in=status_in,
            mode=mode,
            reward_min=reward_min,
            reward_max=reward_max,
            text=text,
            worker_id=worker_id,
            resources_id=resources_id,
            resources_version=resources_version,
            group=group,
            same_input_as=same_input_as,
            started_after=started_after,
            started_before=started_before,
            order=order,
            cursor=cursor,
            limit=limit,
        )
        same = None if same_input_as is None else self._rollout(same_input_as)
        return self.tables.search(search, same)

    def finished_rollouts(self, after: int = 0, limit: int = 1000) -> FinishedRollouts:
        check_number("after", after, at_least=0)
        check_number("limit", limit, at_least=1)
        found = self.tables.finished(after, limit)
        return FinishedRollouts([rollout for _, rollout in found], found[-1][0] if found else after)

    def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        row = self.tables.rollout(rollout_id)
        attempt = None if row is None else self.tables.latest_attempt(row)
        return None if attempt is None else self._public_attempt(attempt)

    def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        page = _page(sort_by, ATTEMPT_SORTS, sort_order, limit, offset)
        found = [self._public_attempt(attempt) for attempt in self.tables.attempts(self._rollout(rollout_id))]
        return paginate(found, page)

    def query_spans(
        self,
        rollout_id: str,
        attempt_id: str | None = None,
        *,
        trace_id: str | None = None,
        trace_id_contains: str | None = None,
        span_id: str | None = None,
        span_id_contains: str | None = None,
        parent_id: str | None = None,
        parent_id_contains: str | None = None,
        name: str | None = None,
        name_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        limit: int = -1,
        offset: int = 0,
        sort_by: str = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        check_id("rollout_id", rollout_id)
        if attempt_id not in (None, "latest"):
            check_id("attempt_id", attempt_id)
        page = _page(sort_by, SPAN_SORTS, sort_order, limit, offset)
        matches = _matches(
            trace_id=(trace_id, trace_id_contains),
            span_id=(span_id, span_id_contains),
            parent_id=(parent_id, parent_id_contains),
            name=(name, name_contains),
        )
        logic, row = _logic(filter_logic), self.tables.rollout(rollout_id)
        attempt = None
        if row is not None and attempt_id is not None:
            find = self.tables
            attempt = find.latest_attempt(row) if attempt_id == "latest" else find.attempt(row, attempt_id)
        if row is None or (attempt_id is not None and attempt is None):
            return PaginatedResult([], limit, offset, 0)
        return self.tables.spans(row, attempt, matches, logic, page)

    def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        check_number("version", version, at_least=-MAX_INT, at_most=MAX_INT, optional=True)
        return self.tables.resources(resources_id, version)

    def get_latest_resources(self) -> ResourcesUpdate | None:
        return self.tables.latest_resources()

    def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
        all_versions: bool = False,
    ) -> PaginatedResult[ResourcesUpdate]:
        page = _page(sort_by, RESOURCES_SORTS, sort_order, limit, offset)
        matches = _matches(resources_id=(resources_id, resources_id_contains))
        return self.tables.all_resources(matches, _logic(filter_logic), page, all_versions=all_versions)

    def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return self.tables.worker(worker_id)

    def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        if status_in is not None:
            check_choices("status_in", status_in, WORKER_STATUSES)
        page = _page(sort_by, WORKER_SORTS, sort_order, limit, offset)
        matches = _matches(worker_id=(None, worker_id_contains))
        return self.tables.workers(
            None if status_in is None else frozenset(status_in), matches, _logic(filter_logic), page
        )

    def statistics(self) -> LightningStoreStatistics:
        counts = self.tables.counts()
        uptime = max(0.0, self.clock() - self.started)
        by_status: dict[str, int] = {status: counts.rollouts.get(status, 0) for status in ROLLOUT_STATUSES}
        return {
            "name": self.name,
            "total_rollouts": sum(by_status.values()),
            "rollouts_by_status": by_status,
            "queue_length": sum(by_status[status] for status in QUEUED),
            "total_attempts": counts.attempts,
            "open_attempts": counts.open_attempts,
            "total_spans": counts.spans,
            "total_resources": counts.resources,
            "total_workers": counts.workers,
            "size_bytes": counts.size_bytes,
            "uptime_seconds": uptime,
            "uptime": uptime,
        }


def _either(name: str, new: Sequence[str] | None, old: Sequence[str] | None) -> Sequence[str] | None:
    if new is not None and old is not None:
        raise InvalidInputError(f"{name} is given twice, under its old and its new name: pass only {name}_in")
    return old if new is None else new


def _logic(filter_logic: FilterLogic) -> FilterLogic:
    check_choice("filter_logic", filter_logic, ("and", "or"))
    return filter_logic


def _page(sort_by: str | None, allowed: Sequence[str], sort_order: SortOrder, limit: int, offset: int) -> Page:
    check_choice("sort_by", sort_by, allowed, optional=True)
    check_choice("sort_order", sort_order, ("asc", "desc"))
    check_number("limit", limit, at_least=-1)
    check_number("offset", offset, at_least=0)
    return Page(sort_by, sort_order, limit, offset)


def _matches(**fields: tuple[str | None, str | None]) -> list[Match]:
    return [
        Match(field, value, contains)
        for field, pair in fields.items()
        for value, contains in zip(pair, (False, True), strict=True)
        if value is not None
    ]
