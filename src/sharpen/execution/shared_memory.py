"""`SharedMemoryExecutionStrategy`: algorithm and runners as threads of one process."""

import functools
from typing import Literal

from ..checks import check_choice, check_int, check_number
from ..store import LightningStore
from .base import AlgorithmBundle, RunnerBundle, SupervisedStrategy

MainRole = Literal["algorithm", "runner"]


class SharedMemoryExecutionStrategy(SupervisedStrategy):
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
        super().__init__()
        self.n_runners = check_int("n_runners", n_runners, at_least=1)
        self.main_thread: MainRole = main_thread or ("runner" if n_runners == 1 else "algorithm")
        check_choice("main_thread", self.main_thread, ("algorithm", "runner"))
        self._is_asked_for = main_thread is not None
        self.join_timeout = check_number("join_timeout", join_timeout, at_least=0, unit="seconds")
        self.graceful_delay = check_number("graceful_delay", graceful_delay, at_least=0, unit="seconds")
        self.poll_interval = check_number("poll_interval", poll_interval, at_least=0, unit="seconds")
        self.managed_store = managed_store

    @property
    def has_runners_here(self) -> bool:
        return True

    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        from ..runner import MainThread
        from .execution import Execution
        from .runners import RunnerThread
        from .serving import Shared
        from .supervisor import RunnerPlan

        served = Shared(store, is_wrapped=self.managed_store)
        place = MainThread(is_asked_for=self._is_asked_for) if self.main_thread == "runner" else None
        seconds = self.graceful_delay, self.join_timeout
        start = functools.partial(RunnerThread, runner, served.connect, *seconds, place)
        self._run(Execution(served, RunnerPlan(start, self.n_runners), algorithm, *seconds, place=place))
