"""Rollouts and attempts: what an algorithm asks for, and each try at it; and how they are returned, in pages.

Values are frozen: to see a change in the store, query the store again.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, get_args, overload, runtime_checkable

import msgspec
from msgspec.structs import force_setattr

from ..checks import check_choice, check_int, check_number
from .spans import Span, SpanCoreFields

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from typing_extensions import TypeVar as TypeVarWithDefault

    RolloutRawResult = None | float | int | list[ReadableSpan] | list[Span] | list[SpanCoreFields]
    TaskT = TypeVarWithDefault("TaskT", default=Any)
else:
    RolloutRawResult = None | float | int | list[Any] | list[Span] | list[SpanCoreFields]
    TaskT = TypeVar("TaskT")
    """The kind of task that a generic class works on; type checkers take `Any` where none is named."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
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


# -- what calls return, and the data sets that callers pass ------------------------------------------


class Triplet(msgspec.Struct, frozen=True):
    """Prompt, response and reward of one LLM call, as an algorithm consumes it."""

    prompt: Any
    response: Any
    reward: float | None = None
    metadata: dict[str, Any] = {}


class PaginatedResult(msgspec.Struct, Generic[T], frozen=True):
    """One page of a query. It is itself a sequence of its items; `total` counts all that match."""

    items: list[T]
    limit: int
    offset: int
    total: int

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self.items[index]

    def __contains__(self, item: object) -> bool:
        return item in self.items

    def index(self, item: T) -> int:
        return self.items.index(item)

    def count(self, item: T) -> int:
        return self.items.count(item)


Sequence.register(PaginatedResult)


class FinishedRollouts(msgspec.Struct, frozen=True):
    """Rollouts in the order in which they finished, and the cursor to continue from."""

    items: list[Rollout]
    cursor: int


class RolloutPage(msgspec.Struct, frozen=True):
    """One page of a search for rollouts.

    A search has a limit of effort: if it is reached before the page is full, `is_complete` is False and
    `next_cursor` continues from there. `next_cursor` is None at the end.
    `total` counts all that match where that is cheap; it is a lower bound if `is_total_exact` is False.
    """

    items: list[Rollout]
    next_cursor: str | None = None
    total: int | None = None
    is_total_exact: bool = False
    examined: int = 0
    """About how many rollouts were looked at."""
    is_complete: bool = True


class StoredSpans(list["Span | None"]):
    """The spans that were stored, with None for each that was there already.

    `unwanted` names attempts that are no longer wanted, so that their agents can be stopped.
    """

    def __init__(self, spans: Iterable[Span | None] = (), unwanted: Iterable[str] = ()) -> None:
        super().__init__(spans)
        self.unwanted = tuple(unwanted)


@runtime_checkable
class SizedDataset(Protocol[T_co]):
    """A data set with a length and an index."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> T_co: ...


# Anything with a length and an index, or an iterable that is read once an epoch.
Dataset = SizedDataset[T] | Iterable[T]
