"""The module path of Agent-lightning; import the names from `sharpen.types`."""

from .rollouts import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Dataset,
    EnqueueRolloutRequest,
    PaginatedResult,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutRawResult,
    RolloutStatus,
    TaskInput,
    Triplet,
)
from .workers import Hook, ParallelWorkerBase, Worker, WorkerStatus

__all__ = [
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "Dataset",
    "EnqueueRolloutRequest",
    "Hook",
    "PaginatedResult",
    "ParallelWorkerBase",
    "Rollout",
    "RolloutConfig",
    "RolloutMode",
    "RolloutRawResult",
    "RolloutStatus",
    "TaskInput",
    "Triplet",
    "Worker",
    "WorkerStatus",
]
