"""One execution of a strategy: an algorithm, its runners, the store between them, and one way to the end.

A separate thread supervises, so that a heavy learning step delays neither restarts nor signals. Whatever ends the run
(the algorithm, a failure, a signal, `stop`) goes the same way: the event is set, the algorithm is cancelled where it
still runs, runners are ended in order, and the store is closed last. After a stop the algorithm has time to see the
event and to return by itself before it is cancelled. It may also wait for the runners before it returns, with what
they need until then.
"""

import asyncio
import contextlib
import functools
import logging
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from ..runner import MainThread
from .base import AlgorithmBundle
from .events import CancellableCall, Reach, RunEvent, happens
from .interrupts import Interrupts
from .serving import Served
from .supervisor import RunnerPlan, Supervisor

log = logging.getLogger(__name__)
AHEAD_SECONDS = 1.5
TIDY_SECONDS = 1.0  # for the last steps of a thread whose work is done


class Execution:
    """One `execute` of a strategy, from its start to its end.

    The calling thread runs the algorithm. With a `place` it runs agents instead, and the algorithm runs beside it.

    Args:
        served: The store.
        runners: The runners; none where they are somebody else's.
        algorithm: The algorithm; None where it is somebody else's. One with `holds_runners` says when they may begin.
        stop_seconds: How long a stopped algorithm has to return by itself; none after a failure, nor where it has
            `cancelled_on_stop`.
        grace_seconds: How long a cancelled algorithm has to end.
        place: Where the calling thread runs agents.
        start_ahead: Called once all runners are at work, and at the end: starts what the next run needs.
        reach: How agents on other machines find a gateway of this run.
    """

    def __init__(
        self,
        served: Served,
        runners: RunnerPlan,
        algorithm: AlgorithmBundle | None,
        stop_seconds: float,
        grace_seconds: float,
        *,
        place: MainThread | None = None,
        start_ahead: Callable[[], None] = lambda: None,
        reach: Reach | None = None,
    ) -> None:
        self._served, self._place, self._start_ahead = served, place, start_ahead
        self._stop_seconds, self._grace_seconds = stop_seconds, grace_seconds
        self._runners_wanted = asyncio.Event()
        if not getattr(algorithm, "holds_runners", False):
            self._runners_wanted.set()
        start_runners = functools.partial(self._post, self._runners_wanted.set)
        self._event = RunEvent(lambda: self._post(self._algorithm_is_done), start_runners)
        self._event.reach = reach
        self._algorithm: CancellableCall | None = None
        self._is_cancelled_on_stop: bool = getattr(algorithm, "cancelled_on_stop", False)
        if algorithm is not None:
            self._algorithm = CancellableCall(served.connect, lambda store: algorithm(store, self._event))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._supervise, name="sharpen-supervisor", daemon=True)
        self._interrupts = Interrupts(lambda number, is_again: self._post(self._interrupt, number, is_again))
        ready, awaits_work = self._runners_are_ready, algorithm is not None
        self._supervisor = Supervisor(runners, served, on_end=self._end, on_ready=ready, awaits_work=awaits_work)
        self._ending, self._algorithm_ended, self._main_thread_free = (asyncio.Event() for _ in range(3))
        self._reason: BaseException | None = None
        self._is_killed = self._is_beside = self._is_algorithm_done = False
        self._ahead: asyncio.TimerHandle | None = None
        self._cancelling: asyncio.TimerHandle | None = None

    # -- the calling thread --------------------------------------------------------------------------

    def run(self) -> None:
        """Run to the end, and raise what ended the run if it was an error."""
        is_in_loop = _has_running_loop()
        # Then the algorithm runs on a thread beside the calling one, which can be abandoned.
        self._is_beside = self._place is not None or is_in_loop
        with self._interrupts:
            self._thread.start()
            try:
                with contextlib.suppress(KeyboardInterrupt):  # a repeated Ctrl-C broke in: it is raised again below
                    if is_in_loop:
                        self._work_in_another_thread()
                    else:
                        self._interrupts.may_raise = True
                        self._work()
            finally:
                self._interrupts.may_raise = False
                self.stop()
                while self._thread.is_alive():
                    with contextlib.suppress(KeyboardInterrupt):
                        self._thread.join()
        error = self._reason or (None if self._algorithm is None else self._algorithm.error)
        if error is not None:
            raise error

    def _work_in_another_thread(self) -> None:
        """A thread whose event loop is running lends its time, but cannot lend its loop."""
        thread = threading.Thread(target=self._work, name="sharpen-main", daemon=True)
        thread.start()
        self._thread.join()  # it ends when the other has ended or was abandoned
        thread.join(TIDY_SECONDS)

    def _work(self) -> None:
        if self._place is not None:
            self._run_agents(self._place)
        elif self._algorithm is not None:
            self._run_algorithm()
        else:
            self._thread.join()

    def _run_agents(self, place: MainThread) -> None:
        """Run agents here, and the algorithm beside."""
        if self._algorithm is not None:
            threading.Thread(target=self._run_algorithm, name="sharpen-algorithm", daemon=True).start()
        try:
            place.pump()
        except KeyboardInterrupt as error:
            self._post(self._end, error)
        finally:
            self._post(self._main_thread_free.set)

    def _run_algorithm(self) -> None:
        assert self._algorithm is not None
        try:
            self._algorithm.run()
        finally:
            self._post(self._algorithm_has_ended)

    # -- from any thread, also from a signal handler ---------------------------------------------------

    def stop(self) -> None:
        """End the run in order; `run` then returns."""
        self._post(self._end, None)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the run has ended
            self._loop.call_soon_threadsafe(call, *arguments)

    # -- the supervising thread ----------------------------------------------------------------------

    def _supervise(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._watch())
        except BaseException as error:  # noqa: BLE001 - raised by `run`, in the thread of its caller
            self._reason = self._reason or error
            if self._algorithm is not None:
                self._algorithm.cancel()
        finally:
            self._event.note_runners_ended()
            if self._place is not None:
                self._place.stop()

    async def _watch(self) -> None:
        try:
            await self._until_ending(self._served.open(self._end))
            if not self._ending.is_set():
                await self._keep_runners()
        except Exception as error:  # noqa: BLE001 - raised by `run`, in the thread of its caller
            self._end(error)
        try:
            await self._let_agents_end()
            self._event.note_runners_ended()
            await self._let_algorithm_end()
        finally:
            if self._is_killed:
                self._served.kill()
            await self._served.close()

    async def _until_ending(self, opening: Coroutine[Any, Any, object]) -> None:
        tasks = [asyncio.ensure_future(opening), asyncio.ensure_future(self._ending.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        (outcome, _) = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome

    async def _keep_runners(self) -> None:
        await self._until_ending(self._runners_wanted.wait())
        if not self._ending.is_set():
            self._supervisor.start()
        await self._ending.wait()
        if self._ahead is not None:
            self._ahead.cancel()
        if self._reason is None:  # a run that failed has no next one
            self._start_ahead()
        await self._supervisor.stop()

    def _runners_are_ready(self) -> None:
        """Start what the next run needs in a quiet moment, since it costs CPU."""
        if self._ahead is not None:
            self._ahead.cancel()
        if not self._ending.is_set():
            self._ahead = self._loop.call_later(AHEAD_SECONDS, self._start_ahead)

    async def _let_agents_end(self) -> None:
        """Break into an agent on the calling thread that nobody waits for any more."""
        if self._place is not None:
            self._place.stop()
            if self._is_killed or not await happens(self._main_thread_free, self._grace_seconds):
                self._interrupts.force()

    async def _let_algorithm_end(self) -> None:
        """The store stays open until the algorithm has ended, too."""
        if self._algorithm is None:
            return
        if self._cancelling is not None:
            await happens(self._algorithm_ended, max(self._cancelling.when() - self._loop.time(), 0))
        if await happens(self._algorithm_ended, self._grace_seconds):
            return
        log.warning("the algorithm did not stop within %g s of being cancelled", self._grace_seconds)
        self._interrupts.force()
        if await happens(self._algorithm_ended, self._grace_seconds):
            return
        if self._is_beside:
            log.error("abandoning the algorithm's thread, which does not stop")
        else:
            await self._algorithm_ended.wait()

    def _interrupt(self, number: int, is_again: bool) -> None:
        name = signal.Signals(number).name
        if is_again:
            log.warning("%s again: stopping immediately", name)
            self._is_killed = True  # runners end at once, the store when it knows which rollouts were lost with them
            self._supervisor.kill()
        else:
            log.warning("%s: shutting down; send it again to stop immediately", name)
        self._end(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number))

    def _algorithm_is_done(self) -> None:
        """It only waits for the runners to end: cancelling it would cut that short."""
        self._is_algorithm_done = True
        self._end(None)

    def _algorithm_has_ended(self) -> None:
        self._algorithm_ended.set()
        self._end(None)

    def _end(self, reason: BaseException | None) -> None:
        """The way to the end, whatever leads there; the first reason counts."""
        self._reason = self._reason or reason
        self._event.set()
        self._ending.set()
        if self._algorithm is None or self._algorithm_ended.is_set() or self._is_algorithm_done:
            return
        if self._is_killed or isinstance(self._reason, Exception) or self._is_cancelled_on_stop:
            self._algorithm.cancel()
        elif self._cancelling is None:
            self._cancelling = self._loop.call_later(self._stop_seconds, self._algorithm.cancel)


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
