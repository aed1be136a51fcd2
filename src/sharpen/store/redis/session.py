"""A writer: it runs methods of the ledger on what it has read, and has Redis apply all of their changes or none.

Two trips, whatever the number of methods: one for what they will ask, one for what they changed. Where others were
faster, everything is read and run again. A change carries the writer's name and a number, and Redis remembers the last
number of every writer: a change whose answer was lost can be sent again without being applied twice.
"""

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import StoreError, StoreUnavailableError, StoreWriteError
from ..jobs import Job
from ..lifecycle import Events
from ..rules import StoreRules
from .bodies import ChangedMeanwhileError
from .connection import Connection
from .scripts import COMMIT, ROWS, WORKER
from .tables import RedisTables
from .texts import is_text

log = logging.getLogger(__name__)

LONGEST_PAUSE = 0.02  # between two tries, where others were faster
HELD_SECONDS, HELD_PAUSE = 0.1, 0.003  # far longer than others hold anything, unless they are dead
MOST_CLAIMS = 1_000_000
CLAIM = "dequeue_many_rollouts"
_ONE_ROLLOUT = frozenset({"complete_attempt", "update_attempt", "start_attempt", "update_rollout"})


class Session:
    """One writer. It is used by one thread at a time."""

    def __init__(
        self, connection: Connection, tables: RedisTables, make_ledger: Callable[[RedisTables], StoreRules]
    ) -> None:
        self._connection, self._tables = connection, tables
        self._ledger = make_ledger(tables)
        self._number = 0
        self._is_applied = False

    def transact(self, jobs: Sequence[Job]) -> Events:
        """Run all jobs. One that fails is undone alone; others keep their effect."""
        events, end = self._together_or_alone(jobs), time.monotonic() + HELD_SECONDS
        while (hungry := self._hungry(jobs)) and time.monotonic() < end:
            time.sleep(HELD_PAUSE)
            try:
                later = self._together_or_alone(hungry)
            except StoreWriteError as error:  # what the others did stands
                for job in hungry:
                    job.error = error
                return events
            events.deadline = min(events.deadline, later.deadline)
        return events

    def _together_or_alone(self, jobs: Sequence[Job]) -> Events:
        """All jobs in one change; where one cannot be asked or packed, each in its own, so that it fails alone."""
        try:
            return self._until_applied(jobs)
        except (StoreError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - whoever waits has to hear of it
            if len(jobs) == 1:
                jobs[0].error = error
                return Events()
        parts = [self._together_or_alone([job]) for job in jobs]
        return Events(deadline=min((part.deadline for part in parts), default=math.inf))

    def _hungry(self, jobs: Sequence[Job]) -> list[Job]:
        """Claims that got nothing only because others are about to claim, or to give back, what is there."""
        if not self._tables.is_head_held:
            return []
        return [job for job in jobs if job.name == CLAIM and not job.result and job.error is None]

    def _until_applied(self, jobs: Sequence[Job]) -> Events:
        end, tries = time.monotonic() + self._connection.busy_seconds, 0
        while True:
            try:
                if self._try(jobs):
                    return self._ledger.take_events()
            except StoreUnavailableError as error:
                raise StoreWriteError(str(error)) from error
            finally:
                self._tables.forget()
                if not self._is_applied:
                    self._ledger.take_events()
            if time.monotonic() > end:
                raise StoreWriteError(f"gave up after {tries + 1} conflicting transactions: try again later")
            tries += 1
            time.sleep(random.uniform(0, min(LONGEST_PAUSE, 0.001 * tries)))

    def _try(self, jobs: Sequence[Job]) -> bool:
        """Whether it worked: False where others were faster."""
        self._is_applied = self._tables.is_head_held = False
        try:
            _read_ahead(self._tables, jobs)
            for job in jobs:
                self._run(job, has_others=len(jobs) > 1)
            events = self._ledger.events
            change = self._tables.take_change(events.queued, events.finished)
            self._is_applied = change is None or self._apply(change)
        except ChangedMeanwhileError:
            log.debug("a value changed while it was used; retrying")
        except StoreError:
            raise
        except Exception:
            self._let_go()  # for the jobs that are now tried one by one
            raise
        self._let_go()
        return self._is_applied

    def _let_go(self) -> None:
        try:
            self._tables.release(is_written=self._is_applied)
        except StoreError as error:
            log.info("locked rollouts will be released after a short delay: %s", error)

    def _apply(self, change: bytes) -> bool:
        self._number += 1
        answer: bytes = self._connection.run(COMMIT, self._tables.writer, self._number, change)
        return answer == b"DONE"

    def _run(self, job: Job, *, has_others: bool) -> None:
        """A refused request is the job's own answer; a failing server is everybody's."""
        job.result = job.error = None
        if job.is_given_up():
            return
        tables, events = self._tables, self._ledger.events
        mark = events.mark()
        tables.begin(has_others=has_others)
        try:
            job.result = getattr(self._ledger, job.name)(*job.args, **job.kwargs)
        except (StoreError, ChangedMeanwhileError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a request raises is its own answer
            job.error = error
            tables.undo()
            events.back_to(mark)


def _read_ahead(tables: RedisTables, jobs: Sequence[Job]) -> None:
    """What the jobs will ask for, in one trip."""
    wanted = _Wanted()
    for job in jobs:
        if not job.is_given_up():
            wanted.add(job)
    calls, see = list[tuple[Any, ...]](), list[Callable[[Any], Any]]()
    connection = tables.connection
    if wanted.claims:  # seen first: what is held has to be known before anything else can go wrong
        calls.append(tables.take_call("queued", "+inf", wanted.claims))
        see.append(tables.see_head)
    if wanted.rollouts:
        names = list(wanted.rollouts)
        calls.append(connection.script(ROWS, *names))
        see.append(lambda answer: tables.see_rows(names, answer))
    for attempt_id, span_ids in wanted.spans.items():
        calls.append(("HMGET", connection.key(f"spans:{attempt_id}"), *span_ids))
        see.append(lambda answer, name=attempt_id, ids=span_ids: tables.see_spans(name, ids, answer))  # type: ignore[misc]
    for request_id in wanted.requests:
        calls.append(tables.request_call(request_id))
        see.append(lambda answer, name=request_id: tables.see_request(name, answer))  # type: ignore[misc]
    for worker_id in wanted.workers:
        calls.append(connection.script(WORKER, worker_id))
        see.append(lambda answer, name=worker_id: tables.see_worker(name, answer))  # type: ignore[misc]
    if wanted.needs_resources:
        calls.append(("LLEN", connection.key("published")))
        see.append(tables.see_published)
    if calls:
        for look, answer in zip(see, connection.at_once(*calls), strict=True):
            look(answer)


class _Wanted:
    """The names of what some jobs will ask for."""

    def __init__(self) -> None:
        self.rollouts: dict[str, None] = {}
        self.spans: dict[str, list[str]] = {}
        self.requests: dict[str, None] = {}
        self.workers: dict[str, None] = {}
        self.claims = 0
        self.needs_resources = False

    def add(self, job: Job) -> None:
        try:
            self._add(job)
        except (TypeError, ValueError, AttributeError):
            return  # something that the method itself will refuse in words

    def _add(self, job: Job) -> None:
        given: Any = job.args[0] if job.args else None
        if job.name in _ONE_ROLLOUT:
            self._rollout(job.kwargs.get("rollout_id", given))
            self._spans(job.kwargs.get("spans", ()))
        elif job.name == "add_many_spans":
            self._spans(job.kwargs.get("spans", given))
        elif job.name == CLAIM:
            self._claim(job.kwargs.get("limit", 1), job.kwargs.get("request_id"))
        elif job.name == "update_worker":
            worker_id = job.kwargs.get("worker_id", given)
            if is_text(worker_id):
                self.workers[worker_id] = None
        elif job.name == "enqueue_many_rollouts":
            self.needs_resources = True
            for request in job.kwargs.get("requests", given):
                self._rollout(request.rollout_id)
        elif job.name == "cancel_rollouts":
            for rollout_id in job.kwargs.get("rollout_ids", given):
                self._rollout(rollout_id)
        elif job.name == "get_many_span_sequence_ids":
            for rollout_id, _ in job.kwargs.get("pairs", given):
                self._rollout(rollout_id)

    def _rollout(self, rollout_id: Any) -> None:
        if is_text(rollout_id):
            self.rollouts[rollout_id] = None

    def _spans(self, spans: Any) -> None:
        for span in spans:
            self._rollout(span.rollout_id)
            if is_text(span.attempt_id) and is_text(span.span_id):
                self.spans.setdefault(span.attempt_id, []).append(span.span_id)

    def _claim(self, limit: Any, request_id: Any) -> None:
        if request_id in self.requests:
            return  # both get the same
        if isinstance(limit, int | float) and limit > 0:
            self.claims += int(min(limit, MOST_CLAIMS))
        if is_text(request_id):
            self.requests[request_id] = None
