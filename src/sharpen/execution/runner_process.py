"""A runner in a separate process: the parent's handle of it, and what the child does.

The child is a fresh interpreter, `python -m sharpen.execution.runner_process`. It imports what a runner needs, waits
for one job, does it and ends. It never runs the user's script. A runner whose parent has gone finishes what it is doing
and ends.

Time limits, heartbeats and stops all need the interpreter of the runner. An agent that holds its lock for good (a
backtracking regular expression, native code) stops them all, so the parent listens for a sign of life and kills a
process that gives none.
"""

import asyncio
import json
import logging
import signal
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from ..process.child import ExitReport
from ..process.parent import Data, Job, Parent
from ..runner import RunnerWornOut, worker_name
from ..runner.bundle import unpack
from ..store.client import LightningStoreClient
from ..store.opening import ServerAddress
from .events import RunnerEvent
from .interrupts import SIGNALS, restore_in_forks, run_to_end
from .runner_environment import prepare_for_agents
from .supervisor import ExitKind, OnReady, RunnerExit
from .warm_pool import IDLE_SECONDS, RoleProcess, pool

log = logging.getLogger(__name__)
EXIT_SATURATED = 75  # the exit code of a runner process that asks to be replaced
HUNG_SECONDS = 60.0  # a runner that gave no sign for so long, and for three of its leases, is killed
START_FACTOR = 5  # so many times as long before its first heartbeat: loading a native library holds the lock
LOOK_SECONDS = 0.25


@dataclass(frozen=True)
class ExitLimits:
    """How long a runner process has at each step of its end, and the exit codes that are no failure then."""

    graceful_timeout: float
    terminate_timeout: float
    allowed_exit_codes: Collection[int]


class RunnerProcess:
    """The handle of one runner process."""

    def __init__(
        self,
        store: ServerAddress,
        payload: bytes,
        worker_id: int,
        finished_before: int,
        *,
        limits: ExitLimits,
        on_ready: OnReady,
    ) -> None:
        self._options = {
            "store": msgspec.to_builtins(store),
            "worker_id": worker_id,
            "finished_before": finished_before,
        }
        self._payload, self._worker_id, self._limits, self._on_ready = payload, worker_id, limits, on_ready
        self._child = pool.take("runner")
        self._ended = asyncio.Event()
        self._is_asked = False
        self._reported: dict[str, Any] = {}
        self._hung = ""

    async def run(self) -> RunnerExit:
        report = await self._work()
        while self._child.was_lost_early and not self._is_asked:
            self._child = RoleProcess("runner")
            report = await self._work()
        self._ended.set()
        return self._exit(report)

    async def _work(self) -> ExitReport:
        self._reported, self._hung = {"finished": 0}, ""
        watching = asyncio.create_task(self._watch_signs())
        try:
            return await self._child.work(
                f"runner {self._worker_id}", Job(self._options, self._payload), self._on_message
            )
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

    def _exit(self, report: ExitReport) -> RunnerExit:
        kind, failure = self._kind(report), report.failure
        return RunnerExit(
            kind=kind,
            finished=self._reported["finished"],
            is_ready="ready" in self._reported,
            worker_name=self._reported.get("ready"),
            leaves_work=report.code != 0 or kind not in ("done", "stopped"),
            reason=self._hung or report.describe() if failure is None else failure.last_line,
            error_type="" if failure is None else failure.kind,
            traceback="" if failure is None else failure.traceback,
        )

    def _kind(self, report: ExitReport) -> ExitKind:
        if report.failure is not None:
            return "failed"
        if self._is_asked and report.code in self._limits.allowed_exit_codes:
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
        half = self._limits.terminate_timeout / 2
        await self._child.stop((None, self._limits.graceful_timeout), (signal.SIGINT, half), (signal.SIGTERM, half))
        await self._ended.wait()

    def kill(self) -> None:
        self._is_asked = True
        self._child.kill()


# -- in the child ------------------------------------------------------------------------------------


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

    restore_in_forks({number: signal.getsignal(number) for number in SIGNALS})
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


if __name__ == "__main__":
    Parent.inherited().run(run_runner)
