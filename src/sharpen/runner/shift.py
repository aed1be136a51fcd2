"""A shift: one stretch of work of a runner, from the first claim to the last report.

Slots that are free are filled with one claim. A slot is free again when its agent has ended: the outcome is on its
way while the next agent runs. A stop is noticed at once, also in the middle of a long poll. An agent that raises while
its runner is being stopped may have lost what it needs: its rollout goes back to the queue.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import SharpenError
from ..types import AttemptedRollout
from .attempts import Work, hand_back_seconds, why_not
from .threads import RunnerWornOut

if TYPE_CHECKING:
    from .base import Runner

log = logging.getLogger(__name__)
MAX_REPORTS = 64  # outcomes on their way; a store that is slower than this holds up the next claim


class StopEvent(Protocol):
    """What asks a runner to stop. It may also offer `finished(count)`, `finished_before`, `is_told_off()` (whether the
    stop is on its way) and `alive(lease_seconds)`, which the heartbeat thread calls every second."""

    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> object: ...


class Shift:
    """Claims and runs rollouts until it is told to stop."""

    def __init__(self, runner: "Runner[Any]", event: StopEvent | None) -> None:
        self._runner, self._event = runner, event
        self._loop = asyncio.get_running_loop()
        self._change = asyncio.Event()
        self._claim: asyncio.Task[list[AttemptedRollout]] | None = None
        self._is_stopped = self._is_given_up = False
        self._had_work = False
        self._lost_a_claim = False
        self._expect_claim: Callable[[], None] | None = getattr(runner.store, "expect_claim", None)
        self._tell: Callable[[int], None] | None = getattr(event, "finished", None)
        self._is_told_off: Callable[[], bool] = getattr(event, "is_told_off", lambda: False)
        self._agents: dict[asyncio.Task[None], Work] = {}
        self._reports: set[asyncio.Task[None]] = set()
        self._left = runner.max_rollouts
        if self._left is not None:
            self._left -= getattr(event, "finished_before", 0)

    async def work(self) -> None:
        """Until the event is set or `max_rollouts` is reached; what is in hand is finished first."""
        watch = None if self._event is None else _Watch(self._event, self._loop, self._stop)
        try:
            await self._fill_slots()
            await self._finish()
        except asyncio.CancelledError:
            await asyncio.shield(self._give_up())
            raise
        finally:
            if watch is not None:
                watch.end()
        if self._runner.abandoned > self._runner.max_abandoned:
            raise RunnerWornOut(f"{self._runner.abandoned} threads hang in agents that nobody waits for")

    def _stop(self) -> None:
        self._is_stopped = True
        self._change.set()
        if self._claim is not None:
            self._claim.cancel()

    @property
    def _is_ending(self) -> bool:
        return self._is_stopped or self._is_given_up or (self._event is not None and self._event.is_set())

    @property
    def _goes_on(self) -> bool:
        if self._is_ending:
            return False
        return (self._left is None or self._left > 0) and self._runner.abandoned <= self._runner.max_abandoned

    async def _fill_slots(self) -> None:
        while self._goes_on:
            free = self._runner.concurrency - len(self._agents)
            if free <= 0 or len(self._reports) >= MAX_REPORTS:
                self._change.clear()
                await self._change.wait()
                continue
            for rollout in await self._claim_some(free if self._left is None else min(free, self._left)):
                self._start(rollout)

    async def _claim_some(self, limit: int) -> list[AttemptedRollout]:
        try:
            if self._had_work:  # and so there may be more: ask without the cost of waiting
                claimed = await self._dequeue(limit, wait_seconds=0)
                self._had_work = bool(claimed)
                return claimed
            claimed = await self._wait_for_work(limit)
        except Exception as error:  # noqa: BLE001 - a store of the user's own may raise anything
            log.warning("no work could be claimed, trying again: %s", error)
            await asyncio.sleep(1)
            return []
        self._had_work = bool(claimed)
        return claimed

    async def _wait_for_work(self, limit: int) -> list[AttemptedRollout]:
        """A long poll, which a stop cuts off."""
        self._claim = asyncio.create_task(self._dequeue(limit, wait_seconds=self._runner.poll_interval))
        try:
            return await self._claim
        except asyncio.CancelledError:
            if not self._is_stopped or _is_cancelled():
                raise
            self._lost_a_claim = True
            return []
        finally:
            self._claim = None

    async def _dequeue(self, limit: int, *, wait_seconds: float) -> list[AttemptedRollout]:
        runner = self._runner
        return await runner.open_store.dequeue_many_rollouts(
            limit=limit, worker_id=runner.worker_name, wait_seconds=wait_seconds
        )

    def _start(self, rollout: AttemptedRollout) -> None:
        if self._left is not None:
            self._left -= 1
        work = self._runner.take(rollout)
        task = self._loop.create_task(self._run(work))
        self._agents[task] = work

    async def _run(self, work: Work) -> None:
        """An attempt from its agent to its report; its slot is free as soon as the agent has ended."""
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._runner.attend(work)
        finally:
            del self._agents[task]
            self._change.set()
        self._reports.add(task)
        try:
            if self._is_cut_short(work):
                await self._runner.give_up(work)
                return
            if self._expect_claim is not None and self._goes_on:
                self._expect_claim()  # the slot is filled again at once
            await self._runner.report(work)
        finally:
            self._reports.discard(task)
            self._change.set()
        if self._tell is not None:
            self._tell(self._runner.finished)

    def _is_cut_short(self, work: Work) -> bool:
        """Whether the agent failed in the middle of a stop."""
        return work.outcome == "failed" and not work.is_unwanted and (self._is_ending or self._is_told_off())

    async def _finish(self) -> None:
        while self._agents or self._reports:
            await asyncio.wait({*self._agents, *self._reports}, return_when=asyncio.FIRST_COMPLETED)
        if self._lost_a_claim:
            await self._return_orphans()

    async def _give_up(self) -> None:
        """Stop the agents and hand their rollouts back; reports that are on their way arrive."""
        self._is_given_up = True
        running = dict(self._agents)
        for task in running:
            task.cancel()
        if running or self._reports:
            await asyncio.wait({*running, *self._reports})
        await asyncio.gather(*(self._runner.give_up(work) for task, work in running.items() if task.cancelled()))
        await self._return_orphans()

    async def _return_orphans(self) -> None:
        """A claim that was cut off may have succeeded all the same: what nobody runs goes back to the queue."""
        runner, store = self._runner, self._runner.open_store
        try:
            async with asyncio.timeout(hand_back_seconds(store)):
                for rollout in await store.query_rollouts(status_in=["preparing"]):
                    attempt = await store.get_latest_attempt(rollout.rollout_id)
                    if attempt is not None and attempt.worker_id == runner.worker_name:
                        await store.update_rollout(rollout.rollout_id, status="requeuing")
        except (SharpenError, TimeoutError) as error:
            log.warning("rollouts that were claimed in the last moment could not be handed back: %s", why_not(error))


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class _Watch:
    """Waits for the event on a thread, since it may be set from any thread."""

    def __init__(self, event: StopEvent, loop: asyncio.AbstractEventLoop, stop: Any) -> None:
        self._event, self._loop, self._stop = event, loop, stop
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="sharpen-stop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            self._event.wait(0.2)
            if self._event.is_set():
                break
        if not self._is_over:
            try:
                self._loop.call_soon_threadsafe(self._stop)
            except RuntimeError:  # the loop was closed in this very moment
                log.debug("the runner ended before it was told to stop")

    def end(self) -> None:
        self._is_over = True
