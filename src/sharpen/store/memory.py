"""The store in memory: for tests and throwaway work, and for tasks that are not JSON.

Its tables are dictionaries, with the indexes that keep every question cheap. Rows are kept as they are; the spans of a
finished rollout are kept encoded, at a fraction of their size.
"""

import heapq
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, islice
from typing import Any

import msgspec
from msgspec.structs import replace

from ..errors import InvalidInputError, SpansEvictedError, UnknownIdError
from ..types import (
    ROLLOUT_STATUSES,
    PaginatedResult,
    ResourcesUpdate,
    Rollout,
    RolloutPage,
    RolloutStatus,
    Span,
    Worker,
    WorkerStatus,
)
from .base import FilterLogic, LightningStoreCapabilities
from .local import LocalStore
from .rules import StoreRules
from .search import Found, RolloutSearch, RowScan, body_text, find_page
from .tables import (
    AttemptRow,
    Counts,
    Match,
    Page,
    RolloutFilter,
    RolloutRow,
    newest_versions,
    paginate,
    public_rollout,
    select,
    select_workers,
)
from .transitions import FINISHED, OPEN, PHASES, QUEUED, phases_of

__all__ = ["InMemoryLightningStore"]  # `MemoryTables` is found at `sharpen.store`

SEARCH_SECONDS = 0.05  # a search holds up everyone else

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Span])


