"""The claim loop of a runner, from its first claim to its last report.

Free slots are filled with one claim. A slot is free again when its agent has ended: the outcome is on its way while the
next agent runs. A stop is noticed at once, also in the middle of a long poll. An agent that raises while its runner is
being stopped may have lost what it needs, so its rollout goes back to the queue.
"""

import asyncio
import logging
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ..types import AttemptedRollout
from .attempt import RunningAttempt, handing_back
from .threads import RunnerWornOut

if TYPE_CHECKING:
    from .base import Runner

log = logging.getLogger(__name__)
MAX_REPORTS = 64  # outcomes on their way; a store that is slower than this holds up the next claim
LOOK_SECONDS = 0.2


class StopEvent(Protocol):
    """What asks a runner to stop.

    It may also offer `finished(count)`, `finished_before`, `stop_requested()` (whether the stop is on its way) and
    `alive(lease_seconds)`, which the heartbeat thread calls every second.
    """

    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> object: ...


class ClaimLoop:
    """Claims and runs rollouts until it is stopped."""

    def __init__(self, runner: "Runner[Any]", event: StopEvent | None) -> None:
        self._runner, self._event, self._store = runner, event, runner.get_store()
        self._loop = asyncio.get_running_loop()
        self._agents: dict[asyncio.Task[None], RunningAttempt] = {}
        self._reports: set[asyncio.Task[None]] = set()
        self._change = asyncio.Event()  # a slot or a report is free, or the loop is stopped
        self._claim: asyncio.Future[list[AttemptedRollout]] | None = None
        self._is_stopped = self._is_cancelled = self._is_over = False
        self._had_work = self._lost_a_claim = False
        self._left = math.inf
        if runner.max_rollouts is not None:
            self._left = runner.max_rollouts - getattr(event, "finished_before", 0)
        self._expect_claim: Callable[[], None] | None = getattr(runner.store, "expect_claim", None)
        self._report_count: Callable[[int], None] | None = getattr(event, "finished", None)
        self._stop_requested: Callable[[], bool] = getattr(event, "stop_requested", lambda: False)

    async def run(self) -> None:
        """Work until the event is set or `max_rollouts` is reached, and finish what runs by then."""
        if self._event is not None:
            threading.Thread(target=self._watch, args=(self._event,), name="sharpen-stop", daemon=True).start()
        try:
            await self._fill_slots()
            while self._agents or self._reports:
                await asyncio.wait({*self._agents, *self._reports}, return_when=asyncio.FIRST_COMPLETED)
            if self._lost_a_claim:
                await self._return_orphans()
        except asyncio.CancelledError:
            await asyncio.shield(self._hand_all_back())
            raise
        finally:
            self._is_over = True
        if self._is_saturated:
            raise RunnerWornOut(f"{self._runner.abandoned} agent threads hang although their rollouts have ended")

    # -- claiming ------------------------------------------------------------------------------------

    async def _fill_slots(self) -> None:
        while self._continues:
            free = self._runner.concurrency - len(self._agents)
            if free <= 0 or len(self._reports) >= MAX_REPORTS:
                self._change.clear()
                await self._change.wait()
                continue
            for rollout in await self._claim_some(int(min(free, self._left))):
                self._left -= 1
                attempt = self._runner.take(rollout)
                self._agents[self._loop.create_task(self._run_attempt(attempt))] = attempt

    async def _claim_some(self, limit: int) -> list[AttemptedRollout]:
        """Claim up to `limit` rollouts: after work at once, as there may be more, otherwise by a long poll, which a
        stop cuts off."""
        wait_seconds = 0 if self._had_work else self._runner.poll_interval
        try:
            claim = self._store.dequeue_many_rollouts(
                limit=limit, worker_id=self._runner.worker_name, wait_seconds=wait_seconds
            )
            self._claim = asyncio.ensure_future(claim)
            claimed = await self._claim
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._is_stopped or (task is not None and task.cancelling()):
                raise
            self._lost_a_claim = True
            return []
        except Exception as error:  # noqa: BLE001 - a store of the user's own may raise anything
            log.warning("could not claim work; retrying: %s", error)
            await asyncio.sleep(1)
            return []
        finally:
            self._claim = None
        self._had_work = bool(claimed)
        return claimed

    async def _return_orphans(self) -> None:
        """A claim that was cut off may have succeeded all the same: what nobody runs goes back to the queue."""
        async with handing_back(self._store, "rollouts claimed during shutdown"):
            for rollout in await self._store.query_rollouts(status_in=["preparing"]):
                attempt = await self._store.get_latest_attempt(rollout.rollout_id)
                if attempt is not None and attempt.worker_id == self._runner.worker_name:
                    await self._store.update_rollout(rollout.rollout_id, status="requeuing")

    # -- attempts ------------------------------------------------------------------------------------

    async def _run_attempt(self, attempt: RunningAttempt) -> None:
        """Run an attempt from its agent to its report; its slot is free as soon as the agent has ended."""
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._runner.attend(attempt)
        finally:
            del self._agents[task]
            self._change.set()
        self._reports.add(task)
        try:
            if self._is_cut_short(attempt):
                await self._runner.give_up(attempt)
                return
            if self._expect_claim is not None and self._continues:
                self._expect_claim()  # the slot is filled again at once
            await self._runner.report(attempt)
        finally:
            self._reports.discard(task)
            self._change.set()
        if self._report_count is not None:
            self._report_count(self._runner.finished)

    def _is_cut_short(self, attempt: RunningAttempt) -> bool:
        """Whether the agent failed in the middle of a stop."""
        return attempt.outcome == "failed" and not attempt.is_unwanted and (self._is_ending or self._stop_requested())

    # -- stopping ------------------------------------------------------------------------------------

    @property
    def _is_saturated(self) -> bool:
        return self._runner.abandoned > self._runner.max_abandoned

    @property
    def _is_ending(self) -> bool:
        return self._is_stopped or self._is_cancelled or (self._event is not None and self._event.is_set())

    @property
    def _continues(self) -> bool:
        return not self._is_ending and self._left > 0 and not self._is_saturated

    def _watch(self, event: StopEvent) -> None:
        """Wait for the event on a thread, since it may be set from any thread."""
        while not self._is_over and not event.is_set():
            event.wait(LOOK_SECONDS)
        if not self._is_over:
            try:
                self._loop.call_soon_threadsafe(self._stop)
            except RuntimeError:  # the loop was closed in the meantime
                log.debug("the runner stopped before it was asked to")

    def _stop(self) -> None:
        self._is_stopped = True
        self._change.set()
        if self._claim is not None and not self._had_work:  # a long poll
            self._claim.cancel()

    async def _hand_all_back(self) -> None:
        """Stop the agents and hand their rollouts back; reports that are on their way arrive."""
        self._is_cancelled = True
        running = dict(self._agents)
        for task in running:
            task.cancel()
        if running or self._reports:
            await asyncio.wait({*running, *self._reports})
        await asyncio.gather(*(self._runner.give_up(each) for task, each in running.items() if task.cancelled()))
        await self._return_orphans()
