"""`ClientServerExecutionStrategy`: runners as processes, which reach the store over HTTP."""

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal

from ..checks import check_int, check_number
from ..errors import ConfigError
from ..store import LightningStore
from . import settings
from .base import AlgorithmBundle, ExecutionStrategy, RunnerBundle
from .lives import Begin, End, Life, OnReady
from .runs import Runs

if TYPE_CHECKING:
    from ..runner import MainThread
    from .mounts import Mount
    from .serving import Served

log = logging.getLogger(__name__)
CurrentRole = Literal["both", "algorithm", "runner"]
MainProcess = Literal["algorithm", "runner"]
PORT_APART = 4747
ROLES = ("both", "algorithm", "runner")


class ClientServerExecutionStrategy(ExecutionStrategy):
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
        self.role: str = settings.setting("role", role, "SHARPEN_CURRENT_ROLE", settings.choice(*ROLES), "both")
        settings.one_of("role", self.role, ROLES)
        self.server_host = settings.setting("server_host", server_host, "SHARPEN_SERVER_HOST", str, "127.0.0.1")
        port: int | None = settings.setting(
            "server_port", server_port, "SHARPEN_SERVER_PORT", settings.port_number, None
        )
        self.server_port = settings.check_port("server_port", port)
        if self.role != "both" and self.server_port is None:
            self.server_port = PORT_APART
        managed: bool | None = settings.setting(
            "managed_store", managed_store, "SHARPEN_MANAGED_STORE", settings.yes_or_no, None
        )
        self.managed_store = managed
        self.n_runners = check_int("n_runners", n_runners, at_least=1)
        self.graceful_timeout = check_number("graceful_timeout", graceful_timeout, at_least=0, unit="seconds")
        self.terminate_timeout = check_number("terminate_timeout", terminate_timeout, at_least=0, unit="seconds")
        self.main_process = settings.one_of("main_process", main_process, ("algorithm", "runner"))
        if main_process == "runner" and n_runners != 1:
            raise ConfigError(
                f"main_process='runner' runs one runner in this process, but n_runners is {n_runners}: use 1"
            )
        self.allowed_exit_codes = frozenset(allowed_exit_codes)
        self.mounts: Sequence[Mount] = ()
        """Other applications at the address of the store, where this run serves it."""
        self._runs = Runs()

    @property
    def has_runners_here(self) -> bool:
        return self.role != "algorithm"

    def stop(self) -> None:
        """Ask current runs to shut down; callable from any thread."""
        self._runs.stop()

    def execute(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        if self.role == "runner":
            self._run_runners(runner)
        elif self.role == "algorithm":
            self._run_algorithm(algorithm, store)
        else:
            self._run_both(algorithm, runner, store)

    def _run_both(self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore) -> None:
        payload = self._pack(runner)
        with self._served(store) as served:
            self._run(served, algorithm, runner, payload)

    def _run_algorithm(self, algorithm: AlgorithmBundle, store: LightningStore) -> None:
        """The store and the algorithm here, the runners anywhere."""
        from .run import Run

        with self._served(store) as served:
            seconds = self.graceful_timeout
            run = Run(served, _no_runner, 0, algorithm, stop_seconds=seconds, grace_seconds=seconds)
            log.info("runners connect to %s", served.url)
            self._runs.execute(run)

    def _run_runners(self, runner: RunnerBundle) -> None:
        """The runners here, the store and the algorithm anywhere."""
        from .apart import ServedApart

        payload = self._pack(runner)
        served = ServedApart(self.server_host, self.server_port or PORT_APART)
        self._run(served, None, runner, payload, is_over=served.is_over)

    def _served(self, store: LightningStore) -> "AbstractContextManager[Served]":
        from .announcing import served_openly

        return served_openly(
            store, managed=self.managed_store, host=self.server_host, port=self.server_port, mounts=self.mounts
        )

    def _pack(self, runner: RunnerBundle) -> bytes:
        """What cannot travel is refused before anything starts; a runner in this process does not travel."""
        from .transport import pack

        return b"" if self.main_process == "runner" else pack(runner)

    def _run(
        self,
        served: "Served",
        algorithm: AlgorithmBundle | None,
        runner: RunnerBundle,
        payload: bytes,
        *,
        is_over: Callable[[End], bool] = lambda _: False,
    ) -> None:
        from ..runner import MainThread
        from .run import Run

        place = MainThread() if self.main_process == "runner" else None
        begin = self._begin_process(served, payload) if place is None else self._begin_here(served, runner, place)
        run = Run(
            served,
            begin,
            self.n_runners,
            algorithm,
            place=place,
            stop_seconds=self.graceful_timeout,
            grace_seconds=self.graceful_timeout,
            is_over=is_over,
            start_ahead=lambda: self._start_ahead(served) if place is None else None,
        )
        self._runs.execute(run)

    def _begin_here(self, served: "Served", runner: RunnerBundle, place: "MainThread") -> Begin:
        from .runner_thread import in_threads

        return in_threads(
            runner,
            served.connect,
            graceful_delay=self.graceful_timeout,
            join_timeout=self.terminate_timeout,
            place=place,
        )

    def _begin_process(self, served: "Served", payload: bytes) -> Begin:
        from .jobs import RunnerJob
        from .runner_process import Graces, RunnerProcess

        file = getattr(served, "token_file", None)
        token_file = None if file is None else str(file)
        options = getattr(served, "options", {})
        graces = Graces(self.graceful_timeout, self.terminate_timeout, self.allowed_exit_codes)

        def begin(worker_id: int, finished_before: int, on_ready: OnReady) -> Life:
            job = RunnerJob(served.url, served.token, worker_id, finished_before, token_file, options)
            return RunnerProcess(job, payload, graces, on_ready=on_ready)

        return begin

    def _start_ahead(self, served: "Served") -> None:
        """Children for the next run of this process."""
        from .pool import pool
        from .serving import ServedByProcess

        pool.start_ahead(runners=self.n_runners, stores=int(isinstance(served, ServedByProcess)))


def _no_runner(worker_id: int, finished_before: int, on_ready: OnReady) -> Life:
    raise ConfigError("this role has no runners")
