"""Waiting without polling: for work, for completions, for a set of rollouts. Safe across threads and loops.

Whoever waits registers first and looks second, so that no wake-up falls between the two. A waiter that is woken
but gives up at the same moment hands its wake-up on.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterable


class Ticket:
    """One waiter's place. It is woken at most once."""

    __slots__ = ("_future", "_loop", "is_woken")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self.is_woken = False

    def wake(self) -> bool:
        """Whether anybody is there to be woken."""
        self.is_woken = True
        try:
            self._loop.call_soon_threadsafe(self._ring)
        except RuntimeError:  # its loop has closed
            return False
        return True

    def _ring(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float) -> bool:
        """Whether it was woken within the time."""
        done, _ = await asyncio.wait([self._future], timeout=seconds)
        return bool(done)


class Line:
    """Waiters for work, in order: one wake-up for each item."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self) -> Ticket:
        ticket = Ticket()
        with self._lock:
            self._waiting.append(ticket)
        return ticket

    def leave(self, ticket: Ticket, *, used: bool) -> None:
        """Give up the place; a wake-up that was not used goes to the next in line."""
        with self._lock:
            if not ticket.is_woken:
                self._waiting.remove(ticket)
                return
        if not used:
            self.wake(1)

    def wake(self, count: int) -> None:
        with self._lock:
            while count > 0 and self._waiting:
                count -= self._waiting.popleft().wake()


class Crowd:
    """Waiters for rollouts to finish: each for any, or for all of a set of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._any: set[Ticket] = set()
        self._by_rollout: dict[str, set[Ticket]] = {}
        self._left: dict[Ticket, set[str]] = {}

    def __len__(self) -> int:
        return len(self._any) + len(self._left)

    def join_any(self) -> Ticket:
        ticket = Ticket()
        with self._lock:
            self._any.add(ticket)
        return ticket

    def join_all(self, rollout_ids: Iterable[str]) -> Ticket:
        """A ticket that is woken when the last of these has finished."""
        ticket = Ticket()
        with self._lock:
            self._left[ticket] = set(rollout_ids)
            for rollout_id in self._left[ticket]:
                self._by_rollout.setdefault(rollout_id, set()).add(ticket)
        return ticket

    def narrow(self, ticket: Ticket, rollout_ids: Iterable[str]) -> None:
        """Wait only for these any more: the others had finished before the ticket was there to hear of it."""
        wanted = set(rollout_ids)
        with self._lock:
            left = self._left[ticket]
            self._forget(ticket, left - wanted)
            left &= wanted
            is_over = not left
        if is_over:
            ticket.wake()

    def leave(self, ticket: Ticket) -> None:
        with self._lock:
            self._any.discard(ticket)
            self._forget(ticket, self._left.pop(ticket, ()))

    def _forget(self, ticket: Ticket, rollout_ids: Iterable[str]) -> None:
        for rollout_id in rollout_ids:
            tickets = self._by_rollout.get(rollout_id)
            if tickets is not None:
                tickets.discard(ticket)
                if not tickets:
                    del self._by_rollout[rollout_id]

    def finished(self, rollout_ids: Iterable[str]) -> None:
        with self._lock:
            woken = list(self._any)
            self._any.clear()
            for rollout_id in rollout_ids:
                for ticket in self._by_rollout.pop(rollout_id, ()):
                    left = self._left[ticket]
                    left.discard(rollout_id)
                    if not left:
                        woken.append(ticket)
        for ticket in woken:
            ticket.wake()

    def wake_all(self) -> None:
        """Something may have finished elsewhere: everyone looks again."""
        with self._lock:
            woken = [*self._any, *self._left]
            self._any.clear()
        for ticket in woken:
            ticket.wake()
