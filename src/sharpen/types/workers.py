"""Workers, which run agents: their records, the life cycle of what lives in one, and the hooks around an attempt."""

from typing import Any, Literal

import msgspec

WorkerStatus = Literal["idle", "busy", "unknown"]


class Worker(msgspec.Struct, frozen=True):
    """One running runner, as the store knows it from its claims and heartbeats."""

    worker_id: str
    status: WorkerStatus = "unknown"
    heartbeat_stats: dict[str, Any] | None = None
    last_heartbeat_time: float | None = None
    last_dequeue_time: float | None = None
    last_busy_time: float | None = None
    last_idle_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None

    @property
    def id(self) -> str:
        return self.worker_id


class WorkerHeartbeat(Worker, frozen=True, kw_only=True):
    """The answer to a heartbeat: the worker, and those of its attempts that are no longer wanted."""

    unwanted_attempts: list[str] = []


class ParallelWorkerBase:
    """What lives in every worker: `init`, then `init_worker`, then work, then the two teardowns."""

    def __init__(self) -> None:
        self.worker_id: int | None = None

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Called once before any worker starts."""

    def init_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Called in the worker before its first piece of work."""
        self.worker_id = worker_id

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The work itself; parts without a loop need not override it."""

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Called in the worker after its last piece of work."""

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Called once after all workers have ended."""


class Hook:
    """User code at fixed moments of an attempt: override what you need.

    A hook is called with the keywords that its signature takes.
    """

    async def on_rollout_start(self, *, agent: Any, runner: Any, rollout: Any, tracer: Any) -> None:
        """Called before the trace opens."""

    async def on_trace_start(self, *, agent: Any, runner: Any, rollout: Any, tracer: Any) -> None:
        """Called inside the trace, before the agent runs."""

    async def on_trace_end(self, *, agent: Any, runner: Any, rollout: Any, tracer: Any) -> None:
        """Called inside the trace, after the agent ran."""

    async def on_rollout_end(self, *, agent: Any, runner: Any, rollout: Any, spans: Any) -> None:
        """Called after the trace closed, before the attempt is completed."""
