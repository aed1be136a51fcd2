"""Keeps the runners of a run alive: starts them, restarts those that die, scales their number, and ends them in order.

A runner has one start and one exit, in a process, a thread or an actor; `RunnerHandle` is what the supervisor has of
it, and `RunnerExit` how it ended. The worker stays: `Restarts` decides when its next runner starts, and when the run
gives up. `Scaler` looks at the queue: more runners while rollouts wait, fewer when runners are idle. Attempts that a
dead runner left unfinished are given up at once, so they are retried without waiting for a lease.
"""

import asyncio
import contextlib
import functools
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ..backoff import Backoff
from ..errors import FinishedError, InvalidInputError, RunError, RunnersExhaustedError, RunnerStartError, StoreError
from ..files import is_alive
from ..process.child import Failure
from ..store import LightningStore
from ..types import Attempt, Worker
from .base import Connect
from .events import happens

if TYPE_CHECKING:
    from .serving import Served

log = logging.getLogger(__name__)
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 5.0
MAX_STARTS = 5  # that fail in a row
MAX_DEATHS = 10  # without a finished rollout in between
MARK_SECONDS = 5.0  # at the end of a run, lost rollouts are marked within this time or left to their leases
LOOK_SECONDS = 0.25  # how often a run without runners looks whether rollouts wait
SCALE_SECONDS = 0.5

ExitKind = Literal["done", "stopped", "saturated", "failed", "died"]
OnReady = Callable[[str], None]
"""Called with the name of the worker in the store when its runner is about to work."""


@dataclass(frozen=True)
class RunnerExit:
    """How a runner ended. `done`: it has nothing left to do; `saturated`: too many of its agent threads hang;
    `failed`: its code raised; `died`: it ended without a report.

    `worker_name` is its name in the store, None if it was never ready. `leaves_work` is True if there may be open
    attempts that nobody works on.
    """

    kind: ExitKind
    finished: int
    worker_name: str | None
    leaves_work: bool
    reason: str
    failure: Failure | None = None
    place: Literal["process", "thread", "actor"] = "process"

    @property
    def traceback(self) -> str:
        """The traceback on lines of its own, for the end of a message; empty without a failure."""
        return "" if self.failure is None or not self.failure.traceback else f"\n{self.failure.traceback}"


class RunnerHandle(Protocol):
    """One runner, from its start to its exit."""

    async def run(self) -> RunnerExit:
        """Start it, and return when it has ended."""

    def ask_to_stop(self) -> None:
        """Let it finish what it has in hand, however long that takes."""

    async def stop(self) -> None:
        """Ask it to stop, then insist, step by step."""

    def kill(self) -> None:
        """End it at once."""


StartRunner = Callable[[int, int, OnReady], RunnerHandle]
"""Makes the next runner of a worker, given by its number, which finished some rollouts before."""


@dataclass(frozen=True)
class Bounds:
    """At least `low` runners and at most `high`; each has `slots` rollouts at a time, and one that has had none for
    `idle_seconds` may go."""

    low: int
    high: int
    slots: int = 1
    idle_seconds: float = 30.0


@dataclass(frozen=True)
class RunnerPlan:
    """The runners of a run: how one starts, and how many there are; with `bounds` that is how many at first.

    `simultaneous_starts` limits how many start at the same time.
    """

    start: StartRunner
    count: int
    bounds: Bounds | None = None
    simultaneous_starts: int | None = None


@dataclass
class _Worker:
    """One worker of a run, with its runner of the moment."""

    worker_id: int
    restarts: "Restarts"
    keeping: "asyncio.Task[None] | None" = None
    """Keeps its runner alive; None while it has none."""
    handle: RunnerHandle | None = None
    name: str | None = None
    """In the store, while its runner is ready."""
    was_ready: bool = False
    is_leaving: bool = False
    is_done: bool = False


