"""The rules of the store, written once.

Its methods have the names and parameters of `LightningStore`. Everything is checked before anything is changed.
"""

from collections.abc import Sequence
from typing import Any

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
    NamedResources,
    ResourcesUpdate,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    Span,
    StoredSpans,
    TaskInput,
    WorkerHeartbeat,
    check_no_secrets,
)
from .base import AttemptEnd, check_choice, check_id, check_number, check_seconds, check_spans, new_id
from .lifecycle import HANDED_BACK, deadline_of, still_counts
from .queries import Queries
from .tables import AttemptRow, RolloutRow
from .task_json import TASK
from .transitions import ENDED, FINISHED, OPEN, QUEUED, check_rollout_move

_DEFAULT_CONFIG = RolloutConfig()
UNNAMED_SECONDS = 60.0
"""How long an attempt without a lease lives on after a heartbeat of its worker that does not name it."""


class StoreRules(Queries):
    """The rules of the store: every method of `LightningStore` that does not wait, run on the given tables."""

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
            check_id("rollout_id", rollout_id)
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
            raise UnknownIdError(f"resources {resources_id!r} do not exist: publish them with add_resources first")
        return found

    def _new_row(
        self, request: EnqueueRolloutRequest, rollout_id: str, bound: tuple[str, int] | None, now: float
    ) -> RolloutRow:
        resources_id, version = bound or (None, None)
        return self.tables.rollout_row(
            rollout_id,
            self.tables.pack(request.input, TASK),
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
            check_id("rollout_id", rollout_id)
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
        check_number("limit", limit, at_least=1)
        _check_worker(worker_id)
        if request_id is not None:
            check_id("request_id", request_id)
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
            check_id("request_id", request_id)
        row = self._rollout(rollout_id)
        if request_id is not None and (given := self.tables.claimed(request_id)):
            _check_same("rollout", request_id, rollout_id, given[0][0].rollout_id)
            return self._attempted(*given[0])
        if row.status in FINISHED:
            raise FinishedError(f"rollout {rollout_id!r} has finished ({row.status}): no new attempt can be started")
        return self._attempted(row, self._open_attempt(row, worker_id, request_id, self.clock()))

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
            check_choice("status", status, ROLLOUT_STATUSES)
            check_rollout_move(rollout_id, row.status, status, by_hand=True)
        body = _body_changes(input, mode, config, metadata)
        if resources_id is not UNSET:
            bound = self._bind(resources_id) if resources_id is not None else None
            body["resources_id"], body["resources_version"] = bound or (None, None)
        for name in ("input", "metadata"):
            if name in body:
                body[name] = self.tables.pack(body[name], TASK if name == "input" else name)
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
            attempt.deadline = deadline_of(row, attempt, self.clock)
            self._save(attempt)

    def _move_by_hand(self, row: RolloutRow, status: RolloutStatus) -> None:
        now = self.clock()
        if status in QUEUED:
            self._mark_handed_back(row)
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
            check_choice("status", status, ATTEMPT_STATUSES)
        if last_heartbeat_time is not UNSET:
            check_number("last_heartbeat_time", last_heartbeat_time)
        if worker_id is not UNSET:
            check_id("worker_id", worker_id)
        packed = self._pack_metadata(attempt, metadata)
        now = self.clock()
        self._set_metadata(attempt, packed)
        if last_heartbeat_time is not UNSET:
            attempt.last_heartbeat_time = last_heartbeat_time
        if worker_id is not UNSET:
            attempt.worker_id = worker_id
            if attempt.status in OPEN:
                self.tables.mark_busy(worker_id, attempt, now)
        if attempt.status in OPEN:
            attempt.deadline = deadline_of(row, attempt, self.clock)
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
        check_choice("status", status, ENDED)
        check_number("reward", reward, optional=True)
        for span in spans:
            if span.rollout_id != rollout_id or span.attempt_id != attempt.attempt_id:
                raise InvalidInputError(
                    f"span {span.span_id!r} belongs to {span.rollout_id!r}, attempt {span.attempt_id!r}, "
                    f"not to attempt {attempt.attempt_id!r} of {rollout_id!r}, which is being completed"
                )
        check_spans(spans)
        packed = self._pack_metadata(attempt, metadata)
        now = self.clock()
        self._set_metadata(attempt, packed)
        if spans:
            self._store_spans(row, attempt, list(spans))
        if reward is not None and still_counts(row, attempt):
            row.reward = float(reward)
        self._report(row, attempt, status, now)
        return self._public_attempt(attempt)

    def _pack_metadata(self, attempt: AttemptRow, metadata: dict[str, Any] | None | UnsetType) -> Any:
        if metadata is UNSET:
            return UNSET
        metadata = _checked_metadata(metadata)
        if metadata is not None and HANDED_BACK in metadata:
            metadata = {name: value for name, value in metadata.items() if name != HANDED_BACK}
        if handed_back := self._handed_back(attempt):
            metadata = {**(metadata or {}), HANDED_BACK: handed_back}
        return self.tables.pack(metadata, "metadata")

    def _set_metadata(self, attempt: AttemptRow, packed: Any) -> None:
        if packed is not UNSET:
            self.tables.drop(attempt.metadata)
            attempt.metadata = packed

    def add_many_spans(self, spans: Sequence[Span]) -> StoredSpans:
        check_spans(spans)
        places, answer = self._places(spans), list[Span | None]([None] * len(spans))
        for row, attempt, indexes in places:
            stored = self._store_spans(row, attempt, [spans[index] for index in indexes])
            for index, span in zip(indexes, stored, strict=True):
                answer[index] = span
        unwanted = [a.attempt_id for row, a, _ in places if a.status in ENDED or not still_counts(row, a)]
        return StoredSpans(answer, unwanted)

    def _places(self, spans: Sequence[Span]) -> list[tuple[RolloutRow, AttemptRow, Sequence[int]]]:
        """The attempts that spans belong to, each with the positions of its spans; an unknown one is an error."""
        if len(spans) == 1:
            row = self._rollout(spans[0].rollout_id)
            return [(row, self._attempt(row, spans[0].attempt_id), (0,))]
        groups: dict[tuple[str, str], list[int]] = {}
        for index, span in enumerate(spans):
            groups.setdefault((span.rollout_id, span.attempt_id), []).append(index)
        rows: dict[str, RolloutRow] = {}
        places: list[tuple[RolloutRow, AttemptRow, Sequence[int]]] = []
        for (rollout_id, attempt_id), indexes in groups.items():
            row = rows.get(rollout_id) or rows.setdefault(rollout_id, self._rollout(rollout_id))
            places.append((row, self._attempt(row, attempt_id), indexes))
        return places

    def _store_spans(self, row: RolloutRow, attempt: AttemptRow, spans: list[Span]) -> list[Span | None]:
        stored = self._number(row, attempt, spans)
        fresh = [span for span in stored if span is not None]
        if fresh:
            self.tables.add_spans(row, attempt, fresh)
        counts, now = still_counts(row, attempt), self.clock()
        if counts:
            _take_reward(row, fresh)
        if attempt.status in OPEN:
            attempt.last_heartbeat_time = now
            self._go_on(row, attempt, "running", now)
        elif attempt.status == "unresponsive" and counts:
            self._go_on(row, attempt, "running", now)
        self.tables.save_rollout(row, row.status)  # the counter and the reward, also where no status moves
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

    def add_resources(self, resources: NamedResources, resources_id: str | None = None) -> ResourcesUpdate:
        self._check_resources(resources)
        if resources_id is not None:
            check_id("resources_id", resources_id)
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
        check_id("resources_id", resources_id)
        # Read before the request is looked up: if another store writes the same request in between, this version is
        # taken, and the transaction that is tried again finds the request.
        latest, now = self.tables.resources(resources_id, None), self.clock()
        if request_id is not None:
            check_id("request_id", request_id)
            if given := self.tables.resources_by_request(request_id):
                _check_same("resources", request_id, resources_id, given.resources_id)
                return given
        created, version = (now, 1) if latest is None else (latest.create_time, latest.version + 1)
        update = ResourcesUpdate(resources_id, created, now, version, dict(resources))
        self.tables.add_resources(update, request_id)
        return update

    def _check_resources(self, resources: NamedResources) -> None:
        try:
            msgspec.convert(resources, type=NamedResources)
        except msgspec.ValidationError as error:
            raise InvalidInputError(
                f"resources must be a dict of names to LLM, ProxyLLM or PromptTemplate: {error}"
            ) from None
        if not self.keeps_secrets:
            check_no_secrets(resources)

    def update_worker(
        self,
        worker_id: str,
        heartbeat_stats: dict[str, Any] | None = None,
        attempt_ids: Sequence[str] | None = None,
    ) -> WorkerHeartbeat:
        check_id("worker_id", worker_id)
        if isinstance(attempt_ids, str):
            raise InvalidInputError(f"attempt_ids is {attempt_ids!r}: pass a list of ids or None")
        in_hand = None if attempt_ids is None else frozenset(attempt_ids)
        now = self.clock()
        stats = _checked_metadata(heartbeat_stats)
        self.tables.drop(self.tables.pack(stats, "heartbeat_stats"))  # only checked: it is kept with the worker
        for row, attempt in self.tables.open_attempts(worker_id):
            if in_hand is None or attempt.attempt_id in in_hand:
                attempt.last_heartbeat_time = now
                attempt.deadline = deadline_of(row, attempt, self.clock)
                self._save(attempt)
            elif row.config.unresponsive_seconds is None and still_counts(row, attempt):
                unnamed_until = now + UNNAMED_SECONDS
                if attempt.deadline is None or attempt.deadline > unnamed_until:
                    attempt.deadline = unnamed_until
                    self._save(attempt)
        worker = self.tables.save_heartbeat(worker_id, now, stats)
        return WorkerHeartbeat(**msgspec.structs.asdict(worker), unwanted_attempts=self.tables.unwanted(worker_id))

    def prune(self, older_than: float) -> int:
        check_seconds("older_than", older_than)
        return self.tables.delete_finished_before(self.clock() - older_than)


def _take_reward(row: RolloutRow, spans: Sequence[Span]) -> None:
    """The reward with the highest number is the rollout's own, in whatever order spans arrive."""
    for span in spans:
        if PRIMARY_REWARD_VALUE in span.attributes and span.sequence_id > row.reward_span:
            row.reward, row.reward_span = float(span.attributes[PRIMARY_REWARD_VALUE]), span.sequence_id


def _body_changes(input: Any, mode: Any, config: Any, metadata: Any) -> dict[str, Any]:
    if mode is not UNSET and mode is not None:
        check_choice("mode", mode, ROLLOUT_MODES)
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
        raise InvalidInputError(f"config is {config!r}: pass a RolloutConfig")
    return config


def _checked_metadata(metadata: dict[str, Any] | None) -> dict[str, Any] | None:
    if metadata is not None and not isinstance(metadata, dict):
        raise InvalidInputError(f"metadata is {metadata!r}: pass a dict or None")
    return metadata


def _check_same(kind: str, request_id: str, wanted: str, given: str) -> None:
    if wanted != given:
        raise InvalidInputError(
            f"request_id {request_id!r} was already used for the {kind} {given!r}: use a new one for {wanted!r}"
        )


def _check_worker(worker_id: str | None) -> None:
    if worker_id is not None:
        check_id("worker_id", worker_id)
