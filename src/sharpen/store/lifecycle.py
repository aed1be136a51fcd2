"""The life of rollouts and attempts: every change of a status happens here, and follows the tables.

The rules run inside one transaction on some tables; they neither wait nor lock. What happened is noted in `events`,
so that the store can wake those who wait once the transaction is durable.
"""

import math
import time
from collections.abc import Callable, Sequence

import msgspec

from ..errors import UnknownIdError
from ..types import Attempt, AttemptedRollout, AttemptStatus, Rollout, RolloutConfig, RolloutStatus
from .base import new_id
from .tables import AttemptRow, RolloutRow, Tables, public_rollout
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

SHORTEST_PAUSE_SECONDS = 1.0
MAX_PAUSES = 100
HANDED_BACK = "sharpen.handed_back"
"""The key in the metadata of an attempt that was handed back to the queue. Only the store sets it: reports can neither
bring nor remove it."""
LOST_CLAIM = "lost claim"
MAX_LOST_CLAIMS = 3  # of one rollout: a task that kills its worker at once looks the same


class Events(msgspec.Struct):
    """What a transaction brought: rollouts in the queue, rollouts that finished, the nearest deadline set."""

    queued: int = 0
    finished: list[str] = []
    deadline: float = math.inf

    def is_empty(self) -> bool:
        return not self.queued and not self.finished and self.deadline == math.inf

    def mark(self) -> tuple[int, int, float]:
        return self.queued, len(self.finished), self.deadline

    def back_to(self, mark: tuple[int, int, float]) -> None:
        """Forget what a method that failed had noted."""
        self.queued, self.deadline = mark[0], mark[2]
        del self.finished[mark[1] :]


