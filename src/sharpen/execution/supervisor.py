"""Keeps the runners of a run alive: starts them, starts them again when they die, has more or fewer of them as there is
work, and ends them in order."""

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from ..errors import InvalidInputError, RunnersExhaustedError, StoreError
from ..store import LightningStore
from .lives import Begin, End, Life
from .lost_attempts import lose, open_attempts
from .restarts import Restarts
from .scaling import Bounds, Scaler, count_waiting

log = logging.getLogger(__name__)
MARK_SECONDS = 5.0  # at the end of a run, lost rollouts are marked within this time or left to their leases
LOOK_SECONDS = 0.25  # how often a run without runners looks whether rollouts wait


class Supervisor:
    """Supervises `n_runners` runners, from one loop; with `bounds` that is how many there are at first.

    `on_end` is told when the run is to end: with an error, or with None when there is nothing left to do. `is_over`
    says whether the end of a runner is the end of its work, and `awaits_work` whether somebody here may enqueue more.
    `on_ready` is called whenever all runners are at work. `starts` is how many may start at the same time.
    """

    def __init__(
        self,
        begin: Begin,
        n_runners: int,
        connect: Callable[[], AbstractAsyncContextManager[LightningStore]],
        *,
        on_end: Callable[[BaseException | None], None],
        is_over: Callable[[End], bool] = lambda _: False,
        awaits_work: bool = True,
        on_ready: Callable[[], None] = lambda: None,
        bounds: Bounds | None = None,
        starts: int | None = None,
    ) -> None:
        self._begin, self._n_runners, self._connect = begin, n_runners, connect
        self._on_end, self._is_over, self._awaits_work = on_end, is_over, awaits_work
        self._on_ready, self._ready = on_ready, set[int]()
        self._bounds, self._most = bounds, n_runners if bounds is None else bounds.high
        self._lives: dict[int, Life] = {}
        self._names: dict[int, str] = {}
        self._leaving, self._spent = set[int](), set[int]()
        self._restarts: dict[int, Restarts] = {}
        # A start costs CPU: with more of them than cores at once, the first rollout waits for all.
        self._starts = asyncio.Semaphore(starts or max(2, os.cpu_count() or 1))
        self._stopping = asyncio.Event()
        self._slots: dict[int, asyncio.Task[None]] = {}
        self._watches: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.add(self._n_runners)
        if self._bounds is not None:
            self._watch(Scaler(self, self._bounds, self._connect).run())

    # -- how many there are --------------------------------------------------------------------------

    def count(self) -> int:
        """The runners that are at work or about to."""
        return len(self._slots.keys() - self._leaving)

    def at_work(self) -> dict[int, str]:
        """The names in the store of those that are ready, by their numbers."""
        return {number: name for number, name in self._names.items() if number not in self._leaving}

    def starting(self) -> set[int]:
        """The numbers of those that are not ready yet."""
        return self._slots.keys() - self._names.keys() - self._leaving

    def add(self, count: int) -> int:
        """Start so many more; how many there was room for."""
        taken = self._slots.keys() | self._spent
        free = [number for number in range(self._most) if number not in taken and not self._stopping.is_set()]
        for worker_id in free[:count]:
            slot = self._slots[worker_id] = asyncio.create_task(self._keep(worker_id))
            slot.add_done_callback(functools.partial(self._slot_has_ended, worker_id))
        return len(free[:count])

    def let_go(self, worker_ids: Sequence[int]) -> None:
        """Have them finish what they have in hand, and end."""
        for worker_id in worker_ids:
            self._leaving.add(worker_id)
            if worker_id in self._lives:
                self._lives[worker_id].ask_to_stop()

    def _slot_has_ended(self, worker_id: int, slot: "asyncio.Task[None]") -> None:
        del self._slots[worker_id]
        self._leaving.discard(worker_id)
        error = None if slot.cancelled() else slot.exception()
        if self._stopping.is_set():
            return
        if error is not None:
            self._on_end(error)
        elif len(self._spent) == self._most:
            self._watch(self._look_for_work())

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        """An error of it ends the run."""
        watch = asyncio.create_task(work)
        watch.add_done_callback(self._watch_has_ended)
        self._watches.append(watch)

    def _watch_has_ended(self, watch: "asyncio.Task[None]") -> None:
        error = None if watch.cancelled() else watch.exception()
        if error is not None and not self._stopping.is_set():
            self._on_end(error)

    async def _look_for_work(self) -> None:
        """Every runner has reached its end by itself: an error while rollouts wait for one."""
        while self._awaits_work and not self._stopping.is_set():
            await self._check_queue()
            await self._pause(LOOK_SECONDS)
        if not self._awaits_work:
            self._on_end(None)

    async def _check_queue(self) -> None:
        async with self._connect() as store:
            waiting = await count_waiting(store)
        if waiting and not self._stopping.is_set():
            raise RunnersExhaustedError(
                f"all {self._most} runners have reached their max_rollouts, and {waiting} rollouts are still "
                "queued: raise max_rollouts or n_runners, or omit max_rollouts"
            )

    # -- one of them ---------------------------------------------------------------------------------

    async def _keep(self, worker_id: int) -> None:
        """Have one runner alive until it is done or the run ends."""
        restarts = self._restarts.setdefault(worker_id, Restarts(worker_id))
        while not self._stopping.is_set() and worker_id not in self._leaving:
            end = await self._live(worker_id, restarts.finished)
            if end is None:
                return
            if end.how == "done" or self._is_over(end):
                self._spent.add(worker_id)
                return
            lost = await self._mark_lost(worker_id, end) if end.leaves_work else 0
            if end.how == "stopped" or self._stopping.is_set():
                restarts.finished += end.finished
                return
            pause = restarts.after(end, lost=lost)
            _tell(worker_id, end, pause)
            await self._pause(pause)

    async def _live(self, worker_id: int, finished_before: int) -> End | None:
        """One life of the worker; None where the run ends before it begins."""
        turn = _Turn(self._starts)
        async with turn:
            if self._stopping.is_set() or worker_id in self._leaving:
                return None
            is_ready = functools.partial(self._note_ready, worker_id, turn)
            life = self._lives[worker_id] = self._begin(worker_id, finished_before, is_ready)
            try:
                return await life.live()
            finally:
                del self._lives[worker_id]
                self._names.pop(worker_id, None)

    def _note_ready(self, worker_id: int, turn: "_Turn", name: str) -> None:
        turn.end()
        self._ready.add(worker_id)
        self._names[worker_id] = name
        if len(self._ready) == self._n_runners:
            self._on_ready()

    async def _pause(self, seconds: float) -> None:
        """Wait, but not past the end of the run."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _mark_lost(self, worker_id: int, end: End) -> int:
        """The attempts of a dead worker are nobody's: their rule decides at once what becomes of them. How many."""
        if end.worker_name is None:
            return 0
        marking = asyncio.create_task(self._mark(worker_id, end.worker_name, end))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([marking, stopping], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([marking], timeout=MARK_SECONDS)  # a run that ends does not wait for a store that is away
        for task in (marking, stopping):
            task.cancel()
        await asyncio.gather(marking, stopping, return_exceptions=True)
        if marking.cancelled():
            log.warning("could not mark the rollouts of lost runner %d: the store cannot be reached", worker_id)
            return 0
        if (error := marking.exception()) is not None:
            log.error("could not mark the rollouts of lost runner %d", worker_id, exc_info=error)
            return 0
        return marking.result()

    async def _mark(self, worker_id: int, worker_name: str, end: End) -> int:
        count = 0
        try:
            async with self._connect() as store:
                for attempt in await open_attempts(store):
                    if attempt.worker_id != worker_name:
                        continue
                    count += 1
                    await lose(store, attempt, f"its runner {end.place} exited: {end.reason}")
                    log.warning("rollout %s was lost with runner %d", attempt.rollout_id, worker_id)
        except (StoreError, InvalidInputError) as error:
            log.warning("could not mark the rollouts of lost runner %d: %s", worker_id, error)
        return count

    # -- the end -------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End all runners in order, side by side."""
        self._stopping.set()
        await asyncio.gather(*(life.end_in_order() for life in list(self._lives.values())))
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._slots.values(), *self._watches, return_exceptions=True)

    def kill(self) -> None:
        self._stopping.set()
        for life in list(self._lives.values()):
            life.kill()


class _Turn:
    """A turn to start: over when the runner is ready, or has ended before."""

    def __init__(self, starts: asyncio.Semaphore) -> None:
        self._starts = starts
        self._is_ours = False

    async def __aenter__(self) -> None:
        await self._starts.acquire()
        self._is_ours = True

    async def __aexit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        if self._is_ours:
            self._is_ours = False
            self._starts.release()


def _tell(worker_id: int, end: End, pause: float) -> None:
    if end.how == "worn_out":
        log.warning("runner %d has too many hung agent threads; restarting it", worker_id)
        return
    words = f"\n{end.traceback}" if end.traceback else ""
    log.warning("runner %d exited (%s); restarting it in %.1f s%s", worker_id, end.reason, pause, words)
