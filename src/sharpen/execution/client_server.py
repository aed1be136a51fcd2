"""`ClientServerExecutionStrategy`: runners as processes, which reach the store over HTTP."""

import functools
import logging
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

from ..checks import check_choice, check_int, check_number
from ..errors import ConfigError
from ..store import LightningStore
from .base import AlgorithmBundle, RunnerBundle, SupervisedStrategy, server_settings, setting

if TYPE_CHECKING:
    from .execution import Execution
    from .serving import Mount, Served

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
        self.role = setting("role", _role(role), "SHARPEN_CURRENT_ROLE", _role) or "both"
        host, port, self.managed_store = server_settings(server_host, server_port, managed_store)
        self.server_host = host or "127.0.0.1"
        self.server_port = port or (None if self.role == "both" else SEPARATE_ROLES_PORT)
        self.n_runners = check_int("n_runners", n_runners, at_least=1)
        self.graceful_timeout = check_number("graceful_timeout", graceful_timeout, at_least=0, unit="seconds")
        self.terminate_timeout = check_number("terminate_timeout", terminate_timeout, at_least=0, unit="seconds")
        self.main_process = check_choice("main_process", main_process, ("algorithm", "runner"))
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
        from .serving import ServedRemotely, announced
        from .transport import pack

        # What cannot travel is refused before anything starts; a runner in this process does not travel.
        payload = b"" if self.role == "algorithm" or self.main_process == "runner" else pack(runner)
        if self.role == "runner":
            served = ServedRemotely(self.server_host, self.server_port or SEPARATE_ROLES_PORT)
            self._run(self._execution(served, None, runner, payload))
            return
        host, port, mounts = self.server_host, self.server_port, self.mounts
        with announced(store, managed=self.managed_store, host=host, port=port, mounts=mounts) as here:
            if self.role == "algorithm":
                log.info("runners connect to %s", here.url)
            self._run(self._execution(here, algorithm, runner, payload))

    def _execution(
        self, served: "Served", algorithm: AlgorithmBundle | None, runner: RunnerBundle, payload: bytes
    ) -> "Execution":
        from ..runner import MainThread
        from .execution import Execution
        from .runners import RunnerProcess, RunnerThread
        from .supervisor import RunnerPlan
        from .warm_pool import pool

        grace, terminate = self.graceful_timeout, self.terminate_timeout
        if self.main_process == "runner" and self.role != "algorithm":
            place = MainThread()
            thread = functools.partial(RunnerThread, runner, served.connect, grace, terminate, place)
            return Execution(served, RunnerPlan(thread, 1), algorithm, grace, grace, place=place)
        given = served.address, payload, grace, terminate, self.allowed_exit_codes
        process = functools.partial(RunnerProcess, *given)
        if self.role == "algorithm":
            return Execution(served, RunnerPlan(process, 0), algorithm, grace, grace)
        start_ahead = functools.partial(pool.start_ahead, runners=self.n_runners, stores=served.num_processes)
        plan = RunnerPlan(process, self.n_runners)
        return Execution(served, plan, algorithm, grace, grace, start_ahead=start_ahead)


def _role(role: str | None) -> str | None:
    return check_choice("role", role, ROLES, optional=True)
