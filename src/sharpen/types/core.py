"""The module path of Agent-lightning; import the names from `sharpen.types`."""

from .results import Dataset, PaginatedResult, RolloutRawResult, Triplet
from .rollouts import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    TaskInput,
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
