"""The contract of every store.

The store is the only thing that algorithms and runners share. Its rules are in `transitions` and `rules`; local stores,
the threaded store, the HTTP server and its client are made from the methods of this class, so that none of them is
written twice. Ids and arguments are checked in the same way everywhere, by the functions at the end.

Every write can be repeated: creating calls take the caller's id, claiming calls a `request_id`, and a repeated one
gives the first answer again.
"""

import math
import os
import time
from collections.abc import Collection, Sequence, Set
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from msgspec import UNSET, Meta, UnsetType

from ..checks import check_choice as check_any_choice, check_int as check_any_int, check_number as check_any_number
from ..errors import InvalidInputError, MissingMethodError
from ..semconv import PRIMARY_REWARD_VALUE
from ..types import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    FinishedRollouts,
    NamedResources,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutPage,
    RolloutStatus,
    Span,
    StoredSpans,
    TaskInput,
    Worker,
    WorkerHeartbeat,
    WorkerStatus,
)
from ..types.spans import MAX_SEQUENCE_ID

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from .opening import StoreAddress

FilterLogic = Literal["and", "or"]
SortOrder = Literal["asc", "desc"]
RolloutOrder = Literal["newest", "oldest", "reward_high", "reward_low", "finished"]
MAX_INT = 2**63 - 1
MAX_ID_LENGTH = 200
# -1 asks for everything.
Limit = Annotated[int, Meta(ge=-1, le=MAX_INT)]
Offset = Annotated[int, Meta(ge=0, le=MAX_INT)]
Count = Annotated[int, Meta(ge=1, le=10_000)]
Version = Annotated[int, Meta(ge=1, le=MAX_INT)]
Seconds = Annotated[float, Meta(ge=0)]
AttemptEnd = Literal["succeeded", "failed", "timeout"]


class LightningStoreCapabilities(TypedDict):
    """The features that a store supports."""

    thread_safe: bool
    async_safe: bool
    zero_copy: bool
    otlp_traces: bool


class LightningStoreStatistics(TypedDict):
    """The sizes of a store and its current load."""

    name: str
    total_rollouts: int
    rollouts_by_status: dict[str, int]
    queue_length: int
    total_attempts: int
    open_attempts: int
    total_spans: int
    total_resources: int
    total_workers: int
    size_bytes: int
    uptime_seconds: float
    uptime: float


