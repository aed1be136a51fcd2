"""What the rules need from a place to keep things: rows, and the few questions asked of them.

Rows are mutable and belong to the store; what leaves it are the frozen types. A row is changed and then saved;
where it stands in the queue, in the order of finishing and among the deadlines follows from its fields, so that
these can never disagree with its status.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import msgspec

from ..errors import InvalidInputError
from ..types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    Event,
    Link,
    OtelResource,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutPage,
    RolloutStatus,
    Span,
    SpanContext,
    TraceStatus,
    Worker,
    WorkerStatus,
)
from .base import FilterLogic, SortOrder
from .search import RolloutSearch
from .task_json import TASK

T = TypeVar("T")
_default_config = RolloutConfig()


class RolloutRow(msgspec.Struct):
    """A rollout as it is kept. `input` and `metadata` are in the form that the tables chose."""

    rollout_id: str
    input: Any
    start_time: float
    mode: RolloutMode | None
    resources_id: str | None
    resources_version: int | None
    config: RolloutConfig
    metadata: Any
    status: RolloutStatus
    end_time: float | None = None
    reward: float | None = None
    reward_span: int = 0
    """The number of the span that gave the reward."""
    attempts: int = 0
    last_span: int = 0
    number: int = 0
    """Position in the order of enqueueing, given by the tables."""


class AttemptRow(msgspec.Struct):
    """An attempt as it is kept."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    start_time: float
    end_time: float | None = None
    status: AttemptStatus = "preparing"
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: Any = None
    deadline: float | None = None
    """When the watchdog has to look at it."""
    unwanted: bool = False
    """Ended from outside, and its worker has not reported since."""
    request_id: str | None = None
    number: int = 0
    """The rollout's number."""

    def public(self, metadata: dict[str, Any] | None) -> Attempt:
        return Attempt(
            self.rollout_id,
            self.attempt_id,
            self.sequence_id,
            self.start_time,
            self.end_time,
            self.status,
            self.worker_id,
            self.last_heartbeat_time,
            metadata,
        )


class Page(msgspec.Struct, frozen=True):
    """Which part of the matches is wanted, in which order."""

    sort_by: str | None
    sort_order: SortOrder
    limit: int
    offset: int


class RolloutFilter(msgspec.Struct, frozen=True):
    """Which rollouts are wanted. None means: any."""

    status_in: frozenset[str] | None
    rollout_id_in: frozenset[str] | None
    rollout_id_contains: str | None
    mode: RolloutMode | None
    reward_min: float | None
    reward_max: float | None
    logic: FilterLogic

    @property
    def asks_only_status(self) -> bool:
        rest = (self.rollout_id_in, self.rollout_id_contains, self.mode, self.reward_min, self.reward_max)
        return all(condition is None for condition in rest)

    def fits(self, row: RolloutRow) -> bool:
        """Whether a rollout meets the conditions."""
        answers = []
        if self.status_in is not None:
            answers.append(row.status in self.status_in)
        if self.rollout_id_in is not None:
            answers.append(row.rollout_id in self.rollout_id_in)
        if self.rollout_id_contains is not None:
            answers.append(self.rollout_id_contains in row.rollout_id)
        if self.mode is not None:
            answers.append(row.mode == self.mode)
        if self.reward_min is not None:
            answers.append(row.reward is not None and row.reward >= self.reward_min)
        if self.reward_max is not None:
            answers.append(row.reward is not None and row.reward <= self.reward_max)
        if not answers:
            return True
        return all(answers) if self.logic == "and" else any(answers)


class Match(msgspec.Struct, frozen=True):
    """One condition on a text field."""

    field: str
    value: str
    contains: bool


def fits(item: Any, match: Match) -> bool:
    """Whether a thing meets one condition."""
    value = getattr(item, match.field)
    return value is not None and (match.value in value if match.contains else match.value == value)


