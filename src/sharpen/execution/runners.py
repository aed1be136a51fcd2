"""A runner, in a thread of this process or in a separate one: the handle that the supervisor has of it.

The process of a runner is a fresh interpreter, `python -m sharpen.execution.runners`. It imports what a runner needs,
waits for one job, does it and ends. A runner whose parent has gone finishes what it is doing and ends. What is
different there for an agent: there is no terminal, and the statements of the user's script did not run.

Time limits, heartbeats and stops all need the interpreter of the runner. An agent that holds its lock for good (a
backtracking regular expression, native code) stops them all, so the parent listens for a sign of life and kills a
process that gives none.
"""

import asyncio
import contextlib
import functools
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Collection
from typing import Any, NoReturn

import msgspec

from ..errors import AgentError
from ..process.child import ExitReport, Failure
from ..process.python_process import Data, Job, Parent
from ..runner import MainThread, RunnerWornOut, agents_on, worker_name
from ..runner.base import unpack
from ..store.client import LightningStoreClient
from ..store.opening import ServerAddress
from ..tracer.instrumentation import ImportWatch
from .base import Connect, RunnerBundle
from .events import CancellableCall, RunnerEvent, run_to_end
from .interrupts import SIGNALS, restore_in_forks
from .supervisor import ExitKind, OnReady, RunnerExit
from .warm_pool import IDLE_SECONDS, RoleProcess, pool

log = logging.getLogger(__name__)
EXIT_SATURATED = 75  # the exit code of a runner process that asks to be replaced
HUNG_SECONDS = 60.0  # a runner that gave no sign for so long, and for three of its leases, is killed
START_FACTOR = 5  # so many times as long before its first heartbeat: loading a native library holds the lock
LOOK_SECONDS = 0.25
NO_TERMINAL = (
    "a runner process has no terminal. To debug, run the agent in this process with Trainer(strategy='shm'), or set "
    "PYTHONBREAKPOINT to a remote debugger, such as debugpy.breakpoint"
)


# -- in a thread -------------------------------------------------------------------------------------


class RunnerThread:
    """The handle of one runner in a thread with its own event loop. `place` is where its agents run, if not there."""

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
    ) -> None:
        self._worker_id, self._on_ready, self._place = worker_id, on_ready, place
        self._graceful_delay, self._join_timeout = graceful_delay, join_timeout
        self._event = RunnerEvent(finished_before)
        self._call = CancellableCall(connect, lambda store: bundle(store, worker_id, self._event))
        self._supervising = asyncio.get_running_loop()
        self._exit: asyncio.Future[RunnerExit] = self._supervising.create_future()
        self._is_asked = False

    @property
    def finished(self) -> int:
        """How many rollouts it has finished."""
        return self._event.count

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
                finished=self.finished,
                worker_name=worker_name(self._worker_id),
                leaves_work=kind not in ("done", "stopped"),
                reason=reason or (kind if failure is None else failure.last_line),
                failure=failure,
                place="thread",
            )
        )

    def ask_to_stop(self) -> None:
        self._is_asked = True
        self._event.set()

    async def stop(self) -> None:
        self.ask_to_stop()
        if (await asyncio.wait([self._exit], timeout=self._graceful_delay))[0]:
            return
        log.warning("runner %d did not stop within %g s; cancelling it", self._worker_id, self._graceful_delay)
        self._call.cancel()
        if not (await asyncio.wait([self._exit], timeout=self._join_timeout))[0]:
            self._abandon(f"it did not stop within {self._join_timeout:g} s of being cancelled")

    def kill(self) -> None:
        self.ask_to_stop()
        self._call.cancel()
        self._supervising.call_later(1.0, self._abandon, "it did not stop when the run was aborted")

    def _abandon(self, reason: str) -> None:
        if not self._exit.done():
            log.error("abandoning the thread of runner %d: %s", self._worker_id, reason)
            self._settle("died", reason=reason)


# -- in a process ------------------------------------------------------------------------------------


