"""The actors of a run on a cluster of Ray, on their nodes and as the program sees them.

`RunnerActor` runs one runner; the next one of the worker has a new actor, on any node with a place for it. The bundle
runs in a separate thread, so the actor answers whatever the agent does. `AlgorithmActor` runs the algorithm of a run,
which is cancelled and told of the run like one in the program.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import pickle
import secrets
import shutil
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...errors import ConfigError, RunError, RunnerStartError, TransportError
from ...logging import LogSettings, apply_settings, current_settings
from ...process.child import Failure
from ...runner import worker_name
from ...runner.base import unpack
from ...store import LightningStore
from ...store.opening import ServerAddress
from ..base import AlgorithmBundle
from ..events import CancellableCall, ExecutionEvent, Reach, RunEvent, happens
from ..runners import RunnerThread, keep_agents_sdk_private
from ..serving import opened
from ..supervisor import ExitKind, OnReady, RunnerExit
from ..transport import unpack_modules
from .cluster import Amounts, Patience, options_for, this_node

log = logging.getLogger(__name__)
REPORT_SECONDS = 0.2  # between two reports of how many rollouts are finished: each costs more than a rollout may
TIDY_SECONDS = 5.0  # for the last report of an actor that has ended its work in time
LOOK_SECONDS = 0.05
MAX_CHARACTERS = 300
START_RUNNERS, END_RUNNERS, CANCELLED = "start_runners", "end_runners", "cancelled"
Parcel = tuple[bytes, bytes]
"""A pickled bundle, and the modules that it needs."""


# -- what both have in common ------------------------------------------------------------------------


@dataclass(frozen=True)
class ActorContext:
    """What makes an actor behave like the program: the same log, and secrets in its environment, which are shown
    nowhere."""

    store: ServerAddress
    secrets: dict[str, str] = field(repr=False)
    """Environment variables."""
    log: LogSettings = field(default_factory=current_settings)
    host_name: str = field(default_factory=socket.gethostname)
    version: str = __version__

    def apply(self, role: str) -> None:
        """Make this process like the program; its log lines carry the role."""
        here = socket.gethostname()
        if self.version != __version__:
            raise RunnerStartError(
                f"the node {here} has Sharpen {__version__}, but the program has {self.version}: install the same "
                "version on every node"
            )
        os.environ.update(self.secrets)
        files = self.log["files"] if here == self.host_name else []  # they are on the program's machine
        apply_settings({**self.log, "files": files}, role=role)


class Actor:
    """An actor on its node."""

    _folder: Path | None = None

    async def _settle(self, context: ActorContext, role: str, parcel: Parcel) -> Any:
        """Return the bundle, with its modules where they are found."""
        context.apply(role)
        return await asyncio.to_thread(self._unpack, *parcel)

    def _unpack(self, data: bytes, modules: bytes) -> Any:
        if modules:
            self._folder = unpack_modules(modules)
            sys.path.insert(0, str(self._folder))
        try:
            return unpack(data)
        except ModuleNotFoundError as error:
            raise TransportError(
                f"the node {socket.gethostname()} has no module {error.name!r}, which the agent needs: install it "
                "there, or pass it with runtime_env={'pip': [...]} or {'py_modules': [...]}"
            ) from error

    async def leave(self) -> None:
        """Clean up while there is time: processes of Ray end without notice."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@dataclass(frozen=True)
class ActorOptions:
    """What the actors of one run have in common. `node_id` is the node of the program, `runtime_env` what the
    connection has not been given."""

    context: ActorContext
    node_id: str
    runtime_env: dict[str, Any] | None
    placement_timeout: float

    def start(self, kind: type[Actor], amounts: Amounts, **options: Any) -> Any:
        """Start an actor, which waits for its place."""
        import ray

        options |= options_for(amounts)
        if self.runtime_env is not None:
            options["runtime_env"] = self.runtime_env
        try:
            return ray.remote(kind).options(**options).remote()
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"Ray rejected the resources or the runtime_env of an actor: {error} (if the program calls ray.init "
                "itself, pass its folders there)"
            ) from error