class StoreClock:
    """The time by which leases and time-outs are measured, and the pauses in which nobody could have renewed one.

    While the process of the store or the whole machine stands still, heartbeats cannot arrive: a pause that its
    watchdog noticed does not count towards a deadline. A clock that a test moves has no pauses.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.is_real = now is time.time
        self._pauses: list[tuple[float, float]] = []

    def __call__(self) -> float:
        return self._now()

    def note_pause(self, begin: float, end: float) -> bool:
        """Remember that nothing ran from `begin` until now, `end`; False if there was no pause worth noting."""
        if not self.is_real:
            return False
        if any(pause[1] > end for pause in self._pauses):  # the clock was set back
            self._pauses = [(start, min(stop, end)) for start, stop in self._pauses if start < end]
        if end - begin < SHORTEST_PAUSE_SECONDS:
            return False
        earlier = [pause for pause in self._pauses[-MAX_PAUSES:] if pause[0] != begin]  # it may have gone on since
        self._pauses = [*earlier, (begin, end)]
        return True

    def paused_since(self, when: float) -> float:
        """How many seconds since `when` were a pause; the future, where the clock was set back, has none."""
        if not self._pauses:
            return 0.0
        now = self._now()
        return sum(max(min(end, now) - max(begin, when), 0.0) for begin, end in self._pauses)


class Lifecycle:
    """Moves rollouts and attempts from status to status."""

    def __init__(self, tables: Tables, *, clock: Callable[[], float], name: str, keeps_secrets: bool) -> None:
        self.tables = tables
        # A store of a user's own may pass a plain clock on, for which there are no pauses.
        self.clock = clock if isinstance(clock, StoreClock) else StoreClock(clock)
        self.name = name
        self.keeps_secrets = keeps_secrets
        self.started = clock()
        self.events = Events()

    def take_events(self) -> "Events":
        """What happened since the last call."""
        events = self.events
        if events.is_empty():
            return events
        self.events = Events()
        return events

    def _note(self, attempt: AttemptRow) -> None:
        if attempt.deadline is not None and attempt.deadline < self.events.deadline:
            self.events.deadline = attempt.deadline

    def _save(self, attempt: AttemptRow) -> None:
        self._note(attempt)
        self.tables.save_attempt(attempt)

    def _rollout(self, rollout_id: str) -> RolloutRow:
        row = self.tables.rollout(rollout_id)
        if row is None:
            raise UnknownIdError(f"rollout {rollout_id!r} does not exist")
        return row

    def _attempt(self, row: RolloutRow, attempt_id: str) -> AttemptRow:
        find = self.tables
        attempt = find.latest_attempt(row) if attempt_id == "latest" else find.attempt(row, attempt_id)
        if attempt is None:
            raise UnknownIdError(f"rollout {row.rollout_id!r} has no attempt {attempt_id!r}")
        return attempt

    def _public(self, row: RolloutRow) -> Rollout:
        return public_rollout(row, self.tables.unpack)

    def _public_attempt(self, attempt: AttemptRow) -> Attempt:
        return attempt.public(self.tables.unpack(attempt.metadata, "metadata"))

    def _with_attempt(self, row: RolloutRow) -> Rollout:
        attempt = self.tables.latest_attempt(row)
        return self._public(row) if attempt is None else self._attempted(row, attempt)

    def _attempted(self, row: RolloutRow, attempt: AttemptRow) -> AttemptedRollout:
        found = public_rollout(row, self.tables.unpack, attempt)
        assert isinstance(found, AttemptedRollout)
        return found

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
        attempt.deadline = deadline_of(row, attempt, self.clock)
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

    def _close_latest(self, row: RolloutRow, status: AttemptStatus, now: float) -> None:
        """End the open attempt from outside; its worker learns of it with its next call."""
        attempt = self.tables.latest_attempt(row)
        if attempt is None or attempt.status in ENDED:
            return
        attempt.unwanted = attempt.worker_id is not None
        if attempt.status in OPEN:
            self._end(attempt, status, now)
        else:
            attempt.deadline = None
            self._save(attempt)

    def _mark_handed_back(self, row: RolloutRow) -> None:
        """Somebody puts the rollout back into the queue: its open attempt was not lost, and costs no try."""
        attempt = self.tables.latest_attempt(row)
        if attempt is not None and attempt.status in OPEN:
            self._set_handed_back(attempt, True)

    def _set_handed_back(self, attempt: AttemptRow, value: bool | str) -> None:
        known = self.tables.unpack(attempt.metadata, "metadata")
        self.tables.drop(attempt.metadata)
        attempt.metadata = self.tables.pack({**(known or {}), HANDED_BACK: value}, "metadata")

    def _handed_back(self, attempt: AttemptRow) -> bool | str | None:
        """Return how the attempt was handed back: by somebody (True), as a lost claim, or not at all (None)."""
        known = self.tables.unpack(attempt.metadata, "metadata")
        return known.get(HANDED_BACK) if known else None

    def _tries(self, row: RolloutRow) -> int:
        """The attempts that count towards `max_attempts`: all but those that were handed back."""
        if row.attempts < row.config.max_attempts:
            return row.attempts  # there are tries left in any case
        return row.attempts - sum(bool(self._handed_back(attempt)) for attempt in self.tables.attempts(row))

    def _is_lost_claim(self, row: RolloutRow, attempt: AttemptRow) -> bool:
        """Whether the heartbeats of its worker never named an attempt without a lease: no agent has seen it."""
        if row.config.unresponsive_seconds is not None or attempt.status != "preparing":
            return False
        if attempt.last_heartbeat_time is not None or not still_counts(row, attempt):
            return False
        earlier = [self._handed_back(each) for each in self.tables.attempts(row)]
        return earlier.count(LOST_CLAIM) < MAX_LOST_CLAIMS

    def _take_back(self, row: RolloutRow, attempt: AttemptRow, now: float) -> None:
        """Put the rollout of a lost claim back into the queue, whatever its rule for retries."""
        self._set_handed_back(attempt, LOST_CLAIM)
        self._end(attempt, "unresponsive", now)
        self._move(row, "requeuing", now)

    def _report(self, row: RolloutRow, attempt: AttemptRow, status: AttemptStatus, now: float) -> None:
        """A status from the attempt's worker: kept and, where the attempt still counts, acted on."""
        attempt.unwanted = False
        is_late = not may_attempt_become(attempt.status, status) or (
            attempt.status == "unresponsive" and not still_counts(row, attempt)
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
        attempt.deadline = deadline_of(row, attempt, self.clock)
        self._save(attempt)
        if still_counts(row, attempt) and row.status not in ("preparing", "running"):
            self._move(row, "running", now, by_hand=row.status == "queuing")
        self._follow(row, attempt, now)

    def _end(self, attempt: AttemptRow, status: AttemptStatus, now: float) -> None:
        attempt.status, attempt.end_time, attempt.deadline = status, now, None
        self._save(attempt)
        if attempt.worker_id is not None:
            self.tables.mark_idle(attempt.worker_id, now)

    def _follow(self, row: RolloutRow, attempt: AttemptRow, now: float) -> None:
        """The latest attempt moves its rollout."""
        if still_counts(row, attempt):
            self._move(row, rollout_status_after(row.config, attempt.status, self._tries(row)), now)

    def _suspend(self, row: RolloutRow, attempt: AttemptRow, now: float) -> None:
        """The lease ran out: try again where the rule allows, else give the attempt one more lease to come back."""
        attempt.status, attempt.end_time, attempt.deadline = "unresponsive", now, None
        is_final = False
        if still_counts(row, attempt) and not is_retried(row.config, "unresponsive", self._tries(row)):
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

    def _give_up(self, row: RolloutRow, attempt: AttemptRow, now: float) -> None:
        """A suspended attempt did not come back within its second lease."""
        attempt.deadline = None
        attempt.unwanted = attempt.worker_id is not None
        self._save(attempt)
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

    def expire(self) -> int:
        """Apply every time-out and lease that is due; how many."""
        now, applied = self.clock(), 0
        for row, attempt in self.tables.due(now):
            moved = self._moved_by_pauses(row, attempt)
            if moved is not None and moved > now:
                attempt.deadline = moved
                self._save(attempt)
                continue
            applied += 1
            if attempt.status not in OPEN:
                self._give_up(row, attempt, now)
            elif _timeout_at(row.config, attempt, self.clock) <= now:
                attempt.unwanted = attempt.worker_id is not None
                self._end(attempt, "timeout", now)
                self._follow(row, attempt, now)
            elif self._is_lost_claim(row, attempt):
                self._take_back(row, attempt, now)
            else:
                self._suspend(row, attempt, now)
        return applied

    def _moved_by_pauses(self, row: RolloutRow, attempt: AttemptRow) -> float | None:
        """The deadline of an attempt that is due, where the store stood still after the deadline was set."""
        if not self.clock.paused_since(attempt.start_time):
            return None
        if attempt.status in OPEN:
            return deadline_of(row, attempt, self.clock)
        if attempt.end_time is None or row.config.unresponsive_seconds is None:
            return None
        return attempt.end_time + row.config.unresponsive_seconds + self.clock.paused_since(attempt.end_time)

    def next_deadline(self) -> float | None:
        return self.tables.next_deadline()

    def queue_length(self) -> int:
        return self.tables.queue_length()

    def unfinished(self, rollout_ids: Sequence[str]) -> list[str]:
        """Those that are not finished; an unknown id is an error."""
        return self.tables.unfinished(rollout_ids)


def still_counts(row: RolloutRow, attempt: AttemptRow) -> bool:
    """Whether this attempt may still move its rollout."""
    return attempt.sequence_id == row.attempts and row.status not in FINISHED


def _timeout_at(config: RolloutConfig, attempt: AttemptRow, clock: StoreClock) -> float:
    if config.timeout_seconds is None:
        return math.inf
    return attempt.start_time + config.timeout_seconds + clock.paused_since(attempt.start_time)


def deadline_of(row: RolloutRow, attempt: AttemptRow, clock: StoreClock) -> float | None:
    """When the open latest attempt runs out of time or of its lease; of older ones nothing depends any more."""
    config = row.config
    if attempt.sequence_id != row.attempts:
        return None
    timeout_at = _timeout_at(config, attempt, clock)
    if config.unresponsive_seconds is None:
        return None if timeout_at == math.inf else timeout_at
    renewed = attempt.start_time if attempt.last_heartbeat_time is None else attempt.last_heartbeat_time
    return min(timeout_at, renewed + config.unresponsive_seconds + clock.paused_since(renewed))
