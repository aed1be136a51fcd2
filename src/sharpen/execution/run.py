"""One run: an algorithm, its runners, the store between them, and one way to the end.

A thread of its own supervises, so that a heavy learning step delays neither restarts nor signals. Whatever ends the
run (the algorithm, a failure, a signal, `stop`) goes the same way: the event is set, the algorithm is cancelled where
it still runs, runners are ended in order, and the store is closed last. An algorithm has time to see the event of a
stop and to return by itself before it is cancelled. An algorithm may wait for the runners before
it returns, with what they need until then.
"""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from ..runner import MainThread
from .algorithm_call import AlgorithmCall
from .base import AlgorithmBundle
from .events import RunEvent
from .interrupts import Interrupts
from .lives import Begin, End
from .scaling import Bounds
from .serving import Served
from .supervisor import Supervisor

log = logging.getLogger(__name__)
AHEAD_SECONDS = 1.5
TIDY_SECONDS = 1.0  # for the last steps of a thread whose work is done


class Run:
    """One `execute`, from its start to its end.

    The calling thread runs the algorithm; where there is a `place` it lends itself to agents, and the algorithm runs
    beside. `stop_seconds` is what an algorithm is given to return by itself when the run is stopped (none after a
    failure, nor where it has `cancelled_on_stop`), and `grace_seconds` what it has once it is cancelled.
    `start_ahead` is called once the run is well under way, or ends: what the next one needs can be started. With
    `bounds` there are more or fewer runners than `n_runners` as there is work, and `starts` is how many may start at
    the same time.
    """

    def __init__(
        self,
        served: Served,
        begin: Begin,
        n_runners: int,
        algorithm: AlgorithmBundle | None,
        *,
        place: MainThread | None = None,
        stop_seconds: float = 10.0,
        grace_seconds: float = 10.0,
        is_over: Callable[[End], bool] = lambda _: False,
        start_ahead: Callable[[], None] = lambda: None,
        bounds: Bounds | None = None,
        starts: int | None = None,
    ) -> None:
        self._served, self._begin, self._n_runners = served, begin, n_runners
        self._place, self._grace_seconds, self._is_over = place, grace_seconds, is_over
        self._start_ahead, self._bounds, self._starts = start_ahead, bounds, starts
        self._stop_seconds = stop_seconds
        self._ahead: asyncio.TimerHandle | None = None
        self._cancelling: asyncio.TimerHandle | None = None
        self.event = RunEvent(lambda: self._post(self._algorithm_is_done))
        self._algorithm = None if algorithm is None else AlgorithmCall(algorithm, served, self.event)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._supervise, name="sharpen-supervisor", daemon=True)
        self._interrupts = Interrupts(self._receive)
        self._supervisor: Supervisor | None = None
        self._ending, self._algorithm_ended, self._main_thread_free = (asyncio.Event() for _ in range(3))
        self._reason: BaseException | None = None
        self._is_killed = self._is_beside = self._is_algorithm_done = False

    # -- the calling thread --------------------------------------------------------------------------

    def execute(self) -> None:
        """Run to the end, and raise what ended the run if it was an error."""
        # Then the algorithm runs on a thread beside the calling one, which can be left to itself.
        self._is_beside = self._place is not None or _has_running_loop()
        with self._interrupts:
            self._thread.start()
            try:
                self._work()
            finally:
                self._interrupts.may_raise = False
                self.stop()
                self._join()
        self._raise()

    def _work(self) -> None:
        """A thread whose loop is running lends its time, but cannot lend its loop."""
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C broke in: `_raise` raises it again
            if _has_running_loop():
                thread = threading.Thread(target=self._work_here, name="sharpen-main", daemon=True)
                thread.start()
                self._thread.join()  # it ends when the other has ended or was given up
                thread.join(TIDY_SECONDS)
            else:
                self._interrupts.may_raise = True
                self._work_here()

    def _work_here(self) -> None:
        if self._place is not None:
            self._lend(self._place)
        elif self._algorithm is not None:
            self._run_algorithm(self._algorithm)
        else:
            self._thread.join()

    def _lend(self, place: MainThread) -> None:
        """Run agents here, and the algorithm beside."""
        if self._algorithm is not None:
            beside = threading.Thread(
                target=self._run_algorithm, args=(self._algorithm,), name="sharpen-algorithm", daemon=True
            )
            beside.start()
        try:
            place.pump()
        except KeyboardInterrupt as error:
            self._post(self._end, error)
        finally:
            self._post(self._main_thread_free.set)

    def _run_algorithm(self, algorithm: AlgorithmCall) -> None:
        try:
            algorithm.run()
        finally:
            self._post(self._algorithm_has_ended)

    def _join(self) -> None:
        while self._thread.is_alive():
            with contextlib.suppress(KeyboardInterrupt):
                self._thread.join()

    def _raise(self) -> None:
        error = None if self._algorithm is None else self._algorithm.error
        if self._reason is not None:
            raise self._reason
        if error is not None and not (isinstance(error, asyncio.CancelledError) and self._was_cancelled):
            raise error

    @property
    def _was_cancelled(self) -> bool:
        return self._algorithm is not None and self._algorithm.was_cancelled

    # -- from any thread, also from a signal handler ---------------------------------------------------

    def stop(self) -> None:
        """End the run in order; `execute` then returns."""
        self._post(self._end, None)

    def _receive(self, number: int, is_again: bool) -> None:
        self._post(self._interrupt, number, is_again)

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the run has ended
            self._loop.call_soon_threadsafe(call, *arguments)

    # -- the supervising thread ----------------------------------------------------------------------

    def _supervise(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._watch())
        except BaseException as error:  # noqa: BLE001 - raised by `execute`, in the thread of its caller
            self._reason = self._reason or error
            if self._algorithm is not None:
                self._algorithm.cancel()
        finally:
            self.event.note_runners_ended()
            if self._place is not None:
                self._place.stop()

    async def _watch(self) -> None:
        try:
            await self._until_ending(self._served.open(self._end))
            if not self._ending.is_set():
                await self._keep_runners()
        except Exception as error:  # noqa: BLE001 - raised by `execute`, in the thread of its caller
            self._end(error)
        try:
            await self._let_agents_end()
            self.event.note_runners_ended()
            await self._let_algorithm_end()
        finally:
            if self._is_killed:
                self._served.kill()
            await self._served.close()

    async def _until_ending(self, opening: Coroutine[Any, Any, None]) -> None:
        tasks = [asyncio.ensure_future(opening), asyncio.ensure_future(self._ending.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        (outcome, _) = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome

    async def _keep_runners(self) -> None:
        self._supervisor = Supervisor(
            self._begin,
            self._n_runners,
            self._served.connect,
            on_end=self._end,
            is_over=self._is_over,
            awaits_work=self._algorithm is not None,
            on_ready=self._is_under_way,
            bounds=self._bounds,
            starts=self._starts,
        )
        self._supervisor.start()
        await self._ending.wait()
        self._prepare_at_the_end()
        await self._supervisor.stop()

    def _is_under_way(self) -> None:
        """What the next run needs is started in a quiet moment, since it costs CPU."""
        if self._ahead is None and not self._ending.is_set():
            self._ahead = self._loop.call_later(AHEAD_SECONDS, self._prepare_next)

    def _prepare_next(self) -> None:
        self._start_ahead()
        self._ahead = None

    def _prepare_at_the_end(self) -> None:
        """A run that ends early or again and again has no quiet moment; one that failed has no next."""
        if self._ahead is not None:
            self._ahead.cancel()
        if self._reason is None:
            self._prepare_next()

    async def _let_agents_end(self) -> None:
        """An agent on the calling thread that nobody waits for any more is broken into."""
        if self._place is not None:
            self._place.stop()
            if self._is_killed or not await _happens(self._main_thread_free, self._grace_seconds):
                self._interrupts.force()

    async def _let_algorithm_end(self) -> None:
        """The store stays open until the algorithm, too, has ended."""
        if self._algorithm is None:
            return
        if self._cancelling is not None:
            await _happens(self._algorithm_ended, max(self._cancelling.when() - self._loop.time(), 0))
        if await _happens(self._algorithm_ended, self._grace_seconds):
            return
        log.warning("the algorithm did not stop within %g s of being cancelled", self._grace_seconds)
        self._interrupts.force()
        if await _happens(self._algorithm_ended, self._grace_seconds):
            return
        if self._is_beside:
            log.error("abandoning the algorithm's thread, which does not stop")
        else:
            await self._algorithm_ended.wait()

    def _interrupt(self, number: int, is_again: bool) -> None:
        name = signal.Signals(number).name
        if is_again:
            log.warning("%s again: stopping immediately", name)
            self._kill()
        else:
            log.warning("%s: shutting down; send it again to stop immediately", name)
        self._end(KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number))

    def _kill(self) -> None:
        """Runners end at once, and the store as soon as it knows which rollouts were lost with them."""
        self._is_killed = True
        if self._supervisor is not None:
            self._supervisor.kill()

    def _algorithm_is_done(self) -> None:
        """It has nothing left to do but to wait for the runners: cancelling it would only cut that short."""
        self._is_algorithm_done = True
        self._end(None)

    def _algorithm_has_ended(self) -> None:
        self._algorithm_ended.set()
        self._end(None)

    def _end(self, reason: BaseException | None) -> None:
        """The way to the end, whatever leads there; the first reason counts."""
        self._reason = self._reason or reason
        self.event.set()
        self._ending.set()
        if self._algorithm is None or self._algorithm_ended.is_set() or self._is_algorithm_done:
            return
        if self._is_killed or isinstance(self._reason, Exception) or self._algorithm.cancelled_on_stop:
            self._algorithm.cancel()
        elif self._cancelling is None:
            self._cancelling = self._loop.call_later(self._stop_seconds, self._algorithm.cancel)


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