def select(items: list[T], matches: list[Match], logic: FilterLogic) -> list[T]:
    """The things that meet the conditions."""
    if not matches:
        return items
    together = all if logic == "and" else any
    return [item for item in items if together(fits(item, match) for match in matches)]


def select_workers(
    workers: list[Worker], status_in: frozenset[WorkerStatus] | None, matches: list[Match], logic: FilterLogic
) -> list[Worker]:
    """The workers that have a wanted status and, or or, meet the conditions."""
    if status_in is None:
        return select(workers, matches, logic)
    if matches and logic == "or":
        return [w for w in workers if w.status in status_in or any(fits(w, match) for match in matches)]
    return select([w for w in workers if w.status in status_in], matches, "and")


class Counts(msgspec.Struct, frozen=True):
    """Sizes, for statistics."""

    rollouts: dict[str, int]
    attempts: int
    open_attempts: int
    spans: int
    resources: int
    workers: int
    size_bytes: int


class Tables(Protocol):
    """A transaction on the kept things. Every method is called with the store's write lock held, or reads only."""

    @property
    def rollout_row(self) -> type[RolloutRow]: ...
    @property
    def attempt_row(self) -> type[AttemptRow]: ...

    def rollout(self, rollout_id: str) -> RolloutRow | None: ...
    def add_rollouts(self, rows: list[RolloutRow]) -> None: ...
    def save_rollout(self, row: RolloutRow, old_status: RolloutStatus) -> None: ...
    def save_body(self, row: RolloutRow) -> None: ...
    def delete_finished_before(self, time: float) -> int: ...
    def queue_length(self) -> int: ...
    def queue_head(self, limit: int) -> list[RolloutRow]: ...
    def rollouts(self, wanted: RolloutFilter, page: Page) -> PaginatedResult[Rollout]: ...
    def search(self, search: RolloutSearch, same_input_as: RolloutRow | None) -> RolloutPage: ...
    def finished(self, after: int, limit: int) -> list[tuple[int, Rollout]]: ...
    def unfinished(self, rollout_ids: Sequence[str]) -> list[str]: ...

    def attempt(self, rollout: RolloutRow, attempt_id: str) -> AttemptRow | None: ...
    def latest_attempt(self, rollout: RolloutRow) -> AttemptRow | None: ...
    def add_attempt(self, row: AttemptRow) -> None: ...
    def save_attempt(self, row: AttemptRow) -> None: ...
    def attempts(self, rollout: RolloutRow) -> list[AttemptRow]: ...
    def claimed(self, request_id: str) -> list[tuple[RolloutRow, AttemptRow]]: ...
    def open_attempts(self, worker_id: str) -> list[tuple[RolloutRow, AttemptRow]]: ...
    def unwanted(self, worker_id: str) -> list[str]: ...
    def due(self, now: float) -> list[tuple[RolloutRow, AttemptRow]]: ...
    def next_deadline(self) -> float | None: ...

    def missing_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: Sequence[Span]) -> list[bool]: ...
    def add_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: list[Span]) -> None: ...
    def spans(
        self, rollout: RolloutRow, attempt: AttemptRow | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Span]: ...

    def add_resources(self, update: ResourcesUpdate, request_id: str | None) -> None: ...
    def resources(self, resources_id: str, version: int | None) -> ResourcesUpdate | None: ...
    def resources_version(self, resources_id: str | None) -> tuple[str, int] | None: ...
    def resources_by_request(self, request_id: str) -> ResourcesUpdate | None: ...
    def latest_resources(self) -> ResourcesUpdate | None: ...
    def all_resources(
        self, matches: list[Match], logic: FilterLogic, page: Page, *, all_versions: bool
    ) -> PaginatedResult[ResourcesUpdate]: ...

    def worker(self, worker_id: str) -> Worker | None: ...
    def save_heartbeat(self, worker_id: str, now: float, stats: dict[str, Any] | None) -> Worker: ...
    def mark_busy(self, worker_id: str, attempt: AttemptRow, now: float) -> None: ...
    def mark_idle(self, worker_id: str, now: float) -> None: ...
    def workers(
        self, status_in: frozenset[WorkerStatus] | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Worker]: ...

    def pack(self, value: Any, what: str) -> Any: ...
    def unpack(self, value: Any, what: str) -> Any: ...
    def drop(self, value: Any) -> None: ...
    def counts(self) -> Counts: ...