class RunnerProcess:
    """The handle of one runner process. Exit codes that are allowed are no failure once it was asked to stop."""

    def __init__(
        self,
        store: ServerAddress,
        payload: bytes,
        graceful_timeout: float,
        terminate_timeout: float,
        allowed_exit_codes: Collection[int],
        worker_id: int,
        finished_before: int,
        on_ready: OnReady,
    ) -> None:
        address = msgspec.to_builtins(store)
        self._job = Job({"store": address, "worker_id": worker_id, "finished_before": finished_before}, payload)
        self._worker_id, self._on_ready, self._allowed_exit_codes = worker_id, on_ready, allowed_exit_codes
        self._graceful_timeout, self._terminate_timeout = graceful_timeout, terminate_timeout
        self._child = pool.take("runner")
        self._is_asked = False
        self._reported: dict[str, Any] = {}
        self._hung = ""

    async def run(self) -> RunnerExit:
        report = await self._work()
        while self._child.was_lost_early and not self._is_asked:
            self._child = RoleProcess("runner")
            report = await self._work()
        failure, kind = report.failure, self._kind(report)
        return RunnerExit(
            kind,
            finished=self._reported["finished"],
            worker_name=self._reported.get("ready"),
            leaves_work=report.code != 0 or kind not in ("done", "stopped"),
            reason=self._hung or report.describe() if failure is None else failure.last_line,
            failure=failure,
        )

    async def _work(self) -> ExitReport:
        self._reported, self._hung = {"finished": 0}, ""
        watching = asyncio.create_task(self._watch_signs())
        try:
            return await self._child.work(f"runner {self._worker_id}", self._job, self._on_message)
        finally:
            watching.cancel()

    def _on_message(self, data: Data) -> None:
        message = json.loads(data)
        self._reported.update(message)
        if "ready" in message:
            log.debug("runner %d is ready: process %d", self._worker_id, self._child.pid)
            self._on_ready(message["ready"])

    async def _watch_signs(self) -> None:
        """Kill a process that is silent for too long."""
        while not self._child.is_silent(limit := self._hung_seconds()):  # noqa: ASYNC110 - silence has no event
            await asyncio.sleep(LOOK_SECONDS)
        self._hung = f"it did not respond for {limit:g} s"
        log.warning(
            "runner %d (process %d) did not respond for %g s: killing it. Usually its agent holds the interpreter "
            "lock, for example in a backtracking regular expression or native code. Work that takes longer needs a "
            "longer lease (unresponsive_seconds)",
            self._worker_id,
            self._child.pid,
            limit,
        )
        self._child.kill()

    def _hung_seconds(self) -> float:
        seconds = HUNG_SECONDS if "lease" in self._reported else START_FACTOR * HUNG_SECONDS
        return max(seconds, 3 * (self._reported.get("lease") or 0.0))

    def _kind(self, report: ExitReport) -> ExitKind:
        if report.failure is not None:
            return "failed"
        if self._is_asked and report.code in self._allowed_exit_codes:
            return "stopped"
        if "done" in self._reported:
            return "done"
        return "saturated" if report.code == EXIT_SATURATED else "died"

    def ask_to_stop(self) -> None:
        self._is_asked = True
        if self._child.has_job:
            self._child.ask_to_stop()
        else:
            self._child.kill()  # it has done nothing yet

    async def stop(self) -> None:
        self._is_asked = True
        half = self._terminate_timeout / 2
        await self._child.stop((None, self._graceful_timeout), (signal.SIGINT, half), (signal.SIGTERM, half))

    def kill(self) -> None:
        self._is_asked = True
        self._child.kill()


# -- in that process ---------------------------------------------------------------------------------


def run_runner(parent: Parent) -> int:
    """Do one job as a runner, and return the exit code."""
    job = parent.wait_for_job(idle_seconds=IDLE_SECONDS)
    if job is None:
        return 0
    parent.listen()
    parent.show_life()
    worker_id: int = job.options["worker_id"]
    job.context.apply(f"runner {worker_id}")
    prepare_for_agents()
    bundle = unpack(job.payload)

    def report(*, lossy: bool = False, **message: Any) -> None:
        parent.send(json.dumps(message).encode(), lossy=lossy)

    report(ready=worker_name(worker_id))
    event = RunnerEvent(
        job.options["finished_before"],
        stop=parent.stop_requested,
        on_finished=lambda count: report(finished=count, lossy=True),
        stop_requested=parent.is_stopping,
        alive=lambda lease: report(lease=lease, lossy=True),
    )
    received: list[int] = []
    restore_in_forks({number: signal.getsignal(number) for number in SIGNALS})
    try:
        run_to_end(_work(parent, job, bundle, event, received))
    except RunnerWornOut:
        return EXIT_SATURATED
    except asyncio.CancelledError:
        return 0 if event.is_set() or not received else 128 + received[-1]
    report(done=True)
    return 0


