"""Kept for people who move from another package; the names are those of `sharpen.types`."""

from .hooks import Hook
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
from .workers import ParallelWorkerBase, Worker, WorkerStatus

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
