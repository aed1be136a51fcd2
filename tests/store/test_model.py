"""Random calls against a store and against a model in plain objects: they must agree after every call.

The model knows the rules and nothing else: no queue, no index, no transaction. Whatever it predicts, the store
must show; whatever the store once called final must stay.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from sharpen.errors import FinishedError
from sharpen.semconv import PRIMARY_REWARD_VALUE
from sharpen.store import InMemoryLightningStore, SQLiteStore
from sharpen.types import RolloutConfig, Span

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

OPEN = ("preparing", "running")
ENDED = ("succeeded", "failed", "timeout")
QUEUED = ("queuing", "requeuing")
FINISHED = ("succeeded", "failed", "cancelled")

# Time moves in halves of a second, so that no deadline is ever met exactly.
LEASE = 10.25
CONFIGS = [
    RolloutConfig(),
    RolloutConfig(max_attempts=3, retry_condition=["failed"]),
    RolloutConfig(timeout_seconds=LEASE),
    RolloutConfig(timeout_seconds=LEASE, max_attempts=2, retry_condition=["timeout", "unresponsive"]),
    RolloutConfig(unresponsive_seconds=LEASE),
    RolloutConfig(unresponsive_seconds=LEASE, max_attempts=3, retry_condition=["unresponsive"]),
    RolloutConfig(unresponsive_seconds=LEASE, max_attempts=2, retry_condition=["failed", "timeout", "unresponsive"]),
]


@dataclass
class ModelAttempt:
    """What the rules need to know of an attempt."""

    attempt_id: str
    worker_id: str | None
    start: float
    renewed: float
    status: str = "preparing"
    give_up_at: float | None = None
    rewards: list[tuple[int, float]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


@dataclass
class ModelRollout:
    """What the rules need to know of a rollout."""

    rollout_id: str
    config: RolloutConfig
    status: str = "queuing"
    was_requeued: bool = False
    counter: int = 0
    reward: float | None = None
    has_outcome: bool = False
    attempts: list[ModelAttempt] = field(default_factory=list)

    def counts(self, attempt: ModelAttempt) -> bool:
        """Only the latest attempt of an unfinished rollout moves it."""
        return self.status not in FINISHED and attempt is self.attempts[-1]

    def move(self, status: str) -> None:
        assert self.status not in FINISHED
        self.was_requeued |= status in QUEUED
        self.status = status

    def open_attempt(self, attempt_id: str, worker_id: str | None, now: float) -> None:
        self.attempts.append(ModelAttempt(attempt_id, worker_id, now, now))
        self.move("preparing")

    def is_retried(self, status: str) -> bool:
        return status in self.config.retry_condition and len(self.attempts) < self.config.max_attempts

    def end(self, attempt: ModelAttempt, status: str, now: float) -> None:
        counts = self.counts(attempt)
        attempt.status, attempt.give_up_at = status, None
        if not counts:
            return
        if status == "succeeded":
            self.move("succeeded")
        else:
            self.move("requeuing" if self.is_retried(status) else "failed")

    def suspend(self, attempt: ModelAttempt, now: float) -> None:
        counts = self.counts(attempt)
        attempt.status = "unresponsive"
        if not counts:
            return
        if self.is_retried("unresponsive"):
            self.move("requeuing")
        elif self.config.unresponsive_seconds is None:
            self.move("failed")
        else:
            attempt.give_up_at = now + self.config.unresponsive_seconds

    def go_on(self, attempt: ModelAttempt, status: str, now: float) -> None:
        if attempt.status == "unresponsive":
            attempt.renewed, attempt.give_up_at = now, None
        attempt.status = status
        if self.counts(attempt):
            self.move(status)

    def report(self, attempt: ModelAttempt, status: str, now: float) -> bool:
        """A status from outside; whether it was acted on."""
        is_lost = attempt.status == "unresponsive" and not self.counts(attempt)
        if attempt.status in ENDED or is_lost or attempt.status == status:
            return False
        if status in ENDED:
            self.end(attempt, status, now)
        elif status == "unresponsive":
            self.suspend(attempt, now)
        else:
            self.go_on(attempt, status, now)
        return True

    def store_span(self, attempt: ModelAttempt, span: Span, now: float) -> None:
        counts = self.counts(attempt)
        self.counter = max(self.counter, span.sequence_id)
        if PRIMARY_REWARD_VALUE in span.attributes and counts:
            attempt.rewards.append((span.sequence_id, span.attributes[PRIMARY_REWARD_VALUE]))
        self.see_alive(attempt, now)

    def see_alive(self, attempt: ModelAttempt, now: float) -> None:
        """A span arrived, stored before or not."""
        if attempt.status in OPEN or (attempt.status == "unresponsive" and self.counts(attempt)):
            attempt.renewed = now
            self.go_on(attempt, "running", now)

    def close_by_hand(self, status: str) -> None:
        """The open attempt ends with the rollout, or before it is queued again."""
        if self.attempts and self.attempts[-1].status in OPEN:
            self.attempts[-1].status = "succeeded" if status == "succeeded" else "failed"
        elif self.attempts:
            self.attempts[-1].give_up_at = None
        self.move(status)

    def expire(self, now: float) -> None:
        for attempt in self.attempts:
            if attempt.status in OPEN:
                timeout, lease = self.config.timeout_seconds, self.config.unresponsive_seconds
                if timeout is not None and attempt.start + timeout <= now:
                    self.end(attempt, "timeout", now)
                elif lease is not None and attempt.renewed + lease <= now:
                    self.suspend(attempt, now)
            elif attempt.give_up_at is not None and attempt.give_up_at <= now:
                attempt.give_up_at = None
                if self.counts(attempt):
                    self.move("failed")


class StoreMachine(RuleBasedStateMachine):
    """Any sequence of calls, with time going forward and back."""

    can_reopen = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="sharpen-model-"))
        self.clock = Clock()
        self.store = self.open_store()
        self.rollouts: dict[str, ModelRollout] = {}
        self.claims: dict[str, list[str]] = {}
        self.spent_requests: set[str] = set()
        self.finished: list[str] = []
        self.ended: dict[str, Any] = {}

    def open_store(self) -> InMemoryLightningStore | SQLiteStore:
        return InMemoryLightningStore(clock=self.clock)

    def run(self, answer: Awaitable[T]) -> T:
        return self.loop.run_until_complete(answer)

    def teardown(self) -> None:
        try:
            self.the_queue_gives_out_exactly_what_waits_in_it()
        finally:
            self.run(self.store.close())
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
        self.run(self.store.close())
        self.store = self.open_store()

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


class SQLiteMachine(StoreMachine):
    """The same calls on a file, which is closed and opened again in between."""

    can_reopen = True

    def open_store(self) -> SQLiteStore:
        return SQLiteStore(self.folder / "store.db", clock=self.clock)


@pytest.mark.timeout(600)  # a failure is made small before it is shown, which takes a while
def test_the_memory_store_does_what_the_model_says():
    run_state_machine_as_test(StoreMachine, settings=QUICK)


@pytest.mark.timeout(600)
def test_the_sqlite_store_does_what_the_model_says():
    run_state_machine_as_test(SQLiteMachine, settings=QUICK)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [StoreMachine, SQLiteMachine])
def test_the_stores_do_what_the_model_says_for_a_long_time(machine):
    run_state_machine_as_test(machine, settings=LONG)