async def _work(parent: Parent, job: Job, bundle: Any, event: RunnerEvent, received: list[int]) -> None:
    """Run the bundle. SIGINT and SIGTERM cancel it, and it hands its rollouts back."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, cancel, number)
    store = msgspec.convert(job.options["store"], ServerAddress).open()
    assert isinstance(store, LightningStoreClient)
    try:
        # Its server may have been in the parent: what is finished goes to the spool while there is time.
        parent.on_gone = store.stop_waiting
        if parent.is_gone:
            store.stop_waiting()
        await bundle(store, job.options["worker_id"], event)
    finally:
        await store.close()


# -- what is different there for an agent --------------------------------------------------------------


def prepare_for_agents() -> None:
    """Let breakpoints and reads from the terminal say what to do, and the OpenAI Agents SDK send no traces."""
    sys.breakpointhook = _break
    sys.stdin = _NoTerminal(open(os.devnull, "rb"))  # noqa: SIM115 - open as long as the process
    ImportWatch(["pdb"], lambda name: setattr(sys.modules[name], "set_trace", _refuse)).start()
    keep_agents_sdk_private()


def _break(*arguments: Any, **options: Any) -> Any:
    """`breakpoint()`: the debugger of the user's choice where one was chosen."""
    if os.environ.get("PYTHONBREAKPOINT", "") in ("", "pdb.set_trace"):
        _refuse()
    return sys.__breakpointhook__(*arguments, **options)


def _refuse(*arguments: Any, **options: Any) -> NoReturn:
    raise AgentError(f"the agent stopped at a breakpoint, but {NO_TERMINAL}")


class _NoTerminal(io.TextIOWrapper):
    """Standard input without anybody behind it."""

    def readline(self, size: int | None = -1, /) -> NoReturn:
        raise EOFError(f"the agent tried to read from the terminal, but {NO_TERMINAL}")

    def __next__(self) -> NoReturn:
        raise StopIteration


def keep_agents_sdk_private() -> None:
    """Keep the default exporter of the OpenAI Agents SDK from sending prompts to the SDK's maker, unless the agent has
    set that up.

    A script switches it off at its top level, and those statements do not run here. The SDK is not imported for it.
    Processors that the user adds get everything.
    """
    ImportWatch(["agents"], _guard_export).start()


def _guard_export(name: str) -> None:
    processors = sys.modules.get(f"{name}.tracing.processors")
    exporter: Any = getattr(processors, "BackendSpanExporter", None)
    if exporter is None:  # another package of that name
        return
    set_key, export = sys.modules[name].set_tracing_export_api_key, exporter.export
    has_tracing_key = threading.Event()

    @functools.wraps(set_key)
    def set_tracing_export_api_key(api_key: str) -> None:
        has_tracing_key.set()
        set_key(api_key)

    @functools.wraps(export)
    def export_wanted(self: Any, items: Any) -> None:
        is_ours = self is not getattr(processors, "_global_exporter", self)
        is_wanted = is_ours or has_tracing_key.is_set() or _is_enabled()
        wanted = [item for item in items if is_wanted or getattr(item, "tracing_api_key", None)]
        if wanted:
            export(self, wanted)
        if len(wanted) < len(items):
            _log_dropped()

    # Only the public function counts. `set_default_openai_key` and `set_default_openai_client`, which set the key for
    # model calls, pass it to the exporter as well, but they call the SDK's own reference to the function.
    for module in (sys.modules[name], sys.modules[f"{name}.tracing"]):
        module.set_tracing_export_api_key = set_tracing_export_api_key  # type: ignore[attr-defined]
    exporter.export = export_wanted


def _is_enabled() -> bool:
    """Whether the agent called `set_tracing_disabled(False)`, or the environment says that tracing is not disabled."""
    provider = getattr(sys.modules.get("agents.tracing.setup"), "GLOBAL_TRACE_PROVIDER", None)
    if getattr(provider, "_manual_disabled", None) is False:
        return True
    return os.environ.get("OPENAI_AGENTS_DISABLE_TRACING", "").lower() in ("0", "false")


@functools.cache
def _log_dropped() -> None:
    log.info(
        "runner processes do not send traces of the OpenAI Agents SDK to OpenAI; to send them, call "
        "agents.set_tracing_disabled(False) in the agent, or set OPENAI_AGENTS_DISABLE_TRACING=0"
    )


if __name__ == "__main__":
    Parent.inherited().run(run_runner)
