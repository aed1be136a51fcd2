"""A runner in a thread of this process."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable

from ..process.child import Failure
from ..runner import MainThread, RunnerWornOut, agents_on, worker_name
from .base import Connect, RunnerBundle
from .events import RunnerEvent
from .interrupts import CancellableCall
from .supervisor import ExitKind, OnReady, RunnerExit

log = logging.getLogger(__name__)


class RunnerThread:
    """The handle of one runner in a thread with its own event loop. `place` is where its agents run, if not there;
    `on_finished` is called there with the count of its finished rollouts whenever that grows."""

    def __init__(
        self,
        bundle: RunnerBundle,
        connect: Connect,
        graceful_delay: float,
        join_timeout: float,
        place: MainThread | None,
        worker_id: int,
        finished_before: int,
        on_ready: OnReady,
        on_finished: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._worker_id, self._on_ready, self._place = worker_id, on_ready, place
        self._graceful_delay, self._join_timeout = graceful_delay, join_timeout
        self._event = RunnerEvent(finished_before, on_finished=on_finished)
        self._call = CancellableCall(connect, lambda store: bundle(store, worker_id, self._event))
        self._supervising = asyncio.get_running_loop()
        self._exit: asyncio.Future[RunnerExit] = self._supervising.create_future()
        self._is_asked = False

    async def run(self) -> RunnerExit:
        threading.Thread(target=self._run, name=f"sharpen-runner-{self._worker_id}", daemon=True).start()
        self._on_ready(worker_name(self._worker_id))
        return await self._exit

    def _run(self) -> None:
        with agents_on(self._place) if self._place is not None else contextlib.nullcontext():
            self._call.run()
        error = self._call.error
        kind: ExitKind = "stopped" if self._is_asked else "done"
        if error is not None:
            kind = "saturated" if isinstance(error, RunnerWornOut) else "failed"
        with contextlib.suppress(RuntimeError):  # abandoned: nobody waits any more
            self._supervising.call_soon_threadsafe(self._settle, kind, error)

    def _settle(self, kind: ExitKind, error: BaseException | None = None, reason: str = "") -> None:
        if self._exit.done():
            return
        failure = None if error is None else Failure.of(error)
        self._exit.set_result(
            RunnerExit(
                kind,
                finished=self._event.count,
                worker_name=worker_name(self._worker_id),
                leaves_work=kind not in ("done", "stopped"),
                reason=reason or (kind if failure is None else failure.last_line),
                failure=failure,
                place="thread",
            )
        )

    # -- the end -------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        self._is_asked = True
        self._event.set()

    async def stop(self) -> None:
        self.ask_to_stop()
        if await self._has_ended_within(self._graceful_delay):
            return
        log.warning("runner %d did not stop within %g s; cancelling it", self._worker_id, self._graceful_delay)
        self._call.cancel()
        if not await self._has_ended_within(self._join_timeout):
            self._abandon(f"it did not stop within {self._join_timeout:g} s of being cancelled")

    async def _has_ended_within(self, seconds: float) -> bool:
        return bool((await asyncio.wait([self._exit], timeout=seconds))[0])

    def kill(self) -> None:
        self.ask_to_stop()
        self._call.cancel()
        self._supervising.call_later(1.0, self._abandon, "it did not stop when the run was aborted")

    def _abandon(self, reason: str) -> None:
        if not self._exit.done():
            log.error("abandoning the thread of runner %d: %s", self._worker_id, reason)
            self._settle("died", reason=reason)
