"""What people are told of a run: `RunStatus` of what every rollout and worker is doing now, `RunResult` of its end."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..store import LightningStore, LightningStoreStatistics
from ..types import Attempt, NamedResources, Rollout, RolloutMode, RolloutStatus, Worker, WorkerStatus

MAX_OPEN = 1000
RunEnd = Literal["succeeded", "failed", "interrupted"]
RunState = Literal["not started", "running"] | RunEnd


class RunResult(msgspec.Struct, frozen=True):
    """What `fit` returns."""

    status: RunEnd
    metrics: dict[str, Any] = {}
    """By name: `train/…` of the last iteration, `val/…` of the last validation, and of the whole run `run/reward_mean`,
    `run/train/…`, `run/val/…`, `rollouts` and other counts, and `llm/…`. `reward_mean` is an old name of
    `run/reward_mean`; where an algorithm reports no iterations, `train/…` and `val/…` are those of the whole run."""
    best_resources: NamedResources | None = None
    """The resources that were published last, without an LLM that was only served during the run."""
    run_dir: Path | None = None
    """Where the records are."""
    seconds: float = 0.0
    """How long it worked; of a run that was resumed, over all its starts."""
    resources_id: str | None = None
    resources_version: int | None = None
    error: str | None = None
    model_dir: Path | None = None
    """The folder of the model that was trained, where the algorithm trains one."""
    warnings: list[str] = []
    """What a successful run should still be looked at for, such as a metric that ended worse than it began."""

    def record(self) -> dict[str, Any]:
        """The same for a file; the resources themselves are in the store."""
        found = msgspec.structs.asdict(self)
        del found["best_resources"], found["run_dir"]
        return found | {"model_dir": None if self.model_dir is None else str(self.model_dir)}


class OpenRollout(msgspec.Struct, frozen=True):
    """A rollout that a worker has in hand."""

    rollout_id: str
    status: RolloutStatus
    mode: RolloutMode | None
    attempt: int
    """Its first attempt is 1."""
    attempt_id: str | None
    worker_id: str | None
    seconds: float
    """Since the attempt began."""

    def __str__(self) -> str:
        # Until its first span an attempt is "preparing" for the store, though its agent may long wait for a model.
        phase = "running, without a span yet," if self.status == "preparing" else self.status
        where = f"attempt {self.attempt} at {self.worker_id or 'no worker'}"
        return f"{self.rollout_id}: {phase} for {self.seconds:.1f} s, {where}"


class WorkerView(msgspec.Struct, frozen=True):
    """A worker, with what its last heartbeat said."""

    worker_id: str
    status: WorkerStatus
    rollout_id: str | None
    heartbeat_seconds: float | None
    """Since it was last heard of."""
    heartbeat_stats: dict[str, Any]

    def __str__(self) -> str:
        ago = self.heartbeat_seconds
        heard = "never heard of" if ago is None else f"last heartbeat {ago:.1f} s ago"
        stats = "".join(f", {name} {value}" for name, value in self.heartbeat_stats.items())
        return f"{self.worker_id}: {self.status}, {heard}{stats}"


class RunStatus(msgspec.Struct, frozen=True):
    """A snapshot of a run. `print` shows it as a readable page."""

    state: RunState
    run_dir: str | None = None
    queued: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    open_rollouts: list[OpenRollout] = []
    """The first thousand of those that workers have in hand, the oldest first."""
    workers: list[WorkerView] = []
    statistics: LightningStoreStatistics | None = None

    def __str__(self) -> str:
        head = f"run {self.state}" + (f" in {self.run_dir}" if self.run_dir else "")
        counts = ("queued", "running", "succeeded", "failed", "cancelled")
        lines = [head, ", ".join(f"{name} {getattr(self, name)}" for name in counts)]
        lines += [f"  {rollout}" for rollout in self.open_rollouts]
        lines += [f"  {worker}" for worker in self.workers]
        return "\n".join(lines)


async def snapshot(store: LightningStore, state: RunState, run_dir: str | None) -> RunStatus:
    """Ask the store what is going on."""
    statistics, workers, now = await store.statistics(), await store.query_workers(), time.time()
    counts = Counter(statistics["rollouts_by_status"])
    return RunStatus(
        state=state,
        run_dir=run_dir,
        queued=statistics["queue_length"],
        running=counts["preparing"] + counts["running"],
        succeeded=counts["succeeded"],
        failed=counts["failed"],
        cancelled=counts["cancelled"],
        open_rollouts=await open_rollouts(store, now),
        workers=[_view(worker, now) for worker in workers],
        statistics=statistics,
    )


async def open_rollouts(store: LightningStore, now: float, limit: int = MAX_OPEN) -> list[OpenRollout]:
    """Those that workers have in hand, the oldest first."""
    found = await store.query_rollouts(status_in=["preparing", "running"], limit=limit)
    attempts = await asyncio.gather(*(store.get_latest_attempt(each.rollout_id) for each in found))
    opened = [_open(rollout, attempt, now) for rollout, attempt in zip(found, attempts, strict=True)]
    return sorted(opened, key=lambda each: -each.seconds)


def _open(rollout: Rollout, attempt: Attempt | None, now: float) -> OpenRollout:
    known = (rollout.rollout_id, rollout.status, rollout.mode)
    if attempt is None:
        return OpenRollout(*known, 0, None, None, max(now - rollout.start_time, 0.0))
    seconds = max(now - attempt.start_time, 0.0)
    return OpenRollout(*known, attempt.sequence_id, attempt.attempt_id, attempt.worker_id, seconds)


def _view(worker: Worker, now: float) -> WorkerView:
    heard = worker.last_heartbeat_time
    ago = None if heard is None else max(now - heard, 0.0)
    return WorkerView(worker.worker_id, worker.status, worker.current_rollout_id, ago, worker.heartbeat_stats or {})
