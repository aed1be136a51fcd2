"""The rules of the store, written once.

A ledger runs inside one transaction on some tables; it neither waits nor locks. Its methods have the names and
parameters of `LightningStore`. What happened is noted in `events`, so that the store can wake
those who wait once the transaction is durable. Everything is checked before anything is changed.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ..errors import FinishedError, InvalidInputError, UnknownIdError
from ..semconv import PRIMARY_REWARD_VALUE
from ..types import (
    ATTEMPT_STATUSES,
    ROLLOUT_MODES,
    ROLLOUT_STATUSES,
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
    RolloutStatus,
    Span,
    StoredSpans,
    TaskInput,
    Worker,
    WorkerHeartbeat,
    WorkerStatus,
    check_no_secrets,
)
from . import checks
from .base import AttemptEnd, FilterLogic, LightningStoreStatistics, SortOrder
from .ids import new_id
from .tables import AttemptRow, Match, Page, RolloutFilter, RolloutRow, Tables
from .transitions import (
    ENDED,
    FINISHED,
    OPEN,
    QUEUED,
    check_rollout_move,
    is_retried,
    may_attempt_become,
    rollout_status_after,
)

T = TypeVar("T")

ROLLOUT_SORTS = ("rollout_id", "start_time", "end_time", "status", "mode", "reward", "resources_id")
SPAN_SORTS = ("sequence_id", "start_time", "end_time", "name", "span_id", "trace_id", "parent_id")
ATTEMPT_SORTS = ("sequence_id", "start_time", "end_time", "status", "worker_id", "attempt_id", "last_heartbeat_time")
RESOURCES_SORTS = ("resources_id", "version", "create_time", "update_time")
WORKER_SORTS = ("worker_id", "status", "last_heartbeat_time", "last_dequeue_time", "last_busy_time", "last_idle_time")
WORKER_STATUSES = ("idle", "busy", "unknown")

_DEFAULT_CONFIG = RolloutConfig()


class Events(msgspec.Struct):
    """What a transaction brought: rollouts in the queue, rollouts that finished, the nearest deadline set."""

    queued: int = 0
    finished: list[str] = []
    deadline: float = math.inf


class Ledger:
    """All rules of the store, over some tables."""

    def __init__(self, tables: Tables, *, clock: Callable[[], float], name: str, keeps_secrets: bool) -> None:
        self.tables = tables
        self.clock = clock
        self.name = name
        self.keeps_secrets = keeps_secrets
        self.started = clock()
        self.events = Events()

    def take_events(self) -> "Events":
        """What happened since the last call."""
        events, self.events = self.events, Events()
        return events

    # -- rollouts ------------------------------------------------------------------------------------

    def enqueue_many_rollouts(self, requests: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        now = self.clock()
        bound: dict[str | None, tuple[str, int] | None] = {}
        rows: dict[str, RolloutRow] = {}
        known: list[RolloutRow] = []
        for request in requests:
            row = self._known_or_new(request, rows, bound, now)
            known.append(row)
        new = list(rows.values())
        self.tables.add_rollouts(new)
        self.events.queued += len(new)
        return [self._public(row) for row in known]

    def _known_or_new(
        self,
        request: EnqueueRolloutRequest,
        rows: dict[str, RolloutRow],
        bound: dict[str | None, tuple[str, int] | None],
        now: float,
    ) -> RolloutRow:
        """The row of this id where there is one, so that enqueueing twice is one rollout; else a new one."""
        rollout_id = request.rollout_id
        if rollout_id is not None:
            if row := rows.get(rollout_id) or self.tables.rollout(rollout_id):
                return row
            checks.check_id("rollout_id", rollout_id)
        else:
            rollout_id = new_id("ro")
        if request.resources_id not in bound:
            bound[request.resources_id] = self._bind(request.resources_id)
        row = self._new_row(request, rollout_id, bound[request.resources_id], now)
        rows[rollout_id] = row
        return row

    def _bind(self, resources_id: str | None) -> tuple[str, int] | None:
        """Id and version of the resources that a new rollout will see."""
        found = self.tables.resources_version(resources_id)
        if found is None and resources_id is not None:
            raise UnknownIdError(f"there are no resources {resources_id!r}: publish them with add_resources first")
        return found

    def _new_row(
        self, request: EnqueueRolloutRequest, rollout_id: str, bound: tuple[str, int] | None, now: float
    ) -> RolloutRow:
        resources_id, version = bound or (None, None)
        return self.tables.rollout_row(
            rollout_id,
            self.tables.pack(request.input, "the task"),
            now,
            request.mode,
            resources_id,
            version,
            _checked_config(request.config),
            self.tables.pack(_checked_metadata(request.metadata), "metadata"),
            "queuing",
        )

    def start_rollout(
        self,
        input: TaskInput,
        mode: RolloutMode | None = None,
        resources_id: str | None = None,
        config: RolloutConfig | None = None,
        metadata: dict[str, Any] | None = None,
        worker_id: str | None = None,
        rollout_id: str | None = None,
    ) -> AttemptedRollout:
        if rollout_id is not None and (row := self.tables.rollout(rollout_id)):
            attempt = self.tables.latest_attempt(row)
            return self._attempted(row, attempt) if attempt else self.start_attempt(rollout_id, worker_id)
        if rollout_id is not None:
            checks.check_id("rollout_id", rollout_id)
        _check_worker(worker_id)
        now = self.clock()
        request = EnqueueRolloutRequest(input, mode, resources_id, config, metadata, rollout_id)
        row = self._new_row(request, rollout_id or new_id("ro"), self._bind(resources_id), now)
        row.status = "preparing"
        self.tables.add_rollouts([row])
        return self._attempted(row, self._open_attempt(row, worker_id, None, now))

    def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        request_id: str | None = None,
    ) -> list[AttemptedRollout]:
        checks.check_number("limit", limit, low=1)
        _check_worker(worker_id)
        if request_id is not None:
            checks.check_id("request_id", request_id)
        if request_id is not None and (given := self.tables.claimed(request_id)):
            return [self._attempted(row, attempt) for row, attempt in given]
        now = self.clock()
        return [
            self._attempted(row, self._open_attempt(row, worker_id, request_id, now))
            for row in self.tables.queue_head(limit)
        ]

    def start_attempt(
        self, rollout_id: str, worker_id: str | None = None, request_id: str | None = None
    ) -> AttemptedRollout:
        _check_worker(worker_id)
        if request_id is not None:
            checks.check_id("request_id", request_id)
        row = self._rollout(rollout_id)
        if request_id is not None and (given := self.tables.claimed(request_id)):
            return self._attempted(*given[0])
        if row.status in FINISHED:
            raise FinishedError(f"rollout {rollout_id!r} has {row.status}: it takes no new attempt")
        return self._attempted(row, self._open_attempt(row, worker_id, request_id, self.clock()))

    def _open_attempt(self, row: RolloutRow, worker_id: str | None, request_id: str | None, now: float) -> AttemptRow:
        if row.attempts:
            self._supersede(row)
        row.attempts += 1
        row.reward, row.reward_span = None, 0
        attempt = self.tables.attempt_row(
            row.rollout_id,
            new_id("at"),
            row.attempts,
            now,
            worker_id=worker_id,
            request_id=request_id,
            number=row.number,
        )
        attempt.deadline = _deadline(row, attempt)
        self._note(attempt)
        self.tables.add_attempt(attempt)
        self._move(row, "preparing", now)
        if worker_id is not None:
            self.tables.mark_busy(worker_id, attempt, now)
        return attempt

    def _supersede(self, row: RolloutRow) -> None:
        """A newer attempt takes over: what the older one still sends is kept, but moves nothing."""
        attempt = self.tables.latest_attempt(row)
        if attempt is not None and attempt.status not in ENDED:
            attempt.unwanted = attempt.worker_id is not None
            attempt.deadline = None
            self._save(attempt)

    def update_rollout(
        self,
        rollout_id: str,
        input: TaskInput | UnsetType = UNSET,
        mode: RolloutMode | None | UnsetType = UNSET,
        resources_id: str | None | UnsetType = UNSET,
        status: RolloutStatus | UnsetType = UNSET,
        config: RolloutConfig | UnsetType = UNSET,
        metadata: dict[str, Any] | None | UnsetType = UNSET,
    ) -> Rollout:
        row = self._rollout(rollout_id)
        moves = status is not UNSET and status != row.status
        if status is not UNSET and moves:
            checks.check_choice("status", status, ROLLOUT_STATUSES)
            check_rollout_move(rollout_id, row.status, status, by_hand=True)
        body = _body_changes(input, mode, config, metadata)
        if resources_id is not UNSET:
            bound = self._bind(resources_id) if resources_id is not None else None
            body["resources_id"], body["resources_version"] = bound or (None, None)
        for name in ("input", "metadata"):
            if name in body:
                body[name] = self.tables.pack(body[name], "the task" if name == "input" else name)
        if body:
            self._change_body(row, body)
        if moves:
            self._move_by_hand(row, status)  # type: ignore[arg-type]
        return self._with_attempt(row)

    def _change_body(self, row: RolloutRow, changes: dict[str, Any]) -> None:
        for name, value in changes.items():
            if name in ("input", "metadata"):
                self.tables.drop(getattr(row, name))
            setattr(row, name, value)
        self.tables.save_body(row)
        attempt = self.tables.latest_attempt(row)
        if "config" in changes and attempt is not None and attempt.status in OPEN:
            attempt.deadline = _deadline(row, attempt)
            self._save(attempt)

    def _move_by_hand(self, row: RolloutRow, status: RolloutStatus) -> None:
        now = self.clock()
        if status in QUEUED or status in FINISHED:
            self._close_latest(row, "succeeded" if status == "succeeded" else "failed", now)
        self._move(row, status, now, by_hand=True)

    def cancel_rollouts(self, rollout_ids: Sequence[str]) -> list[Rollout]:
        rows = [self._rollout(rollout_id) for rollout_id in dict.fromkeys(rollout_ids)]
        now = self.clock()
        for row in rows:
            if row.status not in FINISHED:
                self._close_latest(row, "failed", now)
                self._move(row, "cancelled", now)
        return [self._with_attempt(row) for row in rows]

    def _close_latest(self, row: RolloutRow, status: AttemptStatus, now: float) -> None:
        """End the open attempt from outside; its worker is told when it next calls."""
        attempt = self.tables.latest_attempt(row)
        if attempt is None or attempt.status in ENDED:
            return
        attempt.unwanted = attempt.worker_id is not None
        if attempt.status in OPEN:
            self._end(attempt, status, now)
        else:
            attempt.deadline = None
            self._save(attempt)

    def get_rollout_by_id(self, rollout_id: str) -> Rollout | None:
        row = self.tables.rollout(rollout_id)
        return None if row is None else self._with_attempt(row)

    def query_rollouts(
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
        limit: int = -1,
        offset: int = 0,
        status: Sequence[RolloutStatus] | None = None,
        rollout_ids: Sequence[str] | None = None,
    ) -> PaginatedResult[Rollout]:
        statuses, ids = _either("status", status_in, status), _either("rollout_id", rollout_id_in, rollout_ids)
        if statuses is not None:
            checks.check_choices("status_in", statuses, ROLLOUT_STATUSES)
        if mode is not None:
            checks.check_choice("mode", mode, ROLLOUT_MODES)
        wanted = RolloutFilter(
            None if statuses is None else frozenset(statuses),
            None if ids is None else frozenset(ids),
            rollout_id_contains,
            mode,
            reward_min,
            reward_max,
            _logic(filter_logic),
        )
        return self.tables.rollouts(wanted, _page(sort_by, ROLLOUT_SORTS, sort_order, limit, offset))

    def finished_rollouts(self, after: int = 0, limit: int = 1000) -> FinishedRollouts:
        checks.check_number("after", after, low=0)
        checks.check_number("limit", limit, low=1)
        found = self.tables.finished(after, limit)
        return FinishedRollouts([rollout for _, rollout in found], found[-1][0] if found else after)

    def unfinished(self, rollout_ids: Sequence[str]) -> list[str]:
        """Those that are not finished; an unknown id is an error."""
        return self.tables.unfinished(rollout_ids)

    # -- attempts ------------------------------------------------------------------------------------

    def update_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        status: AttemptStatus | UnsetType = UNSET,
        worker_id: str | UnsetType = UNSET,
        last_heartbeat_time: float | UnsetType = UNSET,
        metadata: dict[str, Any] | None | UnsetType = UNSET,
    ) -> Attempt:
        row = self._rollout(rollout_id)
        attempt = self._attempt(row, attempt_id)
        if status is not UNSET:
            checks.check_choice("status", status, ATTEMPT_STATUSES)
        if last_heartbeat_time is not UNSET:
            checks.check_finite("last_heartbeat_time", last_heartbeat_time)
        if worker_id is not UNSET:
            checks.check_id("worker_id", worker_id)
        packed = self._pack_metadata(metadata)
        now = self.clock()
        self._set_metadata(attempt, packed)
        if last_heartbeat_time is not UNSET:
            attempt.last_heartbeat_time = last_heartbeat_time
        if worker_id is not UNSET:
            attempt.worker_id = worker_id
            if attempt.status in OPEN:
                self.tables.mark_busy(worker_id, attempt, now)
        if attempt.status in OPEN:
            attempt.deadline = _deadline(row, attempt)
        if status is UNSET:
            self._save(attempt)
        else:
            self._report(row, attempt, status, now)
        return self._public_attempt(attempt)

    def complete_attempt(
        self,
        rollout_id: str,
        attempt_id: str,
        *,
        spans: Sequence[Span] = (),
        status: AttemptEnd = "succeeded",
        reward: float | None = None,
        metadata: dict[str, Any] | None | UnsetType = UNSET,
    ) -> Attempt:
        row = self._rollout(rollout_id)
        attempt = self._attempt(row, attempt_id)
        checks.check_choice("status", status, ENDED)
        if reward is not None:
            checks.check_finite("reward", reward)
        for span in spans:
            if span.rollout_id != rollout_id or span.attempt_id != attempt.attempt_id:
                raise InvalidInputError(
                    f"span {span.span_id!r} belongs to {span.rollout_id!r}, attempt {span.attempt_id!r}, "
                    f"not to the completed attempt {attempt.attempt_id!r} of {rollout_id!r}"
                )
        checks.check_rewards(spans)
        packed = self._pack_metadata(metadata)
        now = self.clock()
        self._set_metadata(attempt, packed)
        if spans:
            self._store_spans(row, attempt, list(spans))
        if reward is not None and _counts(row, attempt):
            row.reward = float(reward)
        self._report(row, attempt, status, now)
        return self._public_attempt(attempt)

    def _pack_metadata(self, metadata: dict[str, Any] | None | UnsetType) -> Any:
        return UNSET if metadata is UNSET else self.tables.pack(_checked_metadata(metadata), "metadata")

    def _set_metadata(self, attempt: AttemptRow, packed: Any) -> None:
        if packed is not UNSET:
            self.tables.drop(attempt.metadata)
            attempt.metadata = packed

    def _report(self, row: RolloutRow, attempt: AttemptRow, status: AttemptStatus, now: float) -> None:
        """A status from the attempt's worker: kept and, where the attempt still counts, acted on."""
        attempt.unwanted = False
        is_late = not may_attempt_become(attempt.status, status) or (
            attempt.status == "unresponsive" and not _counts(row, attempt)
        )
        if is_late:
            self._save(attempt)
        elif status in ENDED:
            self._end(attempt, status, now)
            self._follow(row, attempt, now)
        elif status == "unresponsive":
            self._suspend(row, attempt, now)
        else:
            self._go_on(row, attempt, status, now)

    def _go_on(self, row: RolloutRow, attempt: AttemptRow, status: AttemptStatus, now: float) -> None:
        """The attempt is alive: open it again if it was suspended, and take its rollout along."""
        was_open = attempt.status in OPEN
        attempt.status, attempt.end_time = status, None
        if not was_open:
            attempt.last_heartbeat_time, attempt.unwanted = now, False
            if attempt.worker_id is not None:
                self.tables.mark_busy(attempt.worker_id, attempt, now)
        attempt.deadline = _deadline(row, attempt)
        self._save(attempt)
        if _counts(row, attempt) and row.status not in ("preparing", "running"):
            self._move(row, "running", now, by_hand=row.status == "queuing")
        self._follow(row, attempt, now)

    def _end(self, attempt: AttemptRow, status: AttemptStatus, now: float) -> None:
        attempt.status, attempt.end_time, attempt.deadline = status, now, None
        self._save(attempt)
        if attempt.worker_id is not None:
            self.tables.mark_idle(attempt.worker_id, now)

    def _follow(self, row: RolloutRow, attempt: AttemptRow, now: float) -> None:
        """The latest attempt moves its rollout."""
        if _counts(row, attempt):
            self._move(row, rollout_status_after(row.config, attempt.status, row.attempts), now)

    def _suspend(self, row: RolloutRow, attempt: AttemptRow, now: float) -> None:
        """The lease ran out: try again where the rule allows, else give the attempt one more lease to come back."""
        attempt.status, attempt.end_time, attempt.deadline = "unresponsive", now, None
        is_final = False
        if _counts(row, attempt) and not is_retried(row.config, "unresponsive", row.attempts):
            if row.config.unresponsive_seconds is None:
                is_final = True
                attempt.unwanted = attempt.worker_id is not None
            else:
                attempt.deadline = now + row.config.unresponsive_seconds
        self._save(attempt)
        if attempt.worker_id is not None:
            self.tables.mark_idle(attempt.worker_id, now)
        if is_final or attempt.deadline is None:
            self._follow(row, attempt, now)

    def _move(self, row: RolloutRow, status: RolloutStatus, now: float, *, by_hand: bool = False) -> None:
        """The only place where a rollout's status changes."""
        old = row.status
        if status != old:
            check_rollout_move(row.rollout_id, old, status, by_hand=by_hand)
            row.status = status
            if status in FINISHED:
                row.end_time = now
                self.events.finished.append(row.rollout_id)
            elif status in QUEUED and old not in QUEUED:
                self.events.queued += 1
        self.tables.save_rollout(row, old)

    def get_latest_attempt(self, rollout_id: str) -> Attempt | None:
        row = self.tables.rollout(rollout_id)
        attempt = None if row is None else self.tables.latest_attempt(row)
        return None if attempt is None else self._public_attempt(attempt)

    def query_attempts(
        self,
        rollout_id: str,
        *,
        sort_by: str = "sequence_id",
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Attempt]:
        page = _page(sort_by, ATTEMPT_SORTS, sort_order, limit, offset)
        found = [self._public_attempt(attempt) for attempt in self.tables.attempts(self._rollout(rollout_id))]
        return paginate(found, page)

    def expire(self) -> int:
        """Apply every time-out and lease that is due; how many."""
        now = self.clock()
        due = self.tables.due(now)
        for row, attempt in due:
            if attempt.status not in OPEN:
                self._give_up(row, attempt, now)
            elif _timeout_at(row.config, attempt) <= now:
                attempt.unwanted = attempt.worker_id is not None
                self._end(attempt, "timeout", now)
                self._follow(row, attempt, now)
            else:
                self._suspend(row, attempt, now)
        return len(due)

    def _give_up(self, row: RolloutRow, attempt: AttemptRow, now: float) -> None:
        """A suspended attempt did not come back within its second lease."""
        attempt.deadline = None
        attempt.unwanted = attempt.worker_id is not None
        self._save(attempt)
        self._follow(row, attempt, now)

    # -- spans ---------------------------------------------------------------------------------------

    def add_many_spans(self, spans: Sequence[Span]) -> StoredSpans:
        checks.check_rewards(spans)
        groups: dict[tuple[str, str], list[int]] = {}
        for index, span in enumerate(spans):
            groups.setdefault((span.rollout_id, span.attempt_id), []).append(index)
        rows: dict[str, RolloutRow] = {}
        places: list[tuple[RolloutRow, AttemptRow, list[int]]] = []
        for (rollout_id, attempt_id), indexes in groups.items():
            row = rows.get(rollout_id) or rows.setdefault(rollout_id, self._rollout(rollout_id))
            places.append((row, self._attempt(row, attempt_id), indexes))
        answer: list[Span | None] = [None] * len(spans)
        for row, attempt, indexes in places:
            for index, stored in zip(
                indexes, self._store_spans(row, attempt, [spans[i] for i in indexes]), strict=True
            ):
                answer[index] = stored
        return StoredSpans(
            answer,
            (a.attempt_id for row, a, _ in places if a.status in ENDED or not _counts(row, a)),
        )

    def _store_spans(self, row: RolloutRow, attempt: AttemptRow, spans: list[Span]) -> list[Span | None]:
        stored = self._number(row, attempt, spans)
        fresh = [span for span in stored if span is not None]
        if fresh:
            self.tables.add_spans(row, attempt, fresh)
        counts, now = _counts(row, attempt), self.clock()
        if counts:
            _take_reward(row, fresh)
        if attempt.status in OPEN:
            attempt.last_heartbeat_time = now
            self._go_on(row, attempt, "running", now)
        elif attempt.status == "unresponsive" and counts:
            self._go_on(row, attempt, "running", now)
        if not counts:
            self.tables.save_rollout(row, row.status)
        return stored

    def _number(self, row: RolloutRow, attempt: AttemptRow, spans: list[Span]) -> list[Span | None]:
        """Number the spans that are new and have none, and keep the counter above all; None for those known."""
        seen: set[str] = set()
        numbered: list[Span | None] = []
        for span, is_missing in zip(spans, self.tables.missing_spans(row, attempt, spans), strict=True):
            if not is_missing or span.span_id in seen:
                numbered.append(None)
                continue
            seen.add(span.span_id)
            number = span.sequence_id if span.sequence_id > 0 else row.last_span + 1
            row.last_span = max(row.last_span, number)
            if number == span.sequence_id and span.attempt_id == attempt.attempt_id:
                numbered.append(span)
            else:
                numbered.append(replace(span, sequence_id=number, attempt_id=attempt.attempt_id))
        return numbered

    def get_many_span_sequence_ids(self, pairs: Sequence[tuple[str, str]]) -> list[int]:
        rows = [self._rollout(rollout_id) for rollout_id, _ in pairs]
        for row, (_, attempt_id) in zip(rows, pairs, strict=True):
            self._attempt(row, attempt_id)
        by_id = {row.rollout_id: row for row in rows}
        numbers = []
        for rollout_id, _ in pairs:
            row = by_id[rollout_id]
            row.last_span += 1
            numbers.append(row.last_span)
        for row in by_id.values():
            self.tables.save_rollout(row, row.status)
        return numbers

    def query_spans(
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
        limit: int = -1,
        offset: int = 0,
        sort_by: str = "sequence_id",
        sort_order: SortOrder = "asc",
    ) -> PaginatedResult[Span]:
        page = _page(sort_by, SPAN_SORTS, sort_order, limit, offset)
        matches = _matches(
            trace_id=(trace_id, trace_id_contains),
            span_id=(span_id, span_id_contains),
            parent_id=(parent_id, parent_id_contains),
            name=(name, name_contains),
        )
        row = self._rollout(rollout_id)
        if attempt_id == "latest" and not row.attempts:
            return PaginatedResult([], limit, offset, 0)
        attempt = None if attempt_id is None else self._attempt(row, attempt_id)
        return self.tables.spans(row, attempt, matches, _logic(filter_logic), page)

    # -- resources -----------------------------------------------------------------------------------

    def add_resources(self, resources: NamedResources, resources_id: str | None = None) -> ResourcesUpdate:
        self._check_resources(resources)
        if resources_id is not None:
            checks.check_id("resources_id", resources_id)
            if known := self.tables.resources(resources_id, 1):
                return known
        now = self.clock()
        update = ResourcesUpdate(resources_id or new_id("rs"), now, now, 1, dict(resources))
        self.tables.add_resources(update, None)
        return update

    def update_resources(
        self, resources_id: str, resources: NamedResources, request_id: str | None = None
    ) -> ResourcesUpdate:
        self._check_resources(resources)
        if request_id is not None and (given := self.tables.resources_by_request(request_id)):
            return given
        latest = self.tables.resources(resources_id, None)
        if latest is None:
            raise UnknownIdError(f"there are no resources {resources_id!r}: publish them with add_resources first")
        update = replace(latest, update_time=self.clock(), version=latest.version + 1, resources=dict(resources))
        self.tables.add_resources(update, request_id)
        return update

    def _check_resources(self, resources: NamedResources) -> None:
        try:
            msgspec.convert(resources, type=NamedResources)
        except msgspec.ValidationError as error:
            raise InvalidInputError(f"resources must be LLM, ProxyLLM or PromptTemplate by name: {error}") from None
        if not self.keeps_secrets:
            check_no_secrets(resources)

    def get_resources_by_id(self, resources_id: str, version: int | None = None) -> ResourcesUpdate | None:
        return self.tables.resources(resources_id, version)

    def get_latest_resources(self) -> ResourcesUpdate | None:
        return self.tables.latest_resources()

    def query_resources(
        self,
        *,
        resources_id: str | None = None,
        resources_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[ResourcesUpdate]:
        page = _page(sort_by, RESOURCES_SORTS, sort_order, limit, offset)
        matches = _matches(resources_id=(resources_id, resources_id_contains))
        return self.tables.all_resources(matches, _logic(filter_logic), page)

    # -- workers -------------------------------------------------------------------------------------

    def update_worker(self, worker_id: str, heartbeat_stats: dict[str, Any] | None = None) -> WorkerHeartbeat:
        checks.check_id("worker_id", worker_id)
        now = self.clock()
        stats = _checked_metadata(heartbeat_stats)
        self.tables.drop(self.tables.pack(stats, "heartbeat_stats"))  # only checked: it is kept with the worker
        for row, attempt in self.tables.open_attempts(worker_id):
            attempt.last_heartbeat_time = now
            attempt.deadline = _deadline(row, attempt)
            self._save(attempt)
        worker = self.tables.save_heartbeat(worker_id, now, stats)
        return WorkerHeartbeat(**msgspec.structs.asdict(worker), unwanted_attempts=self.tables.unwanted(worker_id))

    def get_worker_by_id(self, worker_id: str) -> Worker | None:
        return self.tables.worker(worker_id)

    def query_workers(
        self,
        *,
        status_in: Sequence[WorkerStatus] | None = None,
        worker_id_contains: str | None = None,
        filter_logic: FilterLogic = "and",
        sort_by: str | None = None,
        sort_order: SortOrder = "asc",
        limit: int = -1,
        offset: int = 0,
    ) -> PaginatedResult[Worker]:
        if status_in is not None:
            checks.check_choices("status_in", status_in, WORKER_STATUSES)
        page = _page(sort_by, WORKER_SORTS, sort_order, limit, offset)
        matches = _matches(worker_id=(None, worker_id_contains))
        return self.tables.workers(
            None if status_in is None else frozenset(status_in), matches, _logic(filter_logic), page
        )

    # -- the store itself ----------------------------------------------------------------------------

    def statistics(self) -> LightningStoreStatistics:
        counts = self.tables.counts()
        by_status = {status: counts.rollouts.get(status, 0) for status in ROLLOUT_STATUSES}
        return {
            "name": self.name,
            "total_rollouts": sum(by_status.values()),
            "rollouts_by_status": dict(by_status),
            "queue_length": sum(by_status[status] for status in QUEUED),
            "total_attempts": counts.attempts,
            "open_attempts": counts.open_attempts,
            "total_spans": counts.spans,
            "total_resources": counts.resources,
            "total_workers": counts.workers,
            "size_bytes": counts.size_bytes,
            "uptime_seconds": max(0.0, self.clock() - self.started),
        }

    def next_deadline(self) -> float | None:
        return self.tables.next_deadline()

    def queue_length(self) -> int:
        return self.tables.queue_length()

    def prune(self, older_than: float) -> int:
        checks.check_number("older_than", older_than, low=0)
        return self.tables.delete_finished_before(self.clock() - older_than)

    # -- rows and what leaves the store --------------------------------------------------------------

    def _note(self, attempt: AttemptRow) -> None:
        if attempt.deadline is not None and attempt.deadline < self.events.deadline:
            self.events.deadline = attempt.deadline

    def _save(self, attempt: AttemptRow) -> None:
        self._note(attempt)
        self.tables.save_attempt(attempt)

    def _rollout(self, rollout_id: str) -> RolloutRow:
        row = self.tables.rollout(rollout_id)
        if row is None:
            raise UnknownIdError(f"there is no rollout {rollout_id!r}")
        return row

    def _attempt(self, row: RolloutRow, attempt_id: str) -> AttemptRow:
        if attempt_id == "latest":
            attempt = self.tables.latest_attempt(row)
        else:
            attempt = self.tables.attempt(row, attempt_id)
        if attempt is None:
            raise UnknownIdError(f"rollout {row.rollout_id!r} has no attempt {attempt_id!r}")
        return attempt

    def _public(self, row: RolloutRow) -> Rollout:
        return public_rollout(row, self.tables.unpack)

    def _public_attempt(self, attempt: AttemptRow) -> Attempt:
        return attempt.public(self.tables.unpack(attempt.metadata))

    def _with_attempt(self, row: RolloutRow) -> Rollout:
        attempt = self.tables.latest_attempt(row)
        return self._public(row) if attempt is None else self._attempted(row, attempt)

    def _attempted(self, row: RolloutRow, attempt: AttemptRow) -> AttemptedRollout:
        unpack = self.tables.unpack
        return AttemptedRollout(
            row.rollout_id,
            unpack(row.input),
            row.start_time,
            row.end_time,
            row.mode,
            row.resources_id,
            row.status,
            row.config,
            unpack(row.metadata),
            row.resources_version,
            row.reward,
            attempt=attempt.public(unpack(attempt.metadata)),
        )


def public_rollout(row: RolloutRow, unpack: Callable[[Any], Any]) -> Rollout:
    """The rollout as callers see it."""
    return Rollout(
        row.rollout_id,
        unpack(row.input),
        row.start_time,
        row.end_time,
        row.mode,
        row.resources_id,
        row.status,
        row.config,
        unpack(row.metadata),
        row.resources_version,
        row.reward,
    )


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


def _counts(row: RolloutRow, attempt: AttemptRow) -> bool:
    """Whether this attempt may still move its rollout."""
    return attempt.sequence_id == row.attempts and row.status not in FINISHED


def _timeout_at(config: RolloutConfig, attempt: AttemptRow) -> float:
    return float("inf") if config.timeout_seconds is None else attempt.start_time + config.timeout_seconds


def _deadline(row: RolloutRow, attempt: AttemptRow) -> float | None:
    """When the open latest attempt runs out of time or of its lease; of older ones nothing depends any more."""
    config = row.config
    if attempt.sequence_id != row.attempts:
        return None
    if config.unresponsive_seconds is None:
        return None if config.timeout_seconds is None else attempt.start_time + config.timeout_seconds
    renewed = attempt.start_time if attempt.last_heartbeat_time is None else attempt.last_heartbeat_time
    return min(_timeout_at(config, attempt), renewed + config.unresponsive_seconds)


def _take_reward(row: RolloutRow, spans: Sequence[Span]) -> None:
    """The reward with the highest number is the rollout's own, in whatever order spans arrive."""
    for span in spans:
        if PRIMARY_REWARD_VALUE in span.attributes and span.sequence_id > row.reward_span:
            row.reward, row.reward_span = float(span.attributes[PRIMARY_REWARD_VALUE]), span.sequence_id


def _body_changes(input: Any, mode: Any, config: Any, metadata: Any) -> dict[str, Any]:
    if mode is not UNSET and mode is not None:
        checks.check_choice("mode", mode, ROLLOUT_MODES)
    if metadata is not UNSET:
        metadata = _checked_metadata(metadata)
    if config is not UNSET:
        config = _checked_config(config)
    given = {"input": input, "mode": mode, "config": config, "metadata": metadata}
    return {name: value for name, value in given.items() if value is not UNSET}


def _checked_config(config: RolloutConfig | None) -> RolloutConfig:
    if config is None:
        return _DEFAULT_CONFIG
    if not isinstance(config, RolloutConfig):
        raise InvalidInputError(f"config is {config!r}: give a RolloutConfig")
    return config


def _checked_metadata(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    if metadata is not None and not isinstance(metadata, dict):
        raise InvalidInputError(f"metadata is {metadata!r}: give a dict or None")
    return metadata


def _check_worker(worker_id: str | None) -> None:
    if worker_id is not None:
        checks.check_id("worker_id", worker_id)


def _either(name: str, new: Sequence[str] | None, old: Sequence[str] | None) -> Sequence[str] | None:
    if new is not None and old is not None:
        raise InvalidInputError(f"{name} is given twice, under its old and its new name: give {name}_in only")
    return old if new is None else new


def _logic(filter_logic: FilterLogic) -> FilterLogic:
    checks.check_choice("filter_logic", filter_logic, ("and", "or"))
    return filter_logic


def _page(sort_by: str | None, allowed: Sequence[str], sort_order: SortOrder, limit: int, offset: int) -> Page:
    if sort_by is not None:
        checks.check_choice("sort_by", sort_by, allowed)
    checks.check_choice("sort_order", sort_order, ("asc", "desc"))
    checks.check_number("limit", limit, low=-1)
    checks.check_number("offset", offset, low=0)
    return Page(sort_by, sort_order, limit, offset)


def _matches(**fields: tuple[str | None, str | None]) -> list[Match]:
    return [
        Match(field, value, contains)
        for field, pair in fields.items()
        for value, contains in zip(pair, (False, True), strict=True)
        if value is not None
    ]
