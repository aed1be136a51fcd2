"""A life of a runner in a thread of this process."""

import asyncio
import contextlib
import logging
import threading
import traceback
from collections.abc import Callable

from ..runner import MainThread, RunnerWornOut, agents_on, worker_name
from ..store import LightningStore
from .base import RunnerBundle
from .events import RunnerEvent
from .lives import Begin, End, How, Life, OnReady
from .loops import run_to_end

log = logging.getLogger(__name__)


def in_threads(
    bundle: RunnerBundle,
    open_store: Callable[[], contextlib.AbstractAsyncContextManager[LightningStore]],
    *,
    graceful_delay: float,
    join_timeout: float,
    place: MainThread | None,
) -> Begin:
    """How the runners of a run begin as threads of this process."""

    def begin(worker_id: int, finished_before: int, on_ready: OnReady) -> Life:
        return RunnerThread(
            bundle,
            open_store,
            worker_id,
            finished_before,
            on_ready=on_ready,
            graceful_delay=graceful_delay,
            join_timeout=join_timeout,
            place=place,
        )

    return begin


class RunnerThread:
    """One runner in a thread with a loop of its own. `place` is where its agents run, if not there. `tell` hears, in
    its thread, how many rollouts it has finished."""

    def __init__(
        self,
        bundle: RunnerBundle,
        open_store: Callable[[], contextlib.AbstractAsyncContextManager[LightningStore]],
        worker_id: int,
        finished_before: int,
        *,
        on_ready: OnReady,
        graceful_delay: float,
        join_timeout: float,
        place: MainThread | None = None,
        tell: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._bundle, self._open_store, self._worker_id = bundle, open_store, worker_id
        self._graceful_delay, self._join_timeout, self._place = graceful_delay, join_timeout, place
        self._event, self._on_ready = RunnerEvent(finished_before, tell=tell), on_ready
        self._supervising = asyncio.get_running_loop()
        self._ended: asyncio.Future[End] = self._supervising.create_future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_asked = self._is_cancelled = False

    async def live(self) -> End:
        threading.Thread(target=self._run, name=f"sharpen-runner-{self._worker_id}", daemon=True).start()
        self._on_ready(worker_name(self._worker_id))
        return await self._ended

    def _run(self) -> None:
        how: How = "died"
        reason = words = kind = ""
        try:
            with agents_on(self._place) if self._place is not None else contextlib.nullcontext():
                run_to_end(self._work())
            how = "stopped" if self._is_asked else "done"
        except RunnerWornOut:
            how = "worn_out"
        except asyncio.CancelledError:
            how, reason = "stopped" if self._is_cancelled else "failed", "cancelled"
        except BaseException as error:  # noqa: BLE001 - the supervisor decides what it means
            how, kind, words = "failed", type(error).__name__, traceback.format_exc()
            reason = words.strip().splitlines()[-1]
        name = worker_name(self._worker_id)
        leaves_work = how not in ("done", "stopped")
        end = End(how, self._event.count, True, name, leaves_work, reason or how, kind, words, "thread")
        with contextlib.suppress(RuntimeError):  # given up: nobody waits any more
            self._supervising.call_soon_threadsafe(self._settle, end)

    async def _work(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._is_cancelled:
            return
        async with self._open_store() as store:
            await self._bundle(store, self._worker_id, self._event)

    def _settle(self, end: End) -> None:
        if not self._ended.done():
            self._ended.set_result(end)

    # -- the end -------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        self._is_asked = True
        self._event.set()

    async def end_in_order(self) -> None:
        self.ask_to_stop()
        if await self._has_ended_within(self._graceful_delay):
            return
        log.warning("runner %d did not stop within %g s; cancelling it", self._worker_id, self._graceful_delay)
        self._cancel()
        if not await self._has_ended_within(self._join_timeout):
            self._give_up(f"it did not stop within {self._join_timeout:g} s of being cancelled")

    async def _has_ended_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self._ended], timeout=seconds)
        return bool(done)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._loop is not None and self._task is not None:
            with contextlib.suppress(RuntimeError):  # its loop has closed
                self._loop.call_soon_threadsafe(self._task.cancel)

    def _give_up(self, reason: str) -> None:
        log.error("abandoning the thread of runner %d: %s", self._worker_id, reason)
        name = worker_name(self._worker_id)
        self._settle(End("died", self._event.count, True, name, True, reason, place="thread"))

    def kill(self) -> None:
        self.ask_to_stop()
        self._cancel()
        self._supervising.call_later(1.0, self._give_up_late)

    def _give_up_late(self) -> None:
        if not self._ended.done():
            self._give_up("it did not stop when the run was aborted")
