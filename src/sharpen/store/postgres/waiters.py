"""Who waits in which store: one wake-up for each item, also where many stores stand before one database.

A store in which somebody waits for work has as many seats in the table `waiters`. Whoever queues items takes that many
seats and tells just the stores whose seats they were. A wake-up that finds nobody any more is handed on. What is lost
all the same (a store that died with a wake-up in its hands) is found by a slow look around.
"""

import asyncio
from collections.abc import Callable

from ..local import FifoWaiters, Waiter
from .session import Query, Row, Statement

ALIVE = "seen > now() - interval '5 seconds'"
PAYLOAD_BYTES = 7900  # PostgreSQL takes 8,000

_SIT = Statement(
    "INSERT INTO waiters (listener, seats, awaits_finish, seen) VALUES ($1, greatest($2::int, 0), false, now()) "
    "ON CONFLICT (listener) DO UPDATE SET seats = greatest(waiters.seats + $2::int, 0), seen = now()"
)
_AWAIT_FINISH = Statement(
    "INSERT INTO waiters (listener, seats, awaits_finish, seen) VALUES ($1, 0, true, now()) "
    "ON CONFLICT (listener) DO UPDATE SET awaits_finish = true, seen = now()"
)
# Locked in one order; the store's own seats come first, since those need no message.
_WAKE = Statement(
    f"WITH free AS (SELECT listener, seats FROM waiters WHERE seats > 0 AND {ALIVE} ORDER BY listener FOR UPDATE), "
    "lined AS (SELECT listener, seats, sum(seats) OVER (ORDER BY listener <> $2, listener) - seats AS before FROM free "
    "WHERE listener <> $3), "
    "shares AS (SELECT listener, least(seats, $1::int - before)::int AS share FROM lined WHERE before < $1::int), "
    "taken AS (UPDATE waiters SET seats = waiters.seats - share FROM shares WHERE waiters.listener = shares.listener "
    "RETURNING waiters.listener, share) "
    "SELECT share, CASE WHEN listener <> $2 THEN pg_notify('sharpen_' || listener, 'w ' || share)::text END FROM taken "
    "ORDER BY listener <> $2"
)
_FINISHED = Statement(
    "SELECT pg_notify('sharpen_' || listener, $2)::text FROM waiters "
    f"WHERE awaits_finish AND listener <> $1 AND {ALIVE}"
)


def sit(listener: str, change: int) -> Query:
    """So many more seats, or fewer."""
    return _SIT, (listener, change)


def await_finish(listener: str) -> Query:
    return _AWAIT_FINISH, (listener,)


def wake(listener: str, count: int) -> Query:
    """Take seats for so many items and tell whose they were; gives rows, see `own_share`."""
    return _WAKE, (count, listener, "")


def hand_on(listener: str, count: int) -> Query:
    """The same for wake-ups that found nobody in this store."""
    return _WAKE, (count, listener, listener)


def own_share(rows: list[Row]) -> int:
    """How many of the seats are in the store itself."""
    return sum(share for share, told in rows if told is None)


def tell_finished(listener: str, rollout_ids: list[str]) -> Query:
    """Tell the other stores in which somebody waits for rollouts to finish."""
    payload = f"f {' '.join(rollout_ids)}"
    return _FINISHED, (listener, payload if len(payload.encode()) <= PAYLOAD_BYTES else "f *")


class RemoteWaiters(FifoWaiters):
    """Waiters for work in one store, of whom the database knows the number."""

    def __init__(self) -> None:
        super().__init__()
        self._unseated: dict[asyncio.Task[object] | None, Waiter] = {}
        self._gone = 0
        self._unused = 0
        self.on_unused: Callable[[], None] = lambda: None

    def join(self) -> Waiter:
        waiter = super().join()
        with self._lock:
            self._unseated[asyncio.current_task()] = waiter
        return waiter

    def takes_seat(self) -> bool:
        """Whether the running task has joined, and the look that it takes now has to be preceded by its seat."""
        if not self._unseated:
            return False
        with self._lock:
            return self._unseated.pop(asyncio.current_task(), None) is not None

    def leave(self, waiter: Waiter, *, used: bool) -> None:
        with self._lock:
            is_seated = self._unseated.pop(asyncio.current_task(), None) is None
            if not waiter.is_woken:
                self._waiting.remove(waiter)
                self._gone += is_seated
            elif not used:
                self._unused += 1
        if self._unused:
            self.on_unused()

    def wake(self, count: int) -> None:
        """Wake some whom nobody took a seat of."""
        with self._lock:
            self._gone += self._wake(count)

    def wake_seated(self, count: int) -> int:
        """Wake those whose seats were taken; how many of the wake-ups found nobody any more."""
        with self._lock:
            missing = count - self._wake(count)
            self._gone = max(0, self._gone - missing)  # they had left, and their seats are taken already
        return missing

    def _wake(self, count: int) -> int:
        woken = 0
        while woken < count and self._waiting:
            woken += self._waiting.popleft().wake()
        return woken

    def hand_on(self, count: int) -> None:
        """Wake-ups that found nobody are for others."""
        if count > 0:
            with self._lock:
                self._unused += count
            self.on_unused()

    def take_gone(self) -> int:
        """How many seats have been left since the last call."""
        with self._lock:
            gone, self._gone = self._gone, 0
        return gone

    def take_unused(self) -> int:
        """How many wake-ups have to be handed on."""
        with self._lock:
            unused, self._unused = self._unused, 0
        return unused
