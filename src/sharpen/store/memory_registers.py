"""What the store in memory knows beside rollouts: published resources, and workers."""

from typing import Any

from msgspec.structs import replace

from ..types import PaginatedResult, ResourcesUpdate, Worker, WorkerStatus
from .base import FilterLogic
from .tables import AttemptRow, Match, Page, newest_versions, paginate, select, select_workers


class MemoryRegisters:
    """Resources in the order of their publication, and workers with what they have in hand."""

    def __init__(self) -> None:
        self._resources: dict[str, list[ResourcesUpdate]] = {}
        self._published: list[ResourcesUpdate] = []
        self._resources_requests: dict[str, ResourcesUpdate] = {}
        self._workers: dict[str, Worker] = {}

    def _in_hand(self, worker_id: str) -> AttemptRow | None:
        """The open attempt that a worker took last."""
        raise NotImplementedError

    # -- resources -----------------------------------------------------------------------------------

    def add_resources(self, update: ResourcesUpdate, request_id: str | None) -> None:
        self._resources.setdefault(update.resources_id, []).append(update)
        self._published.append(update)
        if request_id is not None:
            self._resources_requests[request_id] = update

    def resources(self, resources_id: str, version: int | None) -> ResourcesUpdate | None:
        versions = self._resources.get(resources_id, [])
        if version is None:
            return versions[-1] if versions else None
        return versions[version - 1] if 1 <= version <= len(versions) else None

    def resources_version(self, resources_id: str | None) -> tuple[str, int] | None:
        found = self.latest_resources() if resources_id is None else self.resources(resources_id, None)
        return None if found is None else (found.resources_id, found.version)

    def resources_by_request(self, request_id: str) -> ResourcesUpdate | None:
        return self._resources_requests.get(request_id)

    def latest_resources(self) -> ResourcesUpdate | None:
        return self._published[-1] if self._published else None

    def all_resources(
        self, matches: list[Match], logic: FilterLogic, page: Page, *, all_versions: bool
    ) -> PaginatedResult[ResourcesUpdate]:
        published = self._published if all_versions else newest_versions(self._published)
        return paginate(select(published, matches, logic), page)

    # -- workers -------------------------------------------------------------------------------------

    def worker(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def _known_worker(self, worker_id: str) -> Worker:
        return self._workers.get(worker_id) or Worker(worker_id)

    def save_heartbeat(self, worker_id: str, now: float, stats: dict[str, Any] | None) -> Worker:
        worker = self._known_worker(worker_id)
        status: WorkerStatus = "idle" if self._in_hand(worker_id) is None else "busy"
        idle = now if status == "idle" and worker.status == "unknown" else worker.last_idle_time
        worker = replace(worker, status=status, heartbeat_stats=stats, last_heartbeat_time=now, last_idle_time=idle)
        self._workers[worker_id] = worker
        return worker

    def mark_busy(self, worker_id: str, attempt: AttemptRow, now: float) -> None:
        known = self._known_worker(worker_id)
        self._workers[worker_id] = Worker(
            worker_id,
            "busy",
            known.heartbeat_stats,
            known.last_heartbeat_time,
            now,
            now,
            known.last_idle_time,
            attempt.rollout_id,
            attempt.attempt_id,
        )

    def mark_idle(self, worker_id: str, now: float) -> None:
        known = self._known_worker(worker_id)
        last = self._in_hand(worker_id)
        if last is not None:
            self._workers[worker_id] = replace(
                known, current_rollout_id=last.rollout_id, current_attempt_id=last.attempt_id
            )
            return
        self._workers[worker_id] = Worker(
            worker_id,
            "idle",
            known.heartbeat_stats,
            known.last_heartbeat_time,
            known.last_dequeue_time,
            known.last_busy_time,
            now,
        )

    def workers(
        self, status_in: frozenset[WorkerStatus] | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Worker]:
        return paginate(select_workers(list(self._workers.values()), status_in, matches, logic), page)