# -- a runner on its node ----------------------------------------------------------------------------


class RunnerActor(Actor):
    """Runs one runner, once it is prepared."""

    _runner: RunnerThread

    async def prepare(
        self, context: ActorContext, parcel: Parcel, seconds: tuple[float, float], worker_id: int, finished_before: int
    ) -> tuple[str, str] | Failure:
        """Be ready to work: return the name in the store and the node, or what went wrong.

        `seconds` is how long the runner has when it is asked to stop, and when it was cancelled.
        """
        import ray

        keep_agents_sdk_private()
        try:
            bundle = await self._settle(context, f"runner {worker_id}", parcel)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the program shows it
            return Failure.of(error)
        connect = functools.partial(opened, context.store)
        self._runner = RunnerThread(bundle, connect, *seconds, None, worker_id, finished_before, lambda _: None)
        return worker_name(worker_id), ray.get_runtime_context().get_node_id()

    async def work(self) -> AsyncIterator[int | RunnerExit]:
        """Work; yield how many rollouts are finished, now and then, and at last how it ended."""
        running, reported = asyncio.create_task(self._runner.run()), 0
        while not (await asyncio.wait([running], timeout=REPORT_SECONDS))[0]:
            if self._runner.finished != reported:
                reported = self._runner.finished
                yield reported
        await self.leave()
        yield dataclasses.replace(running.result(), place="actor")

    async def ask_to_stop(self) -> None:
        self._runner.ask_to_stop()

    async def stop(self) -> None:
        await self._runner.stop()


# -- the runners as the program sees them ------------------------------------------------------------


class ActorRunner:
    """The handle of one runner: from a place in the cluster to the last report of the actor, or its death.

    `parcel` is a reference of Ray, and `seconds` how long the runner has when it is asked to stop, and when it was
    cancelled.
    """

    def __init__(
        self,
        options: ActorOptions,
        parcel: Any,
        resources: Amounts,
        seconds: tuple[float, float],
        worker_id: int,
        finished_before: int,
        on_ready: OnReady,
    ) -> None:
        self._context, self._parcel, self._seconds = options.context, parcel, seconds
        self._worker_id, self._on_ready = worker_id, on_ready
        self._finished_before, self._finished = finished_before, 0
        self._actor = options.start(RunnerActor, resources, scheduling_strategy="SPREAD")
        self._patience = Patience(f"runner {worker_id}", resources, "runner_resources", options.placement_timeout)
        self._ended = asyncio.Event()
        self._is_asked = False
        self._name: str | None = None

    async def run(self) -> RunnerExit:
        from ray.exceptions import RayError

        try:
            return await self._work()
        except RayError as error:
            if self._name is not None:
                words = " ".join(str(error).split())
                more = "…" * (len(words) > MAX_CHARACTERS)
                return self._exit("died", f"{type(error).__name__}: {words[:MAX_CHARACTERS]}{more}")
            if self._is_asked:
                return self._exit("stopped", "asked to stop")
            failure = Failure(type(error).__name__, "", str(error))
            return self._exit("failed", failure.last_line, failure)
        finally:
            self._ended.set()
            self._end_actor()

    async def _work(self) -> RunnerExit:
        from ray.exceptions import RayError

        given = self._context, self._parcel, self._seconds, self._worker_id, self._finished_before
        answer: tuple[str, str] | Failure = await self._patience.wait(self._actor.prepare.remote(*given))
        if isinstance(answer, Failure):
            return self._exit("failed", answer.last_line, answer)
        self._name, node_id = answer
        if self._is_asked:
            with contextlib.suppress(RayError, TimeoutError):
                await asyncio.wait_for(self._actor.leave.remote(), TIDY_SECONDS)
            return self._exit("stopped", "asked to stop")
        log.debug("runner %d is ready: %s on node %s", self._worker_id, self._name, node_id)
        self._on_ready(self._name)
        async for reference in self._actor.work.options(num_returns="streaming").remote():
            report: int | RunnerExit = await reference
            if isinstance(report, RunnerExit):
                return report
            self._finished = report
        return self._exit("died", "its actor exited without a report")

    def _exit(self, kind: ExitKind, reason: str, failure: Failure | None = None) -> RunnerExit:
        return RunnerExit(kind, self._finished, self._name, kind != "stopped", reason, failure, "actor")

    def ask_to_stop(self) -> None:
        self._is_asked = True
        if self._name is None:
            self.kill()  # it has nothing in hand
        else:
            self._actor.ask_to_stop.remote()

    async def stop(self) -> None:
        """One that is not at work yet has nothing to hand back."""
        self._is_asked = True
        if self._name is not None:
            self._actor.stop.remote()
            seconds = sum(self._seconds) + TIDY_SECONDS
            if await happens(self._ended, seconds):
                return
            log.warning("runner %d did not stop within %g s; killing its actor", self._worker_id, seconds)
        self.kill()
        await self._ended.wait()

    def kill(self) -> None:
        self._is_asked = True
        self._end_actor()

    def _end_actor(self) -> None:
        import ray

        if ray.is_initialized():
            ray.kill(self._actor)