class LightningStore:
    """The interface of every store of rollouts, attempts, spans, resources and workers. All methods are async."""

    # -- rollouts ------------------------------------------------------------------------------------

    async def enqueue_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        rollout_id: str | None = None,
    ) -> Rollout:
        """Add a rollout to the end of the queue, bound to the given resources or to the latest ones."""
        request = EnqueueRolloutRequest(input, mode, resources_id, config, metadata, rollout_id)
        return (await self.enqueue_many_rollouts([request]))[0]

    async def enqueue_many_rollouts(self, requests: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        """Add many rollouts to the end of the queue: all of them or, on an error, none.

        `rollouts` is accepted as another name for `requests`.
        """
        raise _missing(self, "enqueue_many_rollouts")

    async def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        rollout_id: str | None = None,
    ) -> AttemptedRollout:
        """Create a rollout and start its first attempt, bypassing the queue."""
        raise _missing(self, "start_rollout")

    async def dequeue_rollout(
        self, worker_id: str | None = None, wait_seconds: Seconds = 0, request_id: str | None = None
    ) -> AttemptedRollout | None:
        """Claim the oldest queued rollout, waiting up to `wait_seconds` for one."""
        claimed = await self.dequeue_many_rollouts(
            limit=1, worker_id=worker_id, wait_seconds=wait_seconds, request_id=request_id
        )
        return claimed[0] if claimed else None

    async def dequeue_many_rollouts(
        self,
        *,
        limit: Count = 1,
        worker_id: str | None = None,
        wait_seconds: Seconds = 0,
        request_id: str | None = None,
    ) -> list[AttemptedRollout]:
        """Claim up to `limit` of the oldest queued rollouts, waiting up to `wait_seconds` for the first one."""
        raise _missing(self, "dequeue_many_rollouts")

    async def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, request_id: str | None = None
    ) -> AttemptedRollout:
        """Start a new attempt of an unfinished rollout."""
        raise _missing(self, "start_attempt")

    async def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | UnsetType = UNSET,
        mode: RolloutMode | None | UnsetType = UNSET,
        resources_id: str | None | UnsetType = UNSET,
        status: RolloutStatus | UnsetType = UNSET,
        config: RolloutConfig | UnsetType = UNSET,
        metadata: dict[str, Any] | None | UnsetType = UNSET,
    ) -> Rollout:
        """Change the given fields of a rollout. A finished rollout keeps its status."""
        raise _missing(self, "update_rollout")

    async def cancel_rollouts(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        """Cancel the rollouts that are not finished; their workers learn of it with their next heartbeat or span."""
        raise _missing(self, "cancel_rollouts")

    async def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        """Return the rollout, with its latest attempt if it has one."""
        raise _missing(self, "get_rollout_by_id")

    async def query_rollouts(
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
        limit: Limit = -1,
        offset: Offset = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        """Return one page of the matching rollouts, in the order they were enqueued unless `sort_by` is given.

        A rollout that has been claimed is returned as an `AttemptedRollout`, with its latest attempt.

        Filtered by status alone, they are grouped by status, each group in the order in which they will be claimed or
        have finished. Such a page takes the same time at any size of the store.
        `status` and `rollout_ids` are older names for `status_in` and `rollout_id_in`.
        """
        raise _missing(self, "query_rollouts")

    async def search_rollouts(
        self,
        *,
        status_in: Sequence[RolloutStatus] | None = None,
        mode: RolloutMode | None = None,
        reward_min: float | None = None,
        reward_max: float | None = None,
        text: str | None = None,
        worker_id: str | None = None,
        resources_id: str | None = None,
        resources_version: Version | None = None,
        group: str | None = None,
        same_input_as: str | None = None,
        started_after: float | None = None,
        started_before: float | None = None,
        order: RolloutOrder = "newest",
        cursor: str | None = None,
        limit: Count = 50,
    ) -> RolloutPage:
        """Return one page of the rollouts that meet all conditions, in bounded time at any size of the store.

        Args:
            status_in: The statuses to include.
            mode: The mode of the rollouts.
            reward_min: The lowest reward to include.
            reward_max: The highest reward to include.
            text: A string in the id or in the JSON of input or metadata; the case of ASCII letters is ignored.
            worker_id: The worker of the latest attempt.
            resources_id: The resources that the rollouts are bound to.
            resources_version: The version of these resources.
            group: The value of `metadata["group"]`.
            same_input_as: The id of a rollout; include rollouts with the same input.
            started_after: The earliest `start_time`, inclusive.
            started_before: The latest `start_time`, exclusive.
            order: The order of the page. By reward, and by `finished` (most recent first), rollouts without a reward
                or that have not finished come last.
            cursor: The `next_cursor` of the previous page in the same order, or None for the first page.
            limit: The maximum number of rollouts to return.
        """
        from .search import RolloutSearch, search_listed

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
        return await search_listed(self, search)

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: Seconds | None = None) -> list[Rollout]:
        """Wait until all have finished or `timeout` seconds have passed; return those that have finished."""
        raise _missing(self, "wait_for_rollouts")

    async def finished_rollouts(
        self, after: Offset = 0, limit: Count = 1000, wait_seconds: Seconds = 0
    ) -> FinishedRollouts:
        """Return rollouts in the order in which they finished, after a cursor (0 for the beginning)."""
        raise _missing(self, "finished_rollouts")

    # -- attempts ------------------------------------------------------------------------------------

    async def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | UnsetType = UNSET,
        worker_id: str | UnsetType = UNSET,
        last_heartbeat_time: float | UnsetType = UNSET,
        metadata: dict[str, Any] | None | UnsetType = UNSET,
    ) -> Attempt:
        """Change the given fields of an attempt (or of the `"latest"`); the latest one also updates its rollout."""
        raise _missing(self, "update_attempt")

    async def complete_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        *,
        spans: Sequence[Span] = (),
        status: AttemptEnd = "succeeded",
        reward: float | None = None,
        metadata: dict[str, Any] | None | UnsetType = UNSET,
    ) -> Attempt:
        """Store the last spans and the outcome of an attempt in one call."""
        raise _missing(self, "complete_attempt")

    async def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        """Return the latest attempt of a rollout, the one that counts."""
        raise _missing(self, "get_latest_attempt")

    async def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: Limit = -1,
        offset: Offset = 0,
    ) -> PaginatedResult[Attempt]:
        """Return the attempts of a rollout."""
        raise _missing(self, "query_attempts")

    # -- spans ---------------------------------------------------------------------------------------

    async def add_span(self, span: Span) -> Span | None:
        """Store a span and renew the lease of its attempt; return None if the span was already stored."""
        return (await self.add_many_spans([span]))[0]

    async def add_many_spans(self, spans: Sequence[Span]) -> StoredSpans:
        """Store spans of one or more attempts: all of them or, on an error, none."""
        raise _missing(self, "add_many_spans")

    async def add_otel_span(
        self, rollout_id: str, attempt_id: str, readable_span: "ReadableSpan", sequence_id: int | None = None
    ) -> Span | None:
        """Store a span of the OpenTelemetry SDK."""
        return await self.add_span(Span.from_opentelemetry(readable_span, rollout_id, attempt_id, sequence_id or 0))

    async def get_next_span_sequence_id(self, rollout_id: str, attempt_id: str) -> int:
        """Return the next span sequence number of the rollout."""
        return (await self.get_many_span_sequence_ids([(rollout_id, attempt_id)]))[0]

    async def get_many_span_sequence_ids(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        """Return the next span sequence number for each pair of rollout and attempt."""
        raise _missing(self, "get_many_span_sequence_ids")

    async def query_spans(
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
        limit: Limit = -1,
        offset: Offset = 0,
        sort_by: str = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        """Return the spans of a rollout or of one attempt (`"latest"` is allowed); unknown ids have no spans."""
        raise _missing(self, "query_spans")

    # -- resources -----------------------------------------------------------------------------------

    async def add_resources(self, resources: NamedResources, resources_id: str | None = None) -> ResourcesUpdate:
        """Store version 1 of a new set of resources and make it the latest."""
        raise _missing(self, "add_resources")

    async def update_resources(
        self, resources_id: str, resources: NamedResources, request_id: str | None = None
    ) -> ResourcesUpdate:
        """Store the next version of these resources (version 1 of a new id) and make it the latest."""
        raise _missing(self, "update_resources")

    async def get_resources_by_id(self, resources_id: str, version: Version | None = None) -> ResourcesUpdate | None:
        """Return one version of these resources, by default the newest. A version never changes."""
        raise _missing(self, "get_resources_by_id")

    async def get_latest_resources(self) -> ResourcesUpdate | None:
        """Return the resources that were published last."""
        raise _missing(self, "get_latest_resources")

    async def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: Limit = -1,
        offset: Offset = 0,
        all_versions: bool = False,
    ) -> PaginatedResult[ResourcesUpdate]:
        """Return the newest version of each id, or every version with `all_versions`, in the order of publication."""
        raise _missing(self, "query_resources")

    # -- workers -------------------------------------------------------------------------------------

    async def update_worker(
        self,
        worker_id: str,
        heartbeat_stats: dict[str, Any] | None = None,
        attempt_ids: Sequence[str] | None = None,
    ) -> WorkerHeartbeat:
        """Record a heartbeat: renew the leases of the worker's attempts and return those no longer wanted.

        Args:
            worker_id: The worker that sends the heartbeat.
            heartbeat_stats: Anything worth showing about the worker.
            attempt_ids: The attempts that the worker is running. Only these are renewed: an attempt that is not
                listed, because the response to its claim was lost, expires like one of a lost worker. None renews
                all open attempts of the worker.
        """
        raise _missing(self, "update_worker")

    async def get_worker_by_id(self, worker_id: str) -> Worker | None:
        """Return the last known state of a worker."""
        raise _missing(self, "get_worker_by_id")

    async def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: Limit = -1,
        offset: Offset = 0,
    ) -> PaginatedResult[Worker]:
        """Return the workers that have claimed a rollout or sent a heartbeat."""
        raise _missing(self, "query_workers")

    # -- the store itself ----------------------------------------------------------------------------

    async def statistics(self) -> LightningStoreStatistics:
        """Return the sizes of the store and its current load."""
        raise _missing(self, "statistics")

    async def prune(self, older_than: Seconds) -> int:
        """Delete rollouts that finished more than `older_than` seconds ago, with their spans; return how many."""
        raise _missing(self, "prune")

    async def close(self) -> None:
        """Close connections, files and threads. Acknowledged writes are kept."""

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        """The features that this store supports."""
        return {"thread_safe": False, "async_safe": True, "zero_copy": False, "otlp_traces": False}

    def address(self) -> "StoreAddress | None":
        """Return how another process opens this store, or None if only this process can.

        An address can be pickled or sent as JSON; its `open()` returns the store. It may hold a token or a password.
        """
        return None

    address.is_optional = True  # type: ignore[attr-defined]  # a store that only looks like this one may lack it

    def otlp_traces_endpoint(self) -> str:
        """Return the URL to which an OpenTelemetry exporter sends traces for this store."""
        raise NotImplementedError(
            f"{type(self).__name__} does not accept OTLP traces: serve it with LightningStoreServer"
        )