class Supervisor:
    """Supervises the runners of one run, from one event loop.

    Args:
        plan: Which runners there are.
        served: The store.
        on_end: Called when the run is to end: with an error, or with None when there is nothing left to do.
        on_ready: Called whenever a runner became ready and no worker waits for its first.
        awaits_work: Whether somebody here may enqueue more.
    """

    def __init__(
        self,
        plan: RunnerPlan,
        served: "Served",
        *,
        on_end: Callable[[BaseException | None], None],
        on_ready: Callable[[], None] = lambda: None,
        awaits_work: bool = True,
    ) -> None:
        self._plan, self._served = plan, served
        self._on_end, self._on_ready, self._awaits_work = on_end, on_ready, awaits_work
        highest = plan.count if plan.bounds is None else plan.bounds.high
        self._workers = [_Worker(number, Restarts(number)) for number in range(highest)]
        # A start costs CPU: with more of them than cores at once, the first rollout waits for all.
        self._starts = asyncio.Semaphore(plan.simultaneous_starts or max(2, os.cpu_count() or 1))
        self._stopping = asyncio.Event()
        self._watches: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.add(self._plan.count)
        if self._plan.bounds is not None:
            self._watch(Scaler(self, self._plan.bounds, self._served.connect).run())

    async def stop(self) -> None:
        """End all runners in order, side by side."""
        self._stopping.set()
        await asyncio.gather(*(each.handle.stop() for each in self._workers if each.handle is not None))
        for watch in self._watches:
            watch.cancel()
        keeping = (each.keeping for each in self._workers if each.keeping is not None)
        await asyncio.gather(*keeping, *self._watches, return_exceptions=True)

    def kill(self) -> None:
        self._stopping.set()
        for worker in self._workers:
            if worker.handle is not None:
                worker.handle.kill()

    # -- how many there are --------------------------------------------------------------------------

    def _present(self) -> list[_Worker]:
        return [each for each in self._workers if each.keeping is not None and not each.is_leaving]

    def count(self) -> int:
        """Return how many runners are at work or about to be."""
        return len(self._present())

    def at_work(self) -> dict[int, str]:
        """Return the names in the store of those that are ready, by their numbers."""
        return {each.worker_id: each.name for each in self._present() if each.name is not None}

    def starting(self) -> set[int]:
        """Return the numbers of those that are not ready yet."""
        return {each.worker_id for each in self._present() if each.name is None}

    def add(self, count: int) -> int:
        """Start up to `count` more runners and return how many were started."""
        free = [each for each in self._workers if each.keeping is None and not each.is_done]
        chosen = [] if self._stopping.is_set() else free[:count]
        for worker in chosen:
            worker.keeping = asyncio.create_task(self._keep(worker))
            worker.keeping.add_done_callback(functools.partial(self._has_left, worker))
        return len(chosen)

    def let_go(self, worker_ids: Sequence[int]) -> None:
        """Have them finish what they have in hand, and end."""
        for worker in (self._workers[number] for number in worker_ids):
            worker.is_leaving = True
            if worker.handle is not None:
                worker.handle.ask_to_stop()

    def _has_left(self, worker: _Worker, keeping: "asyncio.Task[None]") -> None:
        worker.keeping, worker.is_leaving = None, False
        self._end_on_error(keeping)
        if all(each.is_done for each in self._workers) and not self._stopping.is_set():
            self._watch(self._look_for_work())

    def _watch(self, work: Coroutine[Any, Any, None]) -> None:
        watch = asyncio.create_task(work)
        watch.add_done_callback(self._end_on_error)
        self._watches.append(watch)

    def _end_on_error(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._stopping.is_set():
            self._on_end(error)

    async def _look_for_work(self) -> None:
        """Every worker is done: an error while rollouts wait for one."""
        while self._awaits_work and not self._stopping.is_set():
            async with self._served.connect() as store:
                waiting = await count_waiting(store)
            if waiting and not self._stopping.is_set():
                raise RunnersExhaustedError(
                    f"all {len(self._workers)} runners have reached their max_rollouts, and {waiting} rollouts are "
                    "still queued: raise max_rollouts or n_runners, or omit max_rollouts"
                )
            await happens(self._stopping, LOOK_SECONDS)
        if not self._awaits_work:
            self._on_end(None)

    # -- one of them ---------------------------------------------------------------------------------

    async def _keep(self, worker: _Worker) -> None:
        """Restart the runner of a worker until its work is done or the run ends."""
        while not self._stopping.is_set() and not worker.is_leaving:
            ended = await self._run(worker)
            if ended is None:
                return
            if ended.kind == "done" or self._served.ends_work(ended):
                worker.is_done = True
                return
            lost = await self._mark_lost(worker, ended)
            if ended.kind == "stopped" or self._stopping.is_set():
                worker.restarts.finished += ended.finished
                return
            pause = worker.restarts.after(ended, lost=lost)
            if ended.kind == "saturated":
                log.warning("runner %d has too many hung agent threads; restarting it", worker.worker_id)
            else:
                words = "runner %d exited (%s); restarting it in %.1f s%s"
                log.warning(words, worker.worker_id, ended.reason, pause, ended.traceback)
            await happens(self._stopping, pause)

    async def _run(self, worker: _Worker) -> RunnerExit | None:
        """Run one runner of the worker to its exit; None if the run ends before it starts."""
        with contextlib.ExitStack() as turn:  # to start: over when the runner is ready, or has ended before
            await self._starts.acquire()
            turn.callback(self._starts.release)
            if self._stopping.is_set() or worker.is_leaving:
                return None

            def note_ready(name: str) -> None:
                turn.close()
                worker.name, worker.was_ready = name, True
                if sum(each.was_ready for each in self._workers) >= self._plan.count:
                    self._on_ready()

            worker.handle = self._plan.start(worker.worker_id, worker.restarts.finished, note_ready)
            try:
                return await worker.handle.run()
            finally:
                worker.handle = worker.name = None

    async def _mark_lost(self, worker: _Worker, ended: RunnerExit) -> int:
        """Give up the attempts of a dead runner, and return how many there were."""
        if not ended.leaves_work or ended.worker_name is None:
            return 0
        lost: list[str] = []
        marking = asyncio.create_task(self._mark(worker.worker_id, ended, lost))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait([marking, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        try:
            await asyncio.wait_for(marking, MARK_SECONDS)  # a run that ends does not wait for an absent store
        except Exception as error:  # the lease of each attempt decides then
            is_expected = isinstance(error, StoreError | InvalidInputError | TimeoutError)
            reason = error if str(error) else "the store cannot be reached"
            words = "could not mark the rollouts of lost runner %d: %s"
            log.warning(words, worker.worker_id, reason, exc_info=not is_expected)
        return len(lost)

    async def _mark(self, worker_id: int, ended: RunnerExit, lost: list[str]) -> None:
        async with self._served.connect() as store:
            for attempt in await _open_attempts(store):
                if attempt.worker_id == ended.worker_name:
                    lost.append(attempt.rollout_id)
                    await _lose(store, attempt, f"its runner {ended.place} exited: {ended.reason}")
                    log.warning("rollout %s was lost with runner %d", attempt.rollout_id, worker_id)


class Restarts:
    """When the runner of a worker is restarted, and when the run gives up."""

    def __init__(self, worker_id: int) -> None:
        self._worker_id = worker_id
        self.finished = 0
        """The rollouts that all runners of the worker have finished."""
        self._failed_starts = 0
        self._deaths: list[str] = []
        self._pauses = Backoff(FIRST_PAUSE_SECONDS, maximum=LONGEST_PAUSE_SECONDS)

    def after(self, ended: RunnerExit, *, lost: int = 0) -> float:
        """Return the seconds to wait before the next runner starts.

        `lost` is the number of attempts that ended with the runner: with any, it had got past its start.

        Raises:
            RunError: There should be no next one.
        """
        self.finished += ended.finished
        if ended.finished:
            self._failed_starts, self._deaths = 0, []
            self._pauses.reset()
        if ended.kind == "saturated":
            return 0.0
        self._deaths.append(ended.reason)
        is_start = not ended.finished and not lost and (ended.kind == "failed" or ended.worker_name is None)
        self._failed_starts = self._failed_starts + 1 if is_start else 0
        if self._failed_starts >= MAX_STARTS:
            raise RunnerStartError(
                f"runner {self._worker_id} failed to start {MAX_STARTS} times in a row; last: {ended.reason}"
                f"{ended.traceback}"
            )
        if len(self._deaths) > MAX_DEATHS:
            raise RunError(
                f"runner {self._worker_id} exited {len(self._deaths)} times without finishing a rollout in between; "
                f"last: {', '.join(self._deaths[-3:])}{ended.traceback}"
            )
        return next(self._pauses)


# -- scaling -----------------------------------------------------------------------------------------


async def count_waiting(store: LightningStore) -> int:
    """Return how many rollouts are queued; statistics of a large store cost more."""
    found = await store.query_rollouts(status_in=("queuing", "requeuing"), limit=1)
    return len(found) if isinstance(found, list) else found.total  # a user's own store may answer with a list


LastWork = tuple[str, float | None] | None
"""The name of a runner without work, and when it last had work; None if it was never ready."""


class Scaler:
    """Looks at the queue now and then, and changes the number of runners within the bounds."""

    def __init__(self, supervisor: Supervisor, bounds: Bounds, connect: Connect) -> None:
        self._supervisor, self._bounds, self._connect = supervisor, bounds, connect
        self._idle: dict[int, tuple[LastWork, float]] = {}  # with when they were first seen so

    async def run(self) -> None:
        """Scale until it is cancelled."""
        async with self._connect() as store:
            while True:
                try:
                    await self._look(store)
                except (StoreError, InvalidInputError) as error:
                    log.warning("keeping the current number of runners: %s", error)
                await asyncio.sleep(SCALE_SECONDS)

    async def _look(self, store: LightningStore) -> None:
        if waiting := await count_waiting(store):
            self._idle.clear()
            self._grow(waiting)
        elif self._supervisor.count() > self._bounds.low:
            await self._shrink(store)

    def _grow(self, waiting: int) -> None:
        """Have one runner for every `slots` rollouts that wait, less those that are on their way."""
        count, most = self._supervisor.count(), self._bounds.high
        asked_for = -(-waiting // self._bounds.slots) - len(self._supervisor.starting())
        if added := self._supervisor.add(max(min(asked_for, most - count), 0)):
            words = "%d rollouts are waiting: starting %d more runners (%d of at most %d)"
            log.info(words, waiting, added, count + added, most)

    async def _shrink(self, store: LightningStore) -> None:
        """Those that still wait for a place go first, then the last that came."""
        spare, starting = self._supervisor.count() - self._bounds.low, self._supervisor.starting()
        now, before = time.monotonic(), self._idle
        found: dict[int, LastWork] = {**dict.fromkeys(starting), **await self._without_work(store)}
        # Who has had no work in between has been idle since it was first seen.
        self._idle = {
            number: before[number] if number in before and before[number][0] == last else (last, now)
            for number, last in found.items()
        }
        free = [number for number, (_, since) in self._idle.items() if since <= now - self._bounds.idle_seconds]
        going = sorted(free, key=lambda number: (number in starting, number), reverse=True)[:spare]
        if going:
            log.info("stopping %d runners that have been idle for %g s", len(going), self._bounds.idle_seconds)
            self._supervisor.let_go(going)

    async def _without_work(self, store: LightningStore) -> dict[int, LastWork]:
        names = self._supervisor.at_work()
        workers = await asyncio.gather(*(store.get_worker_by_id(name) for name in names.values()))
        return {
            number: (name, None if worker is None else worker.last_busy_time)
            for (number, name), worker in zip(names.items(), workers, strict=True)
            if worker is None or worker.status != "busy"
        }


# -- attempts whose worker is dead ---------------------------------------------------------------------


async def lose_those_of_the_dead(store: LightningStore) -> int:
    """Give up the attempts of processes of this machine that are gone, and return how many there were.

    For a run that is resumed after it was killed: its runners died with it.
    """
    count = 0
    for attempt in await _open_attempts(store):
        worker = None if attempt.worker_id is None else await store.get_worker_by_id(attempt.worker_id)
        if worker is not None and _is_dead(worker):
            await _lose(store, attempt, f"its worker {worker.worker_id} was gone when the run was resumed")
            count += 1
    if count:
        log.info("retrying %d rollouts whose workers are gone", count)
    return count


async def _open_attempts(store: LightningStore) -> list[Attempt]:
    """Return the attempts that somebody works on, or is believed to."""
    rollouts = await store.query_rollouts(status_in=["preparing", "running"])
    latest = await asyncio.gather(*(store.get_latest_attempt(rollout.rollout_id) for rollout in rollouts))
    # One whose lease has expired is waited for once more, unless its worker is known to be dead.
    return [each for each in latest if each is not None and (each.end_time is None or each.status == "unresponsive")]


async def _lose(store: LightningStore, attempt: Attempt, error: str) -> None:
    """Suspend the attempt. Where nobody will try again the rollout fails, as its dead runner cannot come back."""
    rollout_id, attempt_id = attempt.rollout_id, attempt.attempt_id
    metadata = {**(attempt.metadata or {}), "error_type": "RunnerDied", "error": error}
    await store.update_attempt(rollout_id, attempt_id, status="unresponsive", metadata=metadata)
    rollout = await store.get_rollout_by_id(rollout_id)
    latest = await store.get_latest_attempt(rollout_id)
    # A rollout that was queued may have been claimed again already: then another attempt is the latest.
    is_ours = latest is not None and latest.attempt_id == attempt_id and latest.status == "unresponsive"
    if is_ours and rollout is not None and rollout.status in ("preparing", "running"):
        with contextlib.suppress(FinishedError):  # somebody has ended it meanwhile
            await store.update_rollout(rollout_id, status="failed")


def _is_dead(worker: Worker) -> bool:
    """Whether it was a process of this machine that is gone. The number of a dead one may be another's by now: then it
    is believed to live, and its lease decides."""
    about = worker.heartbeat_stats or {}
    pid = about.get("pid")
    return about.get("host") == socket.gethostname() and isinstance(pid, int) and not is_alive(pid)