# -- the algorithm on its node -----------------------------------------------------------------------


class AlgorithmActor(Actor):
    """Runs one algorithm, once it is prepared, in a thread with its own event loop."""

    _call: CancellableCall

    def __init__(self) -> None:
        self._reports: asyncio.Queue[Any] = asyncio.Queue()
        self._event = RunEvent(lambda: self._report(END_RUNNERS), lambda: self._report(START_RUNNERS))

    async def prepare(
        self, context: ActorContext, marks: Sequence[str], program: tuple[str, Reach], parcel: Parcel
    ) -> dict[str, Any]:
        """Be ready to run: return nothing, or what went wrong. `program` is the node of the program, and its reach."""
        self._loop = asyncio.get_running_loop()
        try:
            _check_folders(marks)
            bundle = await self._settle(context, "algorithm", parcel)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the program raises it
            return _packed(error)
        here, (node_id, reach) = this_node(), program
        # A gateway that the algorithm starts is on its node.
        self._event.reach = reach if here.node_id == node_id else Reach(here.host, reach.token_variable)
        connect = functools.partial(opened, context.store)
        self._call = CancellableCall(connect, lambda store: bundle(store, self._event))
        return {}

    async def run(self) -> AsyncIterator[Any]:
        """Run it; yield what it wants of the program meanwhile, and at last `CANCELLED` or the error that ended it."""

        def run() -> None:
            self._call.run()
            self._report(None)

        threading.Thread(target=run, name="sharpen-algorithm", daemon=True).start()
        while (report := await self._reports.get()) is not None:
            yield report
        await self.leave()
        if self._call.error is not None:
            yield _packed(self._call.error)
        elif self._call.was_cancelled:
            yield CANCELLED

    def _report(self, report: str | None) -> None:
        self._loop.call_soon_threadsafe(self._reports.put_nowait, report)

    async def cancel(self) -> None:
        self._call.cancel()

    async def set_event(self) -> None:
        self._event.set()

    async def note_runners_ended(self) -> None:
        self._event.note_runners_ended()


def _check_folders(marks: Sequence[str]) -> None:
    """What the algorithm writes must be where the program reads it."""
    for mark in map(Path, marks):
        if not mark.exists():
            raise ConfigError(
                f"the algorithm would run on {socket.gethostname()}, where {str(mark.parent)!r} is not the folder of "
                "the program's machine: set run_dir= to a folder on a file system that all nodes share, omit "
                "algorithm_resources (the algorithm then runs on the program's node), or use algorithm='driver'"
            )


def _packed(error: BaseException) -> dict[str, Any]:
    """An error on its way to the program: as itself where it can travel, and in words."""
    import cloudpickle  # type: ignore[import-untyped]

    data: bytes | None = None
    with contextlib.suppress(Exception):  # an error of the user's own may hold anything; its words travel all the same
        data = cloudpickle.dumps(error)
    return {"error": data, "traceback": "".join(traceback.format_exception(error))}


