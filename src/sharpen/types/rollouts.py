"""Rollouts and attempts: what an algorithm asks for, and each try at it.

Values are frozen: to see a change in the store, query the store again.
"""

from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import force_setattr

from ..checks import check_choice, check_int, check_number

RolloutStatus = Literal["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
AttemptStatus = Literal["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
RolloutMode = Literal["train", "val", "test"]

ROLLOUT_STATUSES: tuple[RolloutStatus, ...] = get_args(RolloutStatus)
ATTEMPT_STATUSES: tuple[AttemptStatus, ...] = get_args(AttemptStatus)
ROLLOUT_MODES: tuple[RolloutMode, ...] = get_args(RolloutMode)

TaskInput = Any


class RolloutConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long a rollout may take and when it is retried.

    A claim is a lease of `unresponsive_seconds`, renewed by heartbeats and spans; None means no lease.
    """

    timeout_seconds: float | None = None
    unresponsive_seconds: float | None = None
    max_attempts: int = 1
    retry_condition: list[AttemptStatus] = []

    def __post_init__(self) -> None:
        for name in ("timeout_seconds", "unresponsive_seconds"):
            if (seconds := getattr(self, name)) is not None:
                force_setattr(self, name, check_number(name, seconds, above=0, unit="seconds"))
        if type(self.max_attempts) is not int or self.max_attempts < 1:
            force_setattr(self, "max_attempts", check_int("max_attempts", self.max_attempts, at_least=1))
        for status in self.retry_condition:
            check_choice("retry_condition", status, ATTEMPT_STATUSES)


_DEFAULT_CONFIG = RolloutConfig()


def _default_config() -> RolloutConfig:
    return _DEFAULT_CONFIG


class Rollout(msgspec.Struct, frozen=True):
    """One run of an agent on one task, wanted by an algorithm."""

    rollout_id: str
    input: TaskInput
    start_time: float
    end_time: float | None = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    status: RolloutStatus = "queuing"
    config: RolloutConfig = msgspec.field(default_factory=_default_config)
    metadata: dict[str, Any] | None = None
    resources_version: int | None = None
    reward: float | None = None

    @property
    def id(self) -> str:
        return self.rollout_id

    @property
    def is_finished(self) -> bool:
        return self.status in ("succeeded", "failed", "cancelled")


class Attempt(msgspec.Struct, frozen=True):
    """One try at a rollout by one worker."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    start_time: float
    end_time: float | None = None
    status: AttemptStatus = "preparing"
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        return self.attempt_id


class AttemptedRollout(Rollout, frozen=True, kw_only=True):
    """A rollout together with the attempt that a worker was given."""

    attempt: Attempt

    def __post_init__(self) -> None:
        if self.attempt.rollout_id != self.rollout_id:
            raise ValueError(f"the attempt belongs to rollout {self.attempt.rollout_id!r}, not to {self.rollout_id!r}")


class EnqueueRolloutRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rollout to enqueue, as `enqueue_many_rollouts` takes it."""

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None
    rollout_id: str | None = None

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ROLLOUT_MODES, optional=True)
