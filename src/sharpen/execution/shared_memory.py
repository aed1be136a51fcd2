"""`SharedMemoryExecutionStrategy`: algorithm and runners as threads of one process."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Literal

from ..checks import check_int, check_number
from ..store import LightningStore
from . import settings
from .base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from .runs import Runs

MainRole = Literal["algorithm", "runner"]


class SharedMemoryExecutionStrategy(ExecutionStrategy):
    """Runs everything as threads of one process: any Python object may be a task, and a debugger sees all of it.

    Args:
        n_runners: Number of runner threads.
        main_thread: What runs on the calling thread, `"runner"` or `"algorithm"`; None chooses the runner if there is
            only one.
        join_timeout: Seconds after which a cancelled runner's thread is abandoned.
        graceful_delay: Seconds that a runner or an algorithm has to stop before it is cancelled.
        poll_interval: Has no effect; accepted for compatibility.
        managed_store: Whether the store runs on a separate event loop shared by all threads; None does so if the store
            is not thread-safe.
    """

    def __init__(
        self,
        n_runners: int = 1,
        main_thread: MainRole | None = None,
        join_timeout: float = 15.0,
        graceful_delay: float = 5.0,
        poll_interval: float = 0.05,
        managed_store: bool | None = None,
    ) -> None:
        self.n_runners = check_int("n_runners", n_runners, at_least=1)
        self.main_thread: MainRole = main_thread or ("runner" if n_runners == 1 else "algorithm")
        settings.one_of("main_thread", self.main_thread, ("algorithm", "runner"))
        self._is_asked_for = main_thread is not None
        self.join_timeout = check_number("join_timeout", join_timeout, at_least=0, unit="seconds")
        self.graceful_delay = check_number("graceful_delay", graceful_delay, at_least=0, unit="seconds")
        self.poll_interval = check_number("poll_interval", poll_interval, at_least=0, unit="seconds")
        self.managed_store = managed_store
        self._runs = Runs()

    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        from ..runner import MainThread
        from .run import Run
        from .runner_thread import in_threads

        place = MainThread(is_asked_for=self._is_asked_for) if self.main_thread == "runner" else None
        served = SharedStore(store, managed=self.managed_store)

        begin = in_threads(
            runner,
            served.connect,
            graceful_delay=self.graceful_delay,
            join_timeout=self.join_timeout,
            place=place,
        )
        run = Run(
            served,
            begin,
            self.n_runners,
            algorithm,
            place=place,
            stop_seconds=self.graceful_delay,
            grace_seconds=self.join_timeout,
        )
        self._runs.execute(run)

    @property
    def has_runners_here(self) -> bool:
        return True

    def stop(self) -> None:
        """Ask current runs to shut down; callable from any thread."""
        self._runs.stop()


class SharedStore:
    """The store of a run in one process: handed to every thread as it is."""

    url = ""
    token: str | None = None

    def __init__(self, store: LightningStore, *, managed: bool | None) -> None:
        from .serving import ThreadSafe

        self._store = ThreadSafe(store, is_wrapped=managed)

    async def open(self, on_end: Callable[[BaseException | None], None]) -> None:
        """It is open."""

    async def close(self) -> None:
        await self._store.close()

    def kill(self) -> None:
        """It is no process."""

    def connect(self) -> AbstractAsyncContextManager[LightningStore]:
        return contextlib.nullcontext(self._store.open())