def _missing(store: LightningStore, method: str) -> MissingMethodError:
    return MissingMethodError(
        f"{type(store).__name__} does not implement {method!r}: define this method in your LightningStore subclass"
    )


# -- ids and arguments, as every store checks them ---------------------------------------------------

check_choice = partial(check_any_choice, error=InvalidInputError)


def check_int(
    name: str, value: int | None, *, at_least: int | None = None, at_most: int | None = None, optional: bool = False
) -> None:
    """Refuse what is not a whole number within the bounds, or None where that is allowed."""
    _check_plain(name, value)
    check_any_int(name, value, at_least=at_least, at_most=at_most, optional=optional, error=InvalidInputError)


def check_number(
    name: str,
    value: float | None,
    *,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    optional: bool = False,
) -> None:
    """Refuse what is not a finite number within the bounds, or None where that is allowed."""
    # Nearly all are right, and some are checked with every claim.
    if type(value) in (int, float) and at_least <= value <= at_most and abs(value) < math.inf:  # type: ignore[operator, arg-type]
        return
    _check_plain(name, value)
    check_any_number(
        name,
        value,
        at_least=None if at_least == -math.inf else at_least,
        at_most=None if at_most == math.inf else at_most,
        optional=optional,
        error=InvalidInputError,
    )


