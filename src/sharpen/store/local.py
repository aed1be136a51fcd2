"""What the stores of this process share: the rules run in transactions, waits are woken by events, and a watchdog
applies leases and time-outs on time, also when nobody calls.

Nothing polls. Whoever waits, for work, for completions or for a set of rollouts, registers first and looks second, so
that no wake-up falls between the two. A waiter that is woken but gives up at the same moment hands its wake-up on.
"""

import asyncio
import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from ..errors import StoreError, StoreFileError
from ..types import AttemptedRollout, FinishedRollouts, Rollout
from .base import LightningStore, check_seconds, new_id
from .lifecycle import Events, StoreClock
from .methods import Method, forward_methods

log = logging.getLogger(__name__)
RETRY_SECONDS = 1.0
REPEAT_SECONDS = 60.0  # between two lines of the log about the same trouble


def _run_in_transaction(method: Method) -> Callable[..., Awaitable[Any]]:
    name = method.name
    if method.kind == "read":

        async def read(self: "LocalStore", *args: Any, **kwargs: Any) -> Any:
            return await self._read(name, *args, **kwargs)

        return read

    async def write(self: "LocalStore", *args: Any, **kwargs: Any) -> Any:
        return await self._write(name, *args, **kwargs)

    return write


@forward_methods(_run_in_transaction)
class LocalStore(LightningStore):
    """Base class of stores in this process: a subclass defines how a method of `StoreRules` runs in a transaction."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self.store_id = new_id("st")
        self._clock = StoreClock(clock)
        self._workers_waiting = FifoWaiters()
        self._finish_waiting = BroadcastWaiters()
        self._watchdog = Watchdog(self)
        self._is_closing = False
        self._broken: StoreFileError | None = None
        self._expires_attempts = True

    async def _read(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def _write(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _write_now(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """The same from a thread without a loop."""
        raise NotImplementedError

    def _announce(self, events: Events) -> None:
        """Called once a transaction is durable: wake those who wait for what it brought."""
        if events.queued:
            self._workers_waiting.wake(events.queued)
        if events.finished:
            self._finish_waiting.finished(events.finished)
        if events.deadline < math.inf:
            self._watchdog.look_at(events.deadline)

    # -- waiting -------------------------------------------------------------------------------------

    async def dequeue_many_rollouts(
        self,
        *,
        limit: int = 1,
        worker_id: str | None = None,
        wait_seconds: float = 0,
        request_id: str | None = None,
    ) -> list[AttemptedRollout]:
        check_seconds("wait_seconds", wait_seconds)
        wanted = {"limit": limit, "worker_id": worker_id, "request_id": request_id}
        claimed: list[AttemptedRollout] = await self._write("dequeue_many_rollouts", **wanted)
        end = time.monotonic() + wait_seconds
        while not claimed and (left := end - time.monotonic()) > 0:
            waiter, has_looked = self._workers_waiting.join(), False
            self._watchdog.hurry()
            try:
                claimed = await self._write("dequeue_many_rollouts", **wanted)
                if not claimed and await self._woken(waiter, left):
                    claimed = await self._write("dequeue_many_rollouts", **wanted)
                    has_looked = True
            finally:
                # Whoever looked has used the wake-up, also when others were faster: handing that on would never end.
                self._workers_waiting.leave(waiter, used=has_looked)
        return claimed

    async def wait_for_rollouts(self, *, rollout_ids: Sequence[str], timeout: float | None = None) -> list[Rollout]:
        if timeout is not None:
            check_seconds("timeout", timeout)
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        left = await self._read("unfinished", rollout_ids)
        while left and time.monotonic() < end:
            waiter = self._finish_waiting.join_all(left)
            self._watchdog.hurry()
            try:
                left = await self._read("unfinished", left)
                if left:
                    self._finish_waiting.narrow(waiter, left)
                    await self._woken(waiter, min(end - time.monotonic(), 3600))
                    left = await self._read("unfinished", left)
            finally:
                self._finish_waiting.leave(waiter)
        waiting = set(left)
        finished = [rollout_id for rollout_id in dict.fromkeys(rollout_ids) if rollout_id not in waiting]
        found = await self._read("query_rollouts", rollout_id_in=finished)
        by_id = {rollout.rollout_id: rollout for rollout in found}
        return [by_id[rollout_id] for rollout_id in finished if rollout_id in by_id]

    async def finished_rollouts(self, after: int = 0, limit: int = 1000, wait_seconds: float = 0) -> FinishedRollouts:
        check_seconds("wait_seconds", wait_seconds)
        found: FinishedRollouts = await self._read("finished_rollouts", after, limit)
        end = time.monotonic() + wait_seconds
        while not found.items and (left := end - time.monotonic()) > 0:
            waiter = self._finish_waiting.join_any()
            self._watchdog.hurry()
            try:
                found = await self._read("finished_rollouts", after, limit)
                if not found.items and await self._woken(waiter, left):
                    found = await self._read("finished_rollouts", after, limit)
            finally:
                self._finish_waiting.leave(waiter)
        return found

    async def _woken(self, waiter: "Waiter", seconds: float) -> bool:
        """Whether the waiter was woken within the time; a store that closes meanwhile has nothing more to give."""
        is_woken = not self._is_closing and await waiter.wait(seconds)
        if self._is_closing:
            raise StoreError("the store was closed while a call was waiting")
        return is_woken

    # -- time ----------------------------------------------------------------------------------------

    def expire(self) -> int:
        """Apply every lease and time-out that is due and return how many; the watchdog calls this automatically."""
        expired: int = self._write_now("expire")
        return expired

    @property
    def expires_attempts(self) -> bool:
        """Whether the watchdog of this store applies leases and time-outs.

        If several processes have a store open, set this in the one that receives the heartbeats: only its watchdog
        notices a pause of that process, during which no heartbeat could arrive.
        """
        return self._expires_attempts

    @expires_attempts.setter
    def expires_attempts(self, value: bool) -> None:
        self._expires_attempts = value
        if value and self._watchdog.is_started:  # otherwise the first use of the store starts it
            self._watchdog.look_at(self._clock())

    def _next_deadline(self) -> float | None:
        raise NotImplementedError

    def _can_be_opened_elsewhere(self, kind: type) -> bool:
        """Whether another process that opens the database has the same store: not one that a subclass extends, nor one
        whose clock a test moves."""
        return type(self) is kind and self._clock.is_real

    def _poll_seconds(self) -> float | None:
        """How often the watchdog looks around, for stores that others write to as well."""
        return None

    def _look_around(self) -> None:
        """Notice what others wrote."""

    def _break(self, error: StoreFileError) -> None:
        """The store is lost or damaged: from now on every call raises this error, also those that wait."""
        if self._broken is None:
            log.error("the store can no longer be used: %s", error)
            self._broken = error
            self._wake_everybody()

    def _check_whole(self) -> None:
        if self._broken is not None:
            raise StoreFileError(str(self._broken))

    def _wake_everybody(self) -> None:
        self._workers_waiting.wake(len(self._workers_waiting))
        self._finish_waiting.wake_all()

    async def close(self) -> None:
        self._is_closing = True
        self._wake_everybody()
        await asyncio.to_thread(self._watchdog.stop)


class Watchdog:
    """A thread that sleeps until the next deadline. It holds its store weakly and ends with it."""

    def __init__(self, store: LocalStore) -> None:
        self._store = weakref.ref(store, lambda _: self._wake.set())
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next = math.inf
        self._expected = math.inf  # when the next look is due: one that comes later follows a pause
        self._stopped = threading.Event()

    @property
    def is_started(self) -> bool:
        return self._thread is not None

    def look_at(self, deadline: float) -> None:
        """Be awake at this time of the store's clock."""
        if deadline < self._next:
            self._next = deadline
            self.start()
            self._wake.set()

    def hurry(self) -> None:
        """Someone begins to wait, so the next look around may be due earlier."""
        if self._thread is not None:
            self._wake.set()

    def start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="sharpen-watchdog", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        failing_since: float | None = None
        while not self._stopped.is_set():
            self._wake.wait(self._plan())
            self._wake.clear()
            store = self._store()
            if store is None or self._stopped.is_set():
                return
            try:
                self._look(store)
                failing_since = None
            except StoreFileError as error:
                store._break(error)
                return
            except StoreError as error:
                if failing_since is None or time.monotonic() - failing_since >= REPEAT_SECONDS:
                    failing_since = time.monotonic()
                    log.warning("the store watchdog failed and retries every second: %s", error)
                self._next = min(self._next, store._clock())
                self._stopped.wait(RETRY_SECONDS)
            del store

    def _plan(self) -> float | None:
        """How long to sleep. After a look that failed, the pause still lasts."""
        store = self._store()
        if store is None:
            return 0
        seconds = self._seconds_to_sleep(store)
        if seconds is not None and self._expected == math.inf:
            self._expected = store._clock() + seconds
        return seconds

    def _seconds_to_sleep(self, store: LocalStore) -> float | None:
        poll = store._poll_seconds()
        if self._next == math.inf:
            return poll
        # The store's clock may be set back or forward, so a long sleep is cut into short ones.
        until = min(max(self._next - store._clock(), 0), 1.0)
        return until if poll is None else min(until, poll)

    def _look(self, store: LocalStore) -> None:
        store._look_around()
        now = store._clock()
        if store._clock.note_pause(self._expected, now):
            log.warning(
                "the store was paused for %.1f s; leases and time-outs are extended by that time", now - self._expected
            )
        self._expected = math.inf
        if now >= self._next:
            self._next = math.inf
            if not store.expires_attempts:
                return
            store.expire()
            deadline = store._next_deadline()
            if deadline is not None:
                self._next = min(self._next, deadline)

    def stop(self) -> None:
        self._stopped.set()
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


