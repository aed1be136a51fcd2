"""A runner in a thread of this process."""

import asyncio
import contextlib
import logging
import threading
import traceback

from ..runner import MainThread, RunnerWornOut, agents_on, worker_name
from .base import RunnerBundle
from .events import RunnerEvent
from .interrupts import CancellableCall
from .supervisor import Connect, ExitKind, OnReady, RunnerExit, StartRunner

log = logging.getLogger(__name__)


def in_threads(
    bundle: RunnerBundle, connect: Connect, graceful_delay: float, join_timeout: float, place: MainThread | None
) -> StartRunner:
    """Return how the runners of a run start as threads of this process."""

    def start(worker_id: int, finished_before: int, on_ready: OnReady) -> "RunnerThread":
        return RunnerThread(
            bundle,
            connect,
            worker_id,
            RunnerEvent(finished_before),
            on_ready=on_ready,
            graceful_delay=graceful_delay,
            join_timeout=join_timeout,
            place=place,
        )

    return start


class RunnerThread:
    """The handle of one runner in a thread with its own event loop. `place` is where its agents run, if not there."""

    def __init__(
        self,
        bundle: RunnerBundle,
        connect: Connect,
        worker_id: int,
        event: RunnerEvent,
        *,
        graceful_delay: float,
        join_timeout: float,
        on_ready: OnReady = lambda _: None,
        place: MainThread | None = None,
    ) -> None:
        self._bundle, self._connect, self._worker_id, self._event = bundle, connect, worker_id, event
        self._graceful_delay, self._join_timeout, self._place = graceful_delay, join_timeout, place
        self._on_ready, self._call = on_ready, CancellableCall(self._work)
        self._supervising = asyncio.get_running_loop()
        self._exit: asyncio.Future[RunnerExit] = self._supervising.create_future()
        self._is_asked = False

    async def run(self) -> RunnerExit:
        threading.Thread(target=self._run, name=f"sharpen-runner-{self._worker_id}", daemon=True).start()
        self._on_ready(worker_name(self._worker_id))
        return await self._exit

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            with agents_on(self._place) if self._place is not None else contextlib.nullcontext():
                self._call.run()
            kind: ExitKind = "stopped" if self._is_asked else "done"
        except RunnerWornOut:
            kind = "saturated"
        except asyncio.CancelledError as error:
            kind, failure = ("stopped", None) if self._call.was_cancelled else ("failed", error)
        except BaseException as error:  # noqa: BLE001 - the supervisor decides what it means
            kind, failure = "failed", error
        with contextlib.suppress(RuntimeError):  # abandoned: nobody waits any more
            self._supervising.call_soon_threadsafe(self._settle, kind, failure)

    async def _work(self) -> None:
        async with self._connect() as store:
            await self._bundle(store, self._worker_id, self._event)

    def _settle(self, kind: ExitKind, failure: BaseException | None = None, reason: str = "") -> None:
        if self._exit.done():
            return
        words = "" if failure is None else "".join(traceback.format_exception(failure))
        self._exit.set_result(
            RunnerExit(
                kind=kind,
                finished=self._event.count,
                is_ready=True,
                worker_name=worker_name(self._worker_id),
                leaves_work=kind not in ("done", "stopped"),
                reason=reason or (words.strip().splitlines() or [kind])[-1],
                error_type="" if failure is None else type(failure).__name__,
                traceback=words,
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
