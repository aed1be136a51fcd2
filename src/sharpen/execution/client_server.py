"""`ClientServerExecutionStrategy`: runners as processes, which reach the store over HTTP."""

import logging
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal

from ..checks import check_int, check_number
from ..errors import ConfigError
from ..store import LightningStore
from .base import AlgorithmBundle, RunnerBundle, SupervisedStrategy, choice, one_of, server_settings, setting

if TYPE_CHECKING:
    from ..runner import MainThread
    from .execution import Execution
    from .serving import Mount, Served
    from .supervisor import OnReady, RunnerHandle, RunnerPlan, StartRunner

log = logging.getLogger(__name__)
CurrentRole = Literal["both", "algorithm", "runner"]
MainProcess = Literal["algorithm", "runner"]
ROLES = ("both", "algorithm", "runner")
SEPARATE_ROLES_PORT = 4747


class ClientServerExecutionStrategy(SupervisedStrategy):
    """Runners as processes that reach the store over HTTP. Dead runners are restarted, and a busy algorithm delays
    nobody.

    `role`, `server_host`, `server_port` and `managed_store` default to the environment variables
    `SHARPEN_CURRENT_ROLE`, `SHARPEN_SERVER_HOST`, `SHARPEN_SERVER_PORT` and `SHARPEN_MANAGED_STORE`, then to `"both"`,
    `"127.0.0.1"`, a free port and None.

    Args:
        role: `"both"`; `"algorithm"` runs store and algorithm here, `"runner"` only runners, which connect to the
            server.
        server_host: Address of the store server.
        server_port: Its port; 4747 if the roles are separate and none is set.
        n_runners: Number of runner processes.
        graceful_timeout: Seconds that a runner or an algorithm has to stop; then the algorithm is cancelled.
        terminate_timeout: Seconds over which SIGINT, SIGTERM and SIGKILL follow for a runner.
        main_process: `"runner"` runs one runner's agents on the calling thread, for a debugger.
        managed_store: Whether this run serves the store (True) or something else does (False); None decides by the
            store.
        allowed_exit_codes: Exit codes of a runner that are not failures.
    """

    def __init__(
        self,
        role: CurrentRole | None = None,
        server_host: str | None = None,
        server_port: int | None = None,
        n_runners: int = 1,
        graceful_timeout: float = 10.0,
        terminate_timeout: float = 10.0,
        main_process: MainProcess = "algorithm",
        managed_store: bool | None = None,
        allowed_exit_codes: Collection[int] = (0, -15),
    ) -> None:
        super().__init__()
        self.role = one_of("role", setting("role", role, "SHARPEN_CURRENT_ROLE", choice(*ROLES)) or "both", ROLES)
        host, port, self.managed_store = server_settings(server_host, server_port, managed_store)
        self.server_host = host or "127.0.0.1"
        self.server_port = port or (None if self.role == "both" else SEPARATE_ROLES_PORT)
        self.n_runners = check_int("n_runners", n_runners, at_least=1)
        self.graceful_timeout = check_number("graceful_timeout", graceful_timeout, at_least=0, unit="seconds")
        self.terminate_timeout = check_number("terminate_timeout", terminate_timeout, at_least=0, unit="seconds")
        self.main_process = one_of("main_process", main_process, ("algorithm", "runner"))
        if main_process == "runner" and n_runners != 1:
            raise ConfigError(
                f"main_process='runner' runs one runner in this process, but n_runners is {n_runners}: use 1"
            )
        self.allowed_exit_codes = frozenset(allowed_exit_codes)
        self.mounts: Sequence[Mount] = ()
        """Other applications at the address of the store, where this run serves it."""

    @property
    def has_runners_here(self) -> bool:
        return self.role != "algorithm"

    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        if self.role == "algorithm":
            with self._announced(store) as served:
                log.info("runners connect to %s", served.url)
                self._run(self._execution(served, algorithm))
            return
        # What cannot travel is refused before anything starts; a runner in this process does not travel.
        payload = b"" if self.main_process == "runner" else _pack(runner)
        if self.role == "both":
            with self._announced(store) as served:
                self._run_with_runners(served, algorithm, runner, payload)
        else:
            from .remote import ServedRemotely

            served = ServedRemotely(self.server_host, self.server_port or SEPARATE_ROLES_PORT)
            self._run_with_runners(served, None, runner, payload)

    def _announced(self, store: LightningStore) -> "AbstractContextManager[Served]":
        from .serving import announced

        return announced(
            store, managed=self.managed_store, host=self.server_host, port=self.server_port, mounts=self.mounts
        )

    def _run_with_runners(
        self, served: "Served", algorithm: AlgorithmBundle | None, runner: RunnerBundle, payload: bytes
    ) -> None:
        from ..runner import MainThread
        from .runner_thread import in_threads
        from .supervisor import RunnerPlan

        if self.main_process == "runner":
            place = MainThread()
            start = in_threads(runner, served.connect, self.graceful_timeout, self.terminate_timeout, place)
            self._run(self._execution(served, algorithm, RunnerPlan(start, 1), place=place))
        else:
            runners = RunnerPlan(self._in_processes(served, payload), self.n_runners)
            self._run(self._execution(served, algorithm, runners))

    def _execution(
        self,
        served: "Served",
        algorithm: AlgorithmBundle | None,
        runners: "RunnerPlan | None" = None,
        place: "MainThread | None" = None,
    ) -> "Execution":
        from .execution import Execution

        def start_ahead() -> None:
            if runners is not None and place is None:
                _start_ahead(served, runners.count)

        seconds = self.graceful_timeout, self.graceful_timeout
        return Execution(served, runners, algorithm, *seconds, place=place, start_ahead=start_ahead)

    def _in_processes(self, served: "Served", payload: bytes) -> "StartRunner":
        from .runner_process import ExitLimits, RunnerProcess

        limits = ExitLimits(self.graceful_timeout, self.terminate_timeout, self.allowed_exit_codes)

        def start(worker_id: int, finished_before: int, on_ready: "OnReady") -> "RunnerHandle":
            return RunnerProcess(served.address, payload, worker_id, finished_before, limits=limits, on_ready=on_ready)

        return start


def _pack(runner: RunnerBundle) -> bytes:
    from .transport import pack

    return pack(runner)


def _start_ahead(served: "Served", n_runners: int) -> None:
    """Start processes for the next run of this process."""
    from .serving import ServedByProcess
    from .warm_pool import pool

    pool.start_ahead(runners=n_runners, stores=int(isinstance(served, ServedByProcess)))