# -- waiters, safe across threads and loops ----------------------------------------------------------


class Waiter:
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


class FifoWaiters:
    """Waiters for work, in order: one wake-up for each item."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Waiter] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self) -> Waiter:
        waiter = Waiter()
        with self._lock:
            self._waiting.append(waiter)
        return waiter

    def leave(self, waiter: Waiter, *, used: bool) -> None:
        """Give up the place; a wake-up that was not used goes to the next in line."""
        with self._lock:
            if not waiter.is_woken:
                self._waiting.remove(waiter)
                return
        if not used:
            self.wake(1)

    def wake(self, count: int) -> None:
        with self._lock:
            while count > 0 and self._waiting:
                count -= self._waiting.popleft().wake()


class BroadcastWaiters:
    """Waiters for rollouts to finish: each for any, or for all of a set of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._any: set[Waiter] = set()
        self._by_rollout: dict[str, set[Waiter]] = {}
        self._left: dict[Waiter, set[str]] = {}

    def __len__(self) -> int:
        return len(self._any) + len(self._left)

    def join_any(self) -> Waiter:
        waiter = Waiter()
        with self._lock:
            self._any.add(waiter)
        return waiter

    def join_all(self, rollout_ids: Iterable[str]) -> Waiter:
        """A waiter that is woken when the last of these has finished."""
        waiter = Waiter()
        with self._lock:
            self._left[waiter] = set(rollout_ids)
            for rollout_id in self._left[waiter]:
                self._by_rollout.setdefault(rollout_id, set()).add(waiter)
        return waiter

    def narrow(self, waiter: Waiter, rollout_ids: Iterable[str]) -> None:
        """Wait only for these any more: the others had finished before the waiter registered."""
        wanted = set(rollout_ids)
        with self._lock:
            left = self._left[waiter]
            self._forget(waiter, left - wanted)
            left &= wanted
            is_over = not left
        if is_over:
            waiter.wake()

    def leave(self, waiter: Waiter) -> None:
        with self._lock:
            self._any.discard(waiter)
            self._forget(waiter, self._left.pop(waiter, ()))

    def _forget(self, waiter: Waiter, rollout_ids: Iterable[str]) -> None:
        for rollout_id in rollout_ids:
            tickets = self._by_rollout.get(rollout_id)
            if tickets is not None:
                tickets.discard(waiter)
                if not tickets:
                    del self._by_rollout[rollout_id]

    def finished(self, rollout_ids: Iterable[str]) -> None:
        with self._lock:
            woken = list(self._any)
            self._any.clear()
            for rollout_id in rollout_ids:
                for waiter in self._by_rollout.pop(rollout_id, ()):
                    left = self._left[waiter]
                    left.discard(rollout_id)
                    if not left:
                        woken.append(waiter)
        for waiter in woken:
            waiter.wake()

    def wake_all(self) -> None:
        """Something may have finished elsewhere: everyone looks again."""
        with self._lock:
            woken = [*self._any, *self._left]
            self._any.clear()
        for waiter in woken:
            waiter.wake()
