"""Keeps the runners of a run alive: starts them, starts them again when they die, and ends them in order."""

import asyncio
import contextlib
import functools
import logging
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from ..errors import InvalidInputError, RunnersExhaustedError, StoreError
from ..store import LightningStore
from .lives import Begin, End, Life
from .lost_attempts import lose, open_attempts
from .restarts import Restarts

log = logging.getLogger(__name__)
MARK_SECONDS = 5.0  # at the end of a run, lost rollouts are marked within this time or left to their leases
LOOK_SECONDS = 0.25  # how often a run without runners looks whether rollouts wait


class Supervisor:
    """Supervises `n_runners` runners, from one loop.

    `on_end` is told when the run is to end: with an error, or with None when there is nothing left to do. `is_over`
    says whether the end of a runner is the end of its work, and `awaits_work` whether somebody here may enqueue more.
    `on_ready` is called whenever all runners are at work.
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
    ) -> None:
        self._begin, self._n_runners, self._connect = begin, n_runners, connect
        self._on_end, self._is_over, self._awaits_work = on_end, is_over, awaits_work
        self._on_ready, self._ready = on_ready, set[int]()
        self._lives: dict[int, Life] = {}
        # A start costs CPU: with more of them than cores at once, the first rollout waits for all.
        self._starts = asyncio.Semaphore(max(2, os.cpu_count() or 1))
        self._stopping = asyncio.Event()
        self._slots: list[asyncio.Task[None]] = []
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._n_runners:
            self._slots = [asyncio.create_task(self._keep(worker_id)) for worker_id in range(self._n_runners)]
            self._watch = asyncio.create_task(self._wait_for_all())

    async def _wait_for_all(self) -> None:
        """Every runner has reached its end by itself: an error while rollouts wait for one."""
        try:
            done, _ = await asyncio.wait(self._slots, return_when=asyncio.FIRST_EXCEPTION)
            for slot in done:
                slot.result()
            while self._awaits_work and not self._stopping.is_set():
                await self._check_queue()
                await self._pause(LOOK_SECONDS)
        except Exception as error:  # noqa: BLE001 - the run ends with it
            self._on_end(error)
        else:
            if not self._awaits_work:
                self._on_end(None)

    async def _check_queue(self) -> None:
        async with self._connect() as store:
            waiting = (await store.statistics())["queue_length"]
        if waiting and not self._stopping.is_set():
            raise RunnersExhaustedError(
                f"all {self._n_runners} runners have reached their max_rollouts, and {waiting} rollouts wait in the "
                "queue: raise max_rollouts or n_runners, or leave max_rollouts out"
            )

    async def _keep(self, worker_id: int) -> None:
        """Have one runner alive until it is done or the run ends."""
        restarts = Restarts(worker_id)
        while not self._stopping.is_set():
            end = await self._live(worker_id, restarts.finished)
            if end is None or end.how == "done" or self._is_over(end):
                return
            lost = await self._mark_lost(worker_id, end) if end.leaves_work else 0
            if end.how == "stopped" or self._stopping.is_set():
                return
            pause = restarts.after(end, lost=lost)
            _tell(worker_id, end, pause)
            await self._pause(pause)

    async def _live(self, worker_id: int, finished_before: int) -> End | None:
        """One life of the worker; None where the run ends before it begins."""
        turn = _Turn(self._starts)
        async with turn:
            if self._stopping.is_set():
                return None
            is_ready = functools.partial(self._note_ready, worker_id, turn)
            life = self._lives[worker_id] = self._begin(worker_id, finished_before, is_ready)
            try:
                return await life.live()
            finally:
                del self._lives[worker_id]

    def _note_ready(self, worker_id: int, turn: "_Turn") -> None:
        turn.end()
        self._ready.add(worker_id)
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
            log.warning("the rollouts of the lost runner %d could not be marked: the store is away", worker_id)
            return 0
        if (error := marking.exception()) is not None:
            log.error("the rollouts of the lost runner %d could not be marked", worker_id, exc_info=error)
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
                    await lose(store, attempt, f"its runner {end.place} ended: {end.reason}")
                    log.warning("rollout %s was lost with runner %d", attempt.rollout_id, worker_id)
        except (StoreError, InvalidInputError) as error:
            log.warning("the rollouts of the lost runner %d could not be marked: %s", worker_id, error)
        return count

    # -- the end -------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End all runners in order, side by side."""
        self._stopping.set()
        await asyncio.gather(*(life.end_in_order() for life in list(self._lives.values())))
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(*self._slots, self._watch, return_exceptions=True)

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
        log.warning("runner %d is worn out by agents that hang: it is replaced", worker_id)
        return
    words = f"\n{end.traceback}" if end.traceback else ""
    log.warning("runner %d ended (%s); it starts again in %.1f s%s", worker_id, end.reason, pause, words)