def public_rollout(row: RolloutRow, unpack: Callable[[Any, str], Any], attempt: AttemptRow | None = None) -> Rollout:
    """The rollout as callers see it, with an attempt of it where one is given."""
    fields = (
        row.rollout_id,
        unpack(row.input, TASK),
        row.start_time,
        row.end_time,
        row.mode,
        row.resources_id,
        row.status,
        row.config,
        unpack(row.metadata, "metadata"),
        row.resources_version,
        row.reward,
    )
    if attempt is None:
        return Rollout(*fields)
    return AttemptedRollout(*fields, attempt=attempt.public(unpack(attempt.metadata, "metadata")))


def newest_versions(published: Sequence[ResourcesUpdate]) -> list[ResourcesUpdate]:
    """The last one of each id, in the order in which these were published."""
    newest: dict[str, ResourcesUpdate] = {}
    for update in published:
        newest.pop(update.resources_id, None)
        newest[update.resources_id] = update
    return list(newest.values())


def paginate(found: list[T], page: Page) -> PaginatedResult[T]:
    """Sort and cut a list that is small by nature."""
    if page.sort_by is not None:
        found = sorted(found, key=lambda item: _sort_key(item, page.sort_by))  # nulls first, as in SQL
    if page.sort_order == "desc":
        found = found[::-1]
    end = None if page.limit < 0 else page.offset + page.limit
    return PaginatedResult(found[page.offset : end], page.limit, page.offset, len(found))


def _sort_key(item: Any, field: str | None) -> tuple[bool, Any]:
    value = getattr(item, field or "")
    return (value is not None, value if value is not None else 0)


# -- configurations and spans as JSON, as every store with columns keeps them ----------------------


def packed_config(config: RolloutConfig) -> str | None:
    """None for the default, which most rollouts have."""
    return None if config is _default_config or config == _default_config else msgspec.json.encode(config).decode()


def unpacked_config(text: str | None) -> RolloutConfig:
    return _default_config if text is None else _decoded_config(text)


@lru_cache(maxsize=256)
def _decoded_config(text: str) -> RolloutConfig:
    return msgspec.json.decode(text, type=RolloutConfig)


class SpanBody(msgspec.Struct, omit_defaults=True):
    """What a span holds beside its columns."""

    status: TraceStatus = TraceStatus()
    attributes: dict[str, Any] = {}
    events: list[Event] = []
    links: list[Link] = []
    context: SpanContext | None = None
    parent: SpanContext | None = None
    resource: OtelResource = OtelResource()


def body_of(span: Span) -> SpanBody:
    return SpanBody(span.status, span.attributes, span.events, span.links, span.context, span.parent, span.resource)


def span_of(
    rollout_id: str,
    attempt_id: str,
    sequence_id: int,
    trace_id: str,
    span_id: str,
    parent_id: str | None,
    name: str,
    start_time: float | None,
    end_time: float | None,
    body: SpanBody,
) -> Span:
    return Span(
        rollout_id,
        attempt_id,
        sequence_id,
        trace_id,
        span_id,
        parent_id,
        name,
        body.status,
        body.attributes,
        body.events,
        body.links,
        start_time,
        end_time,
        body.context,
        body.parent,
        body.resource,
    )


def refused_span(span: Span, error: Exception) -> InvalidInputError:
    return InvalidInputError(f"span {span.span_id!r} ({span.name!r}) cannot be written as JSON: {error}")


unpacked_body = msgspec.json.Decoder(SpanBody).decode
