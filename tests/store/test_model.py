"""Random calls against a store and against a model in plain objects: they must agree after every call.

Whatever the model predicts, the store must show; whatever the store once called final must stay.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from sharpen.errors import FinishedError
from sharpen.semconv import PRIMARY_REWARD_VALUE
from sharpen.store import InMemoryLightningStore
from sharpen.types import RolloutConfig, Span
from tests.store.internals import LocalStore

from .databases import Database, in_file, in_server
from .model import CONFIGS, ENDED, FINISHED, OPEN, QUEUED, ModelAttempt, ModelRollout
from .worlds import Clock

T = TypeVar("T")

QUICK = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
LONG = settings(QUICK, max_examples=150, stateful_step_count=60)
IN_SERVERS = settings(QUICK, max_examples=20, stateful_step_count=30)


class StoreMachine(RuleBasedStateMachine):
    """Any sequence of calls, with time going forward and back."""

    can_reopen = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="sharpen-model-"))
        self.clock = Clock()
        self.stores = self.open_stores()
        self.turn = 0
        self.rollouts: dict[str, ModelRollout] = {}
        self.claims: dict[str, list[str]] = {}
        self.spent_requests: set[str] = set()
        self.finished: list[str] = []
        self.ended: dict[str, Any] = {}

    def open_stores(self) -> list[LocalStore]:
        return [InMemoryLightningStore(clock=self.clock)]

    @property
    def store(self) -> LocalStore:
        """Any of the stores, which must all show the same: another one for every call."""
        self.turn += 1
        return self.stores[self.turn % len(self.stores)]

    def close_stores(self) -> None:
        for store in self.stores:
            self.run(store.close())

    def run(self, answer: Awaitable[T]) -> T:
        return self.loop.run_until_complete(answer)

    def teardown(self) -> None:
        try:
            self.the_queue_gives_out_exactly_what_waits_in_it()
        finally:
            self.close_stores()
            self.loop.close()
            shutil.rmtree(self.folder)

    def the_queue_gives_out_exactly_what_waits_in_it(self) -> None:
        waiting = {rollout.rollout_id for rollout in self.rollouts.values() if rollout.status in QUEUED}
        drained = []
        while claimed := self.run(self.store.dequeue_rollout()):
            drained.append(claimed.rollout_id)
        assert sorted(drained) == sorted(waiting)

    def settle(self) -> None:
        """Apply what is due, as the watchdog would at any moment."""
        self.store.expire()
        for rollout in self.rollouts.values():
            rollout.expire(self.clock.now)
        at_work = self.open_attempts()
        self.spent_requests |= {request for request, given in self.claims.items() if not set(given) <= at_work}

    def pick_rollout(self, index: int) -> ModelRollout:
        return list(self.rollouts.values())[index % len(self.rollouts)]

    def pick_attempt(self, index: int) -> tuple[ModelRollout, ModelAttempt]:
        pairs = [(rollout, attempt) for rollout in self.rollouts.values() for attempt in rollout.attempts]
        return pairs[index % len(pairs)]

    def open_attempts(self) -> set[str]:
        """The latest attempts that are at work."""
        latest = [rollout.attempts[-1] for rollout in self.rollouts.values() if rollout.attempts]
        return {attempt.attempt_id for attempt in latest if attempt.status in OPEN}

    def has_rollouts(self) -> bool:
        return bool(self.rollouts)

    def has_attempts(self) -> bool:
        return any(rollout.attempts for rollout in self.rollouts.values())

    # -- calls ---------------------------------------------------------------------------------------

    @rule(name=st.none() | st.integers(0, 5), config=st.sampled_from(CONFIGS))
    def enqueue(self, name: int | None, config: RolloutConfig) -> None:
        given = None if name is None else f"ro-{name}"
        rollout = self.run(self.store.enqueue_rollout("task", config=config, rollout_id=given))
        if given not in self.rollouts:
            assert given in (None, rollout.rollout_id)
            assert rollout.status == "queuing"
            self.rollouts[rollout.rollout_id] = ModelRollout(rollout.rollout_id, config)
        self.settle()

    @rule(
        worker_id=st.sampled_from([None, "w-1", "w-2"]),
        limit=st.integers(1, 3),
        request_id=st.sampled_from([None, None, "req-1", "req-2"]),
    )
    def claim(self, worker_id: str | None, limit: int, request_id: str | None) -> None:
        if request_id in self.spent_requests:
            return
        known = self.claims.get(request_id or "")
        answer = self.run(self.store.dequeue_many_rollouts(limit=limit, worker_id=worker_id, request_id=request_id))
        given = [claimed.attempt.attempt_id for claimed in answer]
        if known is not None:
            assert given == known
            return
        waiting = [rollout for rollout in self.rollouts.values() if rollout.status in QUEUED]
        assert len(answer) == min(limit, len(waiting))
        never_claimed = [rollout.rollout_id for rollout in waiting if not rollout.was_requeued]
        fresh = [claimed.rollout_id for claimed in answer if claimed.rollout_id in never_claimed]
        assert fresh == never_claimed[: len(fresh)]
        for claimed in answer:
            rollout = self.rollouts[claimed.rollout_id]
            assert rollout.status in QUEUED
            rollout.open_attempt(claimed.attempt.attempt_id, worker_id, self.clock.now)
            assert claimed.attempt.sequence_id == len(rollout.attempts)
        if request_id is not None and given:
            self.claims[request_id] = given
        self.settle()

    @precondition(has_rollouts)
    @rule(index=st.integers(0, 50), worker_id=st.sampled_from([None, "w-1"]))
    def start_attempt(self, index: int, worker_id: str | None) -> None:
        rollout = self.pick_rollout(index)
        if rollout.status in FINISHED:
            with pytest.raises(FinishedError):
                self.run(self.store.start_attempt(rollout.rollout_id, worker_id))
            return
        started = self.run(self.store.start_attempt(rollout.rollout_id, worker_id))
        rollout.open_attempt(started.attempt.attempt_id, worker_id, self.clock.now)
        assert started.attempt.sequence_id == len(rollout.attempts)
        self.settle()

    @precondition(has_attempts)
    @rule(
        index=st.integers(0, 50),
        sequence_id=st.sampled_from([0, 0, 0, 1, 7]),
        reward=st.sampled_from([None, None, 0.25, 0.75]),
    )
    def add_span(self, index: int, sequence_id: int, reward: float | None) -> None:
        rollout, attempt = self.pick_attempt(index)
        span = self.make_span(rollout, attempt, sequence_id, reward)
        expected = sequence_id or rollout.counter + 1
        stored = self.run(self.store.add_span(span))
        assert stored is not None
        assert stored.sequence_id == expected
        attempt.spans.append(span)
        rollout.store_span(attempt, stored, self.clock.now)
        self.settle()

    @precondition(has_attempts)
    @rule(index=st.integers(0, 50))
    def repeat_span(self, index: int) -> None:
        rollout, attempt = self.pick_attempt(index)
        if not attempt.spans:
            return
        assert self.run(self.store.add_span(attempt.spans[-1])) is None
        rollout.see_alive(attempt, self.clock.now)
        self.settle()

    @precondition(has_attempts)
    @rule(index=st.integers(0, 50))
    def take_number(self, index: int) -> None:
        rollout, attempt = self.pick_attempt(index)
        number = self.run(self.store.get_next_span_sequence_id(rollout.rollout_id, attempt.attempt_id))
        assert number == rollout.counter + 1
        rollout.counter = number

    @precondition(has_attempts)
    @rule(
        index=st.integers(0, 50),
        status=st.sampled_from(["succeeded", "failed", "timeout"]),
        reward=st.sampled_from([None, 0.0, 0.5]),
        with_span=st.booleans(),
        times=st.integers(1, 2),
    )
    def complete(self, index: int, status: str, reward: float | None, with_span: bool, times: int) -> None:
        rollout, attempt = self.pick_attempt(index)
        spans = [self.make_span(rollout, attempt, 0, None)] if with_span else []
        for _ in range(times):
            self.run(
                self.store.complete_attempt(
                    rollout.rollout_id, attempt.attempt_id, spans=spans, status=status, reward=reward
                )
            )
        if with_span:
            rollout.counter += 1
            rollout.see_alive(attempt, self.clock.now)
        counts = rollout.counts(attempt)
        if rollout.report(attempt, status, self.clock.now) and counts and rollout.status in FINISHED:
            rollout.has_outcome = True
            rollout.reward = reward if reward is not None else max(attempt.rewards, default=(0, None))[1]
        self.settle()

    @precondition(has_attempts)
    @rule(
        index=st.integers(0, 50),
        status=st.sampled_from(["preparing", "running", "succeeded", "failed", "unresponsive", "timeout"]),
    )
    def update_attempt(self, index: int, status: str) -> None:
        rollout, attempt = self.pick_attempt(index)
        self.run(self.store.update_attempt(rollout.rollout_id, attempt.attempt_id, status=status))
        rollout.report(attempt, status, self.clock.now)
        self.settle()

    @precondition(has_rollouts)
    @rule(index=st.integers(0, 50), status=st.sampled_from([*QUEUED, *FINISHED]))
    def update_rollout(self, index: int, status: str) -> None:
        rollout = self.pick_rollout(index)
        if rollout.status in FINISHED and status != rollout.status:
            with pytest.raises(FinishedError):
                self.run(self.store.update_rollout(rollout.rollout_id, status=status))
            return
        changed = self.run(self.store.update_rollout(rollout.rollout_id, status=status))
        assert changed.status == status
        if rollout.status != status:
            rollout.close_by_hand(status)
        self.settle()

    @precondition(has_rollouts)
    @rule(indexes=st.lists(st.integers(0, 50), min_size=1, max_size=3))
    def cancel(self, indexes: list[int]) -> None:
        picked = [self.pick_rollout(index) for index in indexes]
        self.run(self.store.cancel_rollouts([rollout.rollout_id for rollout in picked]))
        for rollout in picked:
            if rollout.status not in FINISHED:
                rollout.close_by_hand("cancelled")
        self.settle()

    @rule(worker_id=st.sampled_from(["w-1", "w-2"]))
    def heartbeat(self, worker_id: str) -> None:
        self.run(self.store.update_worker(worker_id))
        for rollout in self.rollouts.values():
            for attempt in rollout.attempts:
                if attempt.worker_id == worker_id and attempt.status in OPEN:
                    attempt.renewed = self.clock.now
        self.settle()

    @rule(halves=st.sampled_from([1, 9, 12, 19, 21, 22, 45, 100, -1, -15, -60]))
    def jump(self, halves: int) -> None:
        self.clock.advance(halves / 2)
        self.settle()

    @precondition(lambda self: self.can_reopen)
    @rule()
    def reopen(self) -> None:
        self.close_stores()
        self.stores = self.open_stores()

    def make_span(self, rollout: ModelRollout, attempt: ModelAttempt, sequence_id: int, reward: float | None) -> Span:
        return Span.from_attributes(
            attributes={} if reward is None else {PRIMARY_REWARD_VALUE: reward},
            rollout_id=rollout.rollout_id,
            attempt_id=attempt.attempt_id,
            sequence_id=sequence_id,
        )

    # -- what must hold after every call -------------------------------------------------------------

    @invariant()
    def no_rollout_is_lost_and_every_status_is_as_predicted(self) -> None:
        found = self.run(self.store.query_rollouts())
        expected = [(rollout.rollout_id, rollout.status) for rollout in self.rollouts.values()]
        assert [(rollout.rollout_id, rollout.status) for rollout in found] == expected
        for rollout in found:
            assert (rollout.end_time is not None) == rollout.is_finished
            model = self.rollouts[rollout.rollout_id]
            if model.has_outcome:
                assert rollout.reward == model.reward

    @invariant()
    def every_attempt_is_as_predicted_and_what_ended_stays(self) -> None:
        for rollout in self.rollouts.values():
            found = self.run(self.store.query_attempts(rollout.rollout_id))
            assert [attempt.attempt_id for attempt in found] == [a.attempt_id for a in rollout.attempts]
            if found:
                assert found[-1].status == rollout.attempts[-1].status
            for attempt in found:
                assert (attempt.end_time is None) == (attempt.status in OPEN)
                if attempt.status in ENDED:
                    first = self.ended.setdefault(attempt.attempt_id, (attempt.status, attempt.end_time))
                    assert (attempt.status, attempt.end_time) == first
                else:
                    assert attempt.attempt_id not in self.ended

    @invariant()
    def every_rollout_finishes_once_and_for_good(self) -> None:
        found = [rollout.rollout_id for rollout in self.run(self.store.finished_rollouts()).items]
        assert found[: len(self.finished)] == self.finished
        assert sorted(found) == sorted(r.rollout_id for r in self.rollouts.values() if r.status in FINISHED)
        self.finished = found

    @invariant()
    def the_queue_is_as_long_as_predicted(self) -> None:
        waiting = sum(rollout.status in QUEUED for rollout in self.rollouts.values())
        assert self.run(self.store.statistics())["queue_length"] == waiting


class DatabaseMachine(StoreMachine):
    """The same calls on a database, which is closed and opened again in between."""

    can_reopen = True
    n_stores = 1

    def __init__(self) -> None:
        self.database: Database | None = None
        super().__init__()

    def make_database(self) -> Database:
        return in_file(self.folder)

    def teardown(self) -> None:
        super().teardown()
        if self.database is not None:
            self.database.give_back()

    def open_stores(self) -> list[LocalStore]:
        self.database = self.database or self.make_database()
        return [self.database.open(clock=self.clock) for _ in range(self.n_stores)]


@pytest.mark.timeout(600)  # a failure is made small before it is shown, which takes a while
def test_the_memory_store_does_what_the_model_says():
    run_state_machine_as_test(StoreMachine, settings=QUICK)


@pytest.mark.timeout(600)
def test_the_sqlite_store_does_what_the_model_says():
    run_state_machine_as_test(DatabaseMachine, settings=QUICK)


@pytest.mark.servers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["postgres", "redis"])
def test_two_stores_in_one_database_do_what_the_model_says(request, kind):
    server = request.getfixturevalue(kind)

    class ServerMachine(DatabaseMachine):
        n_stores = 2

        def make_database(self) -> Database:
            return in_server(server)

    run_state_machine_as_test(ServerMachine, settings=IN_SERVERS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [StoreMachine, DatabaseMachine])
def test_the_stores_do_what_the_model_says_for_a_long_time(machine):
    run_state_machine_as_test(machine, settings=LONG)