def _check_plain(name: str, value: Any) -> None:
    """Databases take the numbers of other libraries for something else, so only Python's own are accepted."""
    if not isinstance(value, int | float | None):
        raise InvalidInputError(f"{name} is {value!r:.80}, of type {type(value).__qualname__}: use an int or a float")


def new_id(kind: str) -> str:
    """Return an id of this kind, such as `ro-019a…`: 12 hex digits of milliseconds and 16 of randomness.

    Ids made one after another lie side by side in an index.
    The 64 random bits of an attempt's id admit its agent to the gateway of a run. They are guessed online only, against
    attempts that are open for minutes: a million guesses a second for an hour find one of 1,000 with 2e-7.
    """
    return f"{kind}-{time.time_ns() // 1_000_000:012x}{os.urandom(8).hex()}"


def check_id(kind: str, value: str) -> str:
    """Ids stand in URLs and logs: printable, without spaces and slashes."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_LENGTH:
        raise InvalidInputError(f"{kind} is {value!r}: use a string of 1 to {MAX_ID_LENGTH} characters")
    if not _is_good_id(value):
        raise InvalidInputError(
            f"{kind} is {value!r}: use printable characters other than spaces and / \\ ? # %; 'latest' is reserved"
        )
    return value


@lru_cache(maxsize=1024)  # the same workers come again and again
def _is_good_id(value: str) -> bool:
    return value.isprintable() and not any(c in value for c in " /\\?#%") and value not in (".", "..", "latest")


def check_choices(name: str, values: Any, allowed: Collection[str]) -> None:
    """Refuse what is not a list of choices."""
    if isinstance(values, str) or not isinstance(values, Sequence | Set):
        raise InvalidInputError(f"{name} is {values!r}: pass a list of values from {', '.join(sorted(allowed))}")
    for value in values:
        check_choice(name, value, allowed)


def check_seconds(name: str, value: float) -> None:
    """Refuse what is not a time to wait; infinity is one."""
    if value != math.inf:
        check_number(name, value, at_least=0)


def check_spans(spans: Sequence[Span]) -> None:
    """A number beyond the bound would leave none for the next span; a reward that is not finite spoils every mean."""
    for span in spans:
        if span.sequence_id > MAX_SEQUENCE_ID:
            check_number(
                f"the sequence_id of span {span.span_id!r}", span.sequence_id, at_least=0, at_most=MAX_SEQUENCE_ID
            )
        if PRIMARY_REWARD_VALUE in span.attributes:
            check_number(f"the reward of span {span.span_id!r}", span.attributes[PRIMARY_REWARD_VALUE])