def _unpacked(answer: dict[str, Any]) -> BaseException:
    """Return the error, with where it came from."""
    words: str = answer["traceback"]
    found: object = None
    with contextlib.suppress(pickle.UnpicklingError, ImportError, AttributeError, TypeError, ValueError):
        found = None if answer["error"] is None else unpack(answer["error"])
    error = found if isinstance(found, BaseException) else RunError(words.strip().splitlines()[-1])
    error.add_note(f"in the algorithm's actor:\n{words}")
    return error


# -- the algorithm as the program sees it ------------------------------------------------------------


class RemoteAlgorithm:
    """An algorithm bundle that runs the given one, which is packed in `parcel`, elsewhere: where its resources are, or
    on the node of the program."""

    def __init__(
        self,
        algorithm: AlgorithmBundle,
        options: ActorOptions,
        parcel: Any,
        resources: Mapping[str, float] | None,
        reach: Reach,
    ) -> None:
        self._algorithm, self._options, self._resources = algorithm, options, resources
        self._parcel, self._reach = parcel, reach
        self.cancelled_on_stop: bool = getattr(algorithm, "cancelled_on_stop", False)
        self.holds_runners: bool = getattr(algorithm, "holds_runners", False)

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        import ray

        assert isinstance(event, RunEvent)
        if (on_begin := getattr(self._algorithm, "on_begin", None)) is not None:
            on_begin()
        actor, options = self._start(), self._options
        amounts, seconds = self._resources or {}, options.placement_timeout
        following = asyncio.create_task(_follow(actor, event))
        folders = getattr(self._algorithm, "folders", list)  # where it writes what the program reads
        try:
            with _marked(folders()) as marks:
                program = options.node_id, self._reach
                preparing = actor.prepare.remote(options.context, marks, program, self._parcel)
                answer = await Patience("the algorithm", amounts, "algorithm_resources", seconds).wait(preparing)
            if answer:
                raise _unpacked(answer)
            listening = asyncio.create_task(_listen(actor, event))
            while True:
                try:
                    return await asyncio.shield(listening)
                except asyncio.CancelledError:
                    if listening.done():
                        raise
                    await actor.cancel.remote()  # the algorithm ends as it sees fit
        finally:
            following.cancel()
            ray.kill(actor)

    def _start(self) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if self._resources is not None:
            return self._options.start(AlgorithmActor, self._resources)
        here = NodeAffinitySchedulingStrategy(self._options.node_id, soft=False)
        return self._options.start(AlgorithmActor, {}, scheduling_strategy=here)


async def _listen(actor: Any, event: RunEvent) -> None:
    from ray.exceptions import RayError

    try:
        async for reference in actor.run.options(num_returns="streaming").remote():
            report = await reference
            if report == START_RUNNERS:
                event.start_runners()
            elif report == END_RUNNERS:
                event.end_runners()
            elif report == CANCELLED:
                raise asyncio.CancelledError
            elif isinstance(report, dict):
                raise _unpacked(report)
    except RayError as error:
        raise RunError(
            f"the algorithm's actor died ({type(error).__name__}): fit(..., resume='last') continues the run from "
            "its last checkpoint"
        ) from error


async def _follow(actor: Any, event: RunEvent) -> None:
    """Tell the actor what becomes of the run."""
    while not event.is_set():  # noqa: ASYNC110 - it is set by a signal or another thread
        await asyncio.sleep(LOOK_SECONDS)
    await actor.set_event.remote()
    while not event.have_runners_ended():  # noqa: ASYNC110 - as above
        await asyncio.sleep(LOOK_SECONDS)
    await actor.note_runners_ended.remote()


@contextlib.contextmanager
def _marked(folders: Sequence[Path]) -> Iterator[list[str]]:
    """A file in each folder, by which the folder is known from elsewhere."""
    marks = [folder.absolute() / f".mark-{secrets.token_hex(8)}" for folder in folders]
    try:
        for mark in marks:
            mark.touch()
        yield [str(mark) for mark in marks]
    finally:
        for mark in marks:
            mark.unlink(missing_ok=True)
