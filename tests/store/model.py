"""A model of the store in plain objects: it knows the rules and nothing else, no queue, no index, no transaction."""

from dataclasses import dataclass, field

from sharpen.semconv import PRIMARY_REWARD_VALUE
from sharpen.types import RolloutConfig, Span

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
    handed_back: bool = False
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
        tries = sum(not attempt.handed_back for attempt in self.attempts)
        return status in self.config.retry_condition and tries < self.config.max_attempts

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
            self.attempts[-1].handed_back = status in QUEUED
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