class InMemoryLightningStore(LocalStore):
    """A store in the memory of this process. A task can be any Python object; values are not copied.

    Args:
        thread_safe: Whether the store can be used from several threads.
        max_span_bytes: The memory for spans; beyond it, the spans of the oldest finished rollouts are dropped.
        clock: The time in seconds since 1970.
    """

    def __init__(
        self,
        *,
        thread_safe: bool = True,
        max_span_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if max_span_bytes is not None and max_span_bytes < 0:
            raise InvalidInputError(f"max_span_bytes is {max_span_bytes}: use 0 or more bytes, or None for no limit")
        super().__init__(clock=clock)
        self._lock = threading.RLock() if thread_safe else nullcontext()
        self._thread_safe = thread_safe
        self._rules = StoreRules(
            MemoryTables(max_span_bytes), clock=self._clock, name="InMemoryLightningStore", keeps_secrets=True
        )

    async def _read(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return getattr(self._rules, name)(*args, **kwargs)

    async def _write(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        return self._write_now(name, *args, **kwargs)

    def _write_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        rules = self._rules
        with self._lock:
            try:
                return getattr(rules, name)(*args, **kwargs)
            finally:
                if not rules.events.is_empty():
                    self._announce(rules.take_events())

    def _next_deadline(self) -> float | None:
        with self._lock:
            return self._rules.next_deadline()

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return {"thread_safe": self._thread_safe, "async_safe": True, "zero_copy": True, "otlp_traces": False}


class _Kept(RolloutRow):
    """A rollout with everything that belongs to it."""

    tries: list["_Try"] = []
    place: int = 0
    """Its ticket in the queue; 0 when it is not in it."""
    finish: int = 0
    """Its number in the order of finishing; 0 while it has not finished."""


class _Try(AttemptRow):
    """An attempt with its spans: by id while it runs, encoded once its rollout has finished."""

    spans: dict[str, Span] | None = None
    packed: bytes | None = None
    evicted: int = 0
    holder: str | None = None
    """The worker under whose open attempts it stands."""
    watched: float | None = None
    """The deadline under which it stands among the deadlines."""


class _Registers:
    """Resources in the order of their publication, and workers with what they have in hand."""

    def __init__(self) -> None:
        self._resources: dict[str, list[ResourcesUpdate]] = {}
        self._published: list[ResourcesUpdate] = []
        self._resources_requests: dict[str, ResourcesUpdate] = {}
        self._workers: dict[str, Worker] = {}

    def _in_hand(self, worker_id: str) -> AttemptRow | None:
        """The open attempt that a worker took last."""
        raise NotImplementedError

    # -- resources -----------------------------------------------------------------------------------

    def add_resources(self, update: ResourcesUpdate, request_id: str | None) -> None:
        self._resources.setdefault(update.resources_id, []).append(update)
        self._published.append(update)
        if request_id is not None:
            self._resources_requests[request_id] = update

    def resources(self, resources_id: str, version: int | None) -> ResourcesUpdate | None:
        versions = self._resources.get(resources_id, [])
        if version is None:
            return versions[-1] if versions else None
        return versions[version - 1] if 1 <= version <= len(versions) else None

    def resources_version(self, resources_id: str | None) -> tuple[str, int] | None:
        found = self.latest_resources() if resources_id is None else self.resources(resources_id, None)
        return None if found is None else (found.resources_id, found.version)

    def resources_by_request(self, request_id: str) -> ResourcesUpdate | None:
        return self._resources_requests.get(request_id)

    def latest_resources(self) -> ResourcesUpdate | None:
        return self._published[-1] if self._published else None

    def all_resources(
        self, matches: list[Match], logic: FilterLogic, page: Page, *, all_versions: bool
    ) -> PaginatedResult[ResourcesUpdate]:
        published = self._published if all_versions else newest_versions(self._published)
        return paginate(select(published, matches, logic), page)

    # -- workers -------------------------------------------------------------------------------------

    def worker(self, worker_id: str) -> Worker | None:
        return self._workers.get(worker_id)

    def _known_worker(self, worker_id: str) -> Worker:
        return self._workers.get(worker_id) or Worker(worker_id)

    def save_heartbeat(self, worker_id: str, now: float, stats: dict[str, Any] | None) -> Worker:
        worker = self._known_worker(worker_id)
        status: WorkerStatus = "idle" if self._in_hand(worker_id) is None else "busy"
        idle = now if status == "idle" and worker.status == "unknown" else worker.last_idle_time
        worker = replace(worker, status=status, heartbeat_stats=stats, last_heartbeat_time=now, last_idle_time=idle)
        self._workers[worker_id] = worker
        return worker

    def mark_busy(self, worker_id: str, attempt: AttemptRow, now: float) -> None:
        known = self._known_worker(worker_id)
        self._workers[worker_id] = Worker(
            worker_id,
            "busy",
            known.heartbeat_stats,
            known.last_heartbeat_time,
            now,
            now,
            known.last_idle_time,
            attempt.rollout_id,
            attempt.attempt_id,
        )

    def mark_idle(self, worker_id: str, now: float) -> None:
        known = self._known_worker(worker_id)
        last = self._in_hand(worker_id)
        if last is not None:
            self._workers[worker_id] = replace(
                known, current_rollout_id=last.rollout_id, current_attempt_id=last.attempt_id
            )
            return
        self._workers[worker_id] = Worker(
            worker_id,
            "idle",
            known.heartbeat_stats,
            known.last_heartbeat_time,
            known.last_dequeue_time,
            known.last_busy_time,
            now,
        )

    def workers(
        self, status_in: frozenset[WorkerStatus] | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Worker]:
        return paginate(select_workers(list(self._workers.values()), status_in, matches, logic), page)


class MemoryTables(_Registers):
    """The tables of the memory store: rollouts, attempts and spans."""

    rollout_row = _Kept
    attempt_row = _Try

    def __init__(self, max_span_bytes: int | None = None) -> None:
        super().__init__()
        self.max_span_bytes = max_span_bytes
        self._rollouts: dict[str, _Kept] = {}
        self._by_number: dict[int, _Kept] = {}
        self._by_phase: dict[str, OrderedDict[int, _Kept]] = {phase: OrderedDict() for phase in PHASES.values()}
        self._by_status: dict[str, int] = dict.fromkeys(ROLLOUT_STATUSES, 0)
        self._queue: deque[tuple[int, _Kept]] = deque()
        self._next_number = self._next_place = self._finish_number = 0
        self._finished: dict[int, _Kept] = {}
        self._first_finished = 1
        self._requests: dict[str, list[_Try]] = {}
        self._open: dict[str, dict[str, _Try]] = {}
        self._unwanted: dict[str, dict[str, None]] = {}
        self._deadlines: list[tuple[float, str, int]] = []
        self._packed_order: deque[_Try] = deque()
        self._attempt_count = self._span_count = self._span_bytes = 0

    # -- rollouts ------------------------------------------------------------------------------------

    def rollout(self, rollout_id: str) -> _Kept | None:
        return self._rollouts.get(rollout_id)

    def add_rollouts(self, rows: list[RolloutRow]) -> None:
        for row in rows:
            assert isinstance(row, _Kept)
            self._next_number += 1
            row.number = self._next_number
            row.tries = []
            self._rollouts[row.rollout_id] = self._by_number[row.number] = row
            self._by_phase[PHASES[row.status]][row.number] = row
            self._by_status[row.status] += 1
            if row.status in QUEUED:
                self._enter_queue(row)

    def _enter_queue(self, row: _Kept) -> None:
        self._next_place += 1
        row.place = self._next_place
        self._queue.append((row.place, row))

    def save_rollout(self, row: RolloutRow, old_status: RolloutStatus) -> None:
        status = row.status
        if status == old_status:
            return
        assert isinstance(row, _Kept)
        self._by_status[old_status] -= 1
        self._by_status[status] += 1
        old_phase, phase = PHASES[old_status], PHASES[status]
        if phase != old_phase:
            del self._by_phase[old_phase][row.number]
            self._by_phase[phase][row.number] = row
        if status in QUEUED:
            if old_status not in QUEUED:
                self._enter_queue(row)
        else:
            row.place = 0
        if status in FINISHED:
            self._finish_number += 1
            self._finished[self._finish_number] = row
            row.finish = self._finish_number
            for attempt in row.tries:
                self._pack_spans(attempt)

    def save_body(self, row: RolloutRow) -> None:
        """Rows are kept as they are, so a changed body is kept already."""

    def queue_length(self) -> int:
        return len(self._by_phase["queued"])

    def queue_head(self, limit: int) -> list[RolloutRow]:
        """The oldest in the queue; tickets of rollouts that have left it since are thrown away on the way."""
        found: list[RolloutRow] = []
        while self._queue and len(found) < limit:
            place, row = self._queue.popleft()
            if row.place == place:
                found.append(row)
        return found

    def delete_finished_before(self, time: float) -> int:
        gone = 0
        for number in range(self._first_finished, self._finish_number + 1):
            row = self._finished.get(number)
            if row is not None and (row.end_time or 0) < time:
                self._delete(row)
                del self._finished[number]
                gone += 1
        while self._first_finished <= self._finish_number and self._first_finished not in self._finished:
            self._first_finished += 1
        return gone

    def _delete(self, row: _Kept) -> None:
        del self._rollouts[row.rollout_id], self._by_number[row.number]
        del self._by_phase[PHASES[row.status]][row.number]
        self._by_status[row.status] -= 1
        for attempt in row.tries:
            self._attempt_count -= 1
            self._span_count -= len(self._all_spans(attempt)) if not attempt.evicted else 0
            self._span_bytes -= len(attempt.packed or b"")
            attempt.packed, attempt.spans = None, None
            self._forget(attempt)

    def _forget(self, attempt: _Try) -> None:
        if attempt.holder is not None:
            del self._open[attempt.holder][attempt.attempt_id]
        if attempt.worker_id is not None:
            self._unwanted.get(attempt.worker_id, {}).pop(attempt.attempt_id, None)
        if attempt.request_id is not None:
            claimed = self._requests[attempt.request_id]
            claimed.remove(attempt)
            if not claimed:
                del self._requests[attempt.request_id]

    def rollouts(self, wanted: RolloutFilter, page: Page) -> PaginatedResult[Rollout]:
        if page.sort_by is None and wanted.status_in is not None and wanted.logic == "and":
            return self._page_by_status(wanted, page)
        found = [row for row in self._candidates(wanted) if wanted.fits(row)]
        cut: PaginatedResult[_Kept] = paginate(found, page)
        return PaginatedResult([_with_latest(row) for row in cut.items], cut.limit, cut.offset, cut.total)

    def _page_by_status(self, wanted: RolloutFilter, page: Page) -> PaginatedResult[Rollout]:
        """Phase after phase, each in the order of arrival: pages by status touch only what they give back."""
        reverse = page.sort_order == "desc"
        statuses = wanted.status_in or frozenset()
        indexes = [self._by_phase[phase] for phase in phases_of(statuses, reverse=reverse)]
        ways = (reversed(index.values()) if reverse else index.values() for index in indexes)
        rows: Iterator[_Kept] = (row for row in chain.from_iterable(ways) if row.status in statuses)
        total = sum(self._by_status[status] for status in statuses)
        if not wanted.asks_only_status:
            matching = [row for row in rows if wanted.fits(row)]
            rows, total = iter(matching), len(matching)
        chosen = islice(rows, page.offset, None if page.limit < 0 else page.offset + page.limit)
        return PaginatedResult([_with_latest(row) for row in chosen], page.limit, page.offset, total)

    def _candidates(self, wanted: RolloutFilter) -> list[_Kept]:
        if wanted.rollout_id_in is not None and wanted.logic == "and":
            rows = (self._rollouts.get(rollout_id) for rollout_id in wanted.rollout_id_in)
            return sorted((row for row in rows if row is not None), key=lambda row: row.number)
        return list(self._by_number.values())

    def search(self, search: RolloutSearch, same_input_as: RolloutRow | None) -> RolloutPage:
        wanted = None if same_input_as is None else body_text(same_input_as.input)
        total = None
        if search.is_plain:
            total = sum(n for s, n in self._by_status.items() if search.status_in is None or s in search.status_in)
        scan = RowScan(search, list(self._by_number.values()), _found, wanted, total=total)
        return find_page(scan, search, lambda found: _public(found.row), seconds=SEARCH_SECONDS)

    def finished(self, after: int, limit: int) -> list[tuple[int, Rollout]]:
        found = []
        for number in range(max(after + 1, self._first_finished), self._finish_number + 1):
            row = self._finished.get(number)
            if row is not None:
                found.append((number, _public(row)))
                if len(found) == limit:
                    break
        return found

    def unfinished(self, rollout_ids: Sequence[str]) -> list[str]:
        left = []
        for rollout_id in rollout_ids:
            row = self._rollouts.get(rollout_id)
            if row is None:
                raise UnknownIdError(f"rollout {rollout_id!r} does not exist")
            if row.status not in FINISHED:
                left.append(rollout_id)
        return left

    # -- attempts ------------------------------------------------------------------------------------

    def attempt(self, rollout: RolloutRow, attempt_id: str) -> _Try | None:
        assert isinstance(rollout, _Kept)
        for attempt in reversed(rollout.tries):
            if attempt.attempt_id == attempt_id:
                return attempt
        return None

    def latest_attempt(self, rollout: RolloutRow) -> _Try | None:
        assert isinstance(rollout, _Kept)
        return rollout.tries[-1] if rollout.tries else None

    def attempts(self, rollout: RolloutRow) -> list[AttemptRow]:
        assert isinstance(rollout, _Kept)
        return list(rollout.tries)

    def add_attempt(self, row: AttemptRow) -> None:
        assert isinstance(row, _Try)
        self._rollouts[row.rollout_id].tries.append(row)
        self._attempt_count += 1
        if row.request_id is not None:
            self._requests.setdefault(row.request_id, []).append(row)
        self.save_attempt(row)

    def save_attempt(self, row: AttemptRow) -> None:
        assert isinstance(row, _Try)
        # One entry an attempt: a deadline that moved on is looked up again when the old one is reached.
        if row.deadline is not None and (row.watched is None or row.deadline < row.watched):
            self._watch(row, row.deadline)
        self._index_by_worker(row, row.worker_id or "")

    def _index_by_worker(self, row: _Try, worker_id: str) -> None:
        holder = worker_id if row.status in OPEN else None
        if holder != row.holder:
            if row.holder is not None:
                del self._open[row.holder][row.attempt_id]
            if holder is not None:
                self._open.setdefault(holder, {})[row.attempt_id] = row
            row.holder = holder
        if row.unwanted:
            self._unwanted.setdefault(worker_id, {})[row.attempt_id] = None
        elif worker_id in self._unwanted:
            self._unwanted[worker_id].pop(row.attempt_id, None)

    def claimed(self, request_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        return [(self._rollouts[a.rollout_id], a) for a in self._requests.get(request_id, [])]

    def open_attempts(self, worker_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        held = [(self._rollouts[a.rollout_id], a) for a in self._open.get(worker_id, {}).values()]
        return [(row, attempt) for row, attempt in held if attempt is row.tries[-1]]

    def _in_hand(self, worker_id: str) -> AttemptRow | None:
        found = self._open.get(worker_id)
        return next(reversed(found.values())) if found else None

    def unwanted(self, worker_id: str) -> list[str]:
        return list(self._unwanted.get(worker_id, {}))

    def _watch(self, row: _Try, deadline: float) -> None:
        row.watched = deadline
        heapq.heappush(self._deadlines, (deadline, row.rollout_id, row.sequence_id))

    def due(self, now: float) -> list[tuple[RolloutRow, AttemptRow]]:
        found: list[tuple[RolloutRow, AttemptRow]] = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            _, rollout_id, sequence_id = heapq.heappop(self._deadlines)
            row = self._rollouts[rollout_id]
            row.tries[sequence_id - 1].watched = None
            found.append((row, row.tries[sequence_id - 1]))
        return found

    def next_deadline(self) -> float | None:
        """The nearest deadline that still holds; outdated entries are put right on the way."""
        while self._deadlines:
            entry, rollout_id, sequence_id = self._deadlines[0]
            row = self._rollouts.get(rollout_id)
            attempt = row.tries[sequence_id - 1] if row is not None else None
            if attempt is not None and attempt.watched == entry == attempt.deadline:
                return entry
            heapq.heappop(self._deadlines)
            if attempt is not None and attempt.watched == entry:
                attempt.watched = None
                if attempt.deadline is not None:
                    self._watch(attempt, attempt.deadline)
        return None

    # -- spans ---------------------------------------------------------------------------------------

    def missing_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: Sequence[Span]) -> list[bool]:
        assert isinstance(attempt, _Try)
        if attempt.evicted:
            return [False] * len(spans)
        known = self._all_spans(attempt) if attempt.packed else attempt.spans or {}
        return [span.span_id not in known for span in spans]

    def add_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: list[Span]) -> None:
        assert isinstance(attempt, _Try)
        if attempt.packed:
            attempt.spans = self._all_spans(attempt)
            self._span_bytes -= len(attempt.packed)
            attempt.packed = None
        if attempt.spans is None:
            attempt.spans = {}
        for span in spans:
            attempt.spans[span.span_id] = span
        self._span_count += len(spans)
        if rollout.status in FINISHED:
            self._pack_spans(attempt)

    def _all_spans(self, attempt: _Try) -> dict[str, Span]:
        kept = {span.span_id: span for span in _decoder.decode(attempt.packed)} if attempt.packed else {}
        return kept | (attempt.spans or {})

    def _pack_spans(self, attempt: _Try) -> None:
        """Keep the spans of a finished rollout encoded; drop the oldest ones past the bound."""
        if not attempt.spans:
            return
        try:
            attempt.packed = _encoder.encode(list(attempt.spans.values()))
        except (TypeError, OverflowError):  # an attribute that is not plain data stays as it is
            attempt.packed = None
            return
        attempt.spans = None
        self._span_bytes += len(attempt.packed)
        if self.max_span_bytes is not None:
            self._packed_order.append(attempt)
            while self._span_bytes > self.max_span_bytes and self._packed_order:
                self._evict(self._packed_order.popleft())

    def _evict(self, attempt: _Try) -> None:
        if attempt.packed is None or attempt.evicted:
            return
        attempt.evicted = len(self._all_spans(attempt))
        self._span_count -= attempt.evicted
        self._span_bytes -= len(attempt.packed)
        attempt.packed, attempt.spans = None, None

    def spans(
        self, rollout: RolloutRow, attempt: AttemptRow | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Span]:
        found: list[Span] = []
        for each in [attempt] if attempt is not None else self.attempts(rollout):
            assert isinstance(each, _Try)
            if each.evicted:
                raise SpansEvictedError(
                    f"the {each.evicted} spans of attempt {each.attempt_id!r} of rollout {rollout.rollout_id!r} were "
                    f"dropped to stay within max_span_bytes={self.max_span_bytes}: raise the limit or use SQLiteStore"
                )
            found += self._all_spans(each).values()
        return paginate(select(found, matches, logic), page)

    # -- the rest ------------------------------------------------------------------------------------

    def pack(self, value: Any, what: str) -> Any:
        return value

    def unpack(self, value: Any, what: str) -> Any:
        return value

    def drop(self, value: Any) -> None:
        """What nobody refers to goes by itself."""

    def counts(self) -> Counts:
        return Counts(
            dict(self._by_status),
            self._attempt_count,
            sum(row.tries[-1].status in OPEN for row in self._by_phase["active"].values() if row.tries),
            self._span_count,
            len(self._published),
            len(self._workers),
            self._span_bytes + self._open_span_bytes(),
        )

    def _open_span_bytes(self) -> int:
        """The spans of rollouts at work, as if they were packed; there are never many of these."""
        at_work = (attempt.spans for row in self._by_phase["active"].values() for attempt in row.tries)
        return sum(_size_of(list(spans.values())) for spans in at_work if spans)


def _size_of(spans: list[Span]) -> int:
    try:
        return len(_encoder.encode(spans))
    except (TypeError, OverflowError):  # an attribute that is not plain data
        return 0


def _found(row: _Kept) -> Found:
    return Found(row, row.number, row.finish, row.tries[-1].worker_id if row.tries else None)


def _public(row: RolloutRow) -> Rollout:
    return public_rollout(row, lambda value, _: value)


def _with_latest(row: _Kept) -> Rollout:
    return public_rollout(row, lambda value, _: value, row.tries[-1] if row.tries else None)
