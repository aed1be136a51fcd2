"""The algorithm of a run as a strategy gets it: one object that can travel to another process.

A strategy calls `await bundle(store, event)` once. The gateway runs around everything else, progress is shown around
the algorithm, and an algorithm that fails is restarted from its last checkpoint where that is allowed. The other half
of a run is `runner.bundle.RunnerBundle`.
"""

import asyncio
import hashlib
import logging
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..algorithm import Algorithm
from ..algorithm.base import State
from ..algorithm.own_thread import run_to_end
from ..callbacks import load_state, save_state
from ..errors import SharpenError
from ..execution.events import ExecutionEvent
from ..execution.lost_attempts import lose_those_of_the_dead
from ..files import is_disk_full, read_json, remove_leftovers, write_json
from ..runs.folder import FullDisk, naming_full_disk
from ..store import LightningStore, LightningStoreCapabilities
from ..store.methods import METHODS, Method, forward_methods
from ..store.opening import StoreAddress
from ..types import EnqueueRolloutRequest, NamedResources, Rollout, RolloutConfig
from .gateway import RunGateway
from .loop import TrainingLoop
from .plan import RunPlan
from .progress import Progress

log = logging.getLogger(__name__)


class AlgorithmBundle:
    """Gives the algorithm all it needs and runs it."""

    def __init__(self, plan: RunPlan, trainer: Any = None) -> None:
        self.plan = plan
        self.checkpoints = Checkpoints(plan.checkpoint_path)
        self.cancelled_on_stop = plan.algorithm is not None  # which does not see the event
        self.holds_runners = plan.holds_runners
        self.on_begin: Callable[[], None] | None = None
        """Called in the process of the trainer when the strategy has begun."""
        self._trainer = None if trainer is None else weakref.ref(trainer)
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None

    def parts(self) -> dict[str, object]:
        """Return what travels, under the names that users know."""
        names = ("algorithm", "train_dataset", "val_dataset", "adapter", "llm_proxy", "initial_resources")
        return {name: getattr(self.plan, name) for name in (*names, "callbacks", "loggers")}

    def folders(self) -> list[Path]:
        """Return the folders where it writes what the trainer reads, wherever it runs."""
        return [] if self.plan.run_dir is None else [self.plan.run_dir]

    def __reduce__(self) -> tuple[Any, ...]:
        return AlgorithmBundle, (self.plan,)

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._running = asyncio.get_running_loop(), task
        if self.on_begin is not None:
            self.on_begin()
        try:
            await self._run(store, event)
        finally:
            self._running = None

    def cancel(self) -> None:
        """End the algorithm, from any thread. Does nothing where it runs in another process or not at all."""
        if self._running is not None:
            loop, task = self._running
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

    async def _run(self, store: LightningStore, event: ExecutionEvent) -> None:
        plan, algorithm = self.plan, self.plan.algorithm
        gateway = RunGateway(
            plan.llm_proxy,
            plan.run_dir,
            has_travelled=self._trainer is None,
            holds_calls=algorithm is not None and algorithm.holds_calls,
        )
        run_store = AlgorithmStore(store, plan.rollout_config)
        async with gateway.at_work(store, event):
            if plan.is_resumed:
                await lose_those_of_the_dead(store)
            resources = plan.initial_resources
            if algorithm is None or not algorithm.publishes_model:
                resources = gateway.add_to(resources, needs_llm=plan.needs_llm)
            progress = Progress(run_store, plan, gateway)
            if algorithm is None:
                async with progress:
                    await self._serve(run_store, event, resources)
            else:
                self._equip(algorithm, run_store, gateway, resources)
                with naming_full_disk(plan.run_dir):
                    await self._train(algorithm, run_store, progress)

    async def _serve(self, store: "AlgorithmStore", event: ExecutionEvent, resources: NamedResources | None) -> None:
        """Without an algorithm, others enqueue: serve the runners until somebody stops the run."""
        await self._publish(store, resources)
        while not event.is_set():
            await asyncio.to_thread(event.wait, 0.2)

    async def _publish(self, store: "AlgorithmStore", resources: NamedResources | None) -> None:
        """Rollouts are bound to the latest resources: the first ones are there before anything is enqueued."""
        is_known = self.plan.is_resumed and await store.get_latest_resources() is not None
        if resources is not None and not is_known:
            await store.add_resources(resources)

    def _equip(
        self,
        algorithm: Algorithm[Any],
        store: "AlgorithmStore",
        gateway: RunGateway,
        resources: NamedResources | None,
    ) -> None:
        plan, trainer = self.plan, self._trainer() if self._trainer is not None else None
        if trainer is not None:
            algorithm.set_trainer(trainer)
        algorithm.set_store(store)
        if plan.adapter is not None:
            algorithm.set_adapter(plan.adapter)
        algorithm.set_llm_proxy(plan.llm_proxy)
        algorithm.set_initial_resources(resources)
        algorithm.own_gateway_address = gateway.own_address
        algorithm.agent_prompt, algorithm.agent_takes_prompt = plan.agent_prompt, plan.agent_takes_prompt
        algorithm.run_dir = algorithm.records_dir = plan.run_dir

    async def _train(self, algorithm: Algorithm[Any], store: "AlgorithmStore", progress: Progress) -> None:
        trainer = self._trainer() if self._trainer is not None else None
        if not hasattr(trainer, "follow_loop"):
            trainer = None
        loop, saved = TrainingLoop(self.plan, trainer), self.checkpoints.load_loop()
        progress.follow_loop(lambda: loop.place)
        if trainer is not None:
            trainer.follow_loop(loop)
        with loop.opened(saved):
            async with progress:
                algorithm.set_loop(loop)
                save = lambda state: self.checkpoints.save(state, loop)  # noqa: E731
                algorithm.set_checkpointer(save if self.checkpoints.path is not None else None)
                await self._publish(store, algorithm.get_initial_resources())
                loop.start(saved)
                await self._run_with_retries(algorithm, loop)
                loop.end()

    async def _run_with_retries(self, algorithm: Algorithm[Any], loop: TrainingLoop) -> None:
        left, first = self.plan.retries, loop.own_state()
        while True:
            state = self.checkpoints.load()
            if state is not None:
                algorithm.load_state_dict(state)
            try:
                return await run_to_end(algorithm, self.plan.train_dataset, self.plan.val_dataset)
            except Exception as error:
                self._check_restartable(error, left, loop)
                left -= 1
                log.exception(
                    "the algorithm failed; restarting it from its last checkpoint (%d retries left after this)", left
                )
                loop.restore(self.checkpoints.load_loop() or first)

    def _check_restartable(self, error: Exception, left: int, loop: TrainingLoop) -> None:
        """Raise the error again where a restart is not allowed or would not help."""
        if left > 0 and loop.error is None and self.checkpoints.exist and not is_disk_full(error):
            return
        if left > 0 and loop.error is None and not self.checkpoints.exist:
            log.warning("algorithm_retries has no effect: the algorithm saved no checkpoint")
        # An error of ours says in words what is wrong; whoever catches it has its traceback.
        is_clear = isinstance(error, SharpenError) or is_disk_full(error)
        log.error("the algorithm failed: %s", error, exc_info=not is_clear)
        raise error


# -- its store ---------------------------------------------------------------------------------------


def _pass_on(method: Method) -> Callable[..., Awaitable[Any]]:
    async def call(self: "AlgorithmStore", *args: Any, **kwargs: Any) -> Any:
        return await self._call(method, args, kwargs)

    return call


@forward_methods(_pass_on, derived=True)
class AlgorithmStore(LightningStore):
    """The store as an algorithm sees it: rollouts that come without a configuration get the trainer's.

    It knows which event loops wait in it, so that they can be woken. Closing it closes nothing: the store belongs to
    the run.
    """

    def __init__(self, store: LightningStore, rollout_config: RolloutConfig) -> None:
        self.store = store
        self.rollout_config = rollout_config
        self._waiting: Counter[asyncio.AbstractEventLoop] = Counter()

    async def _call(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "config" in method.parameters and method.name != "update_rollout":
            kwargs, args = method.bind(args, kwargs), ()
            kwargs["config"] = kwargs.get("config") or self.rollout_config
        loop = asyncio.get_running_loop()
        self._waiting[loop] += 1
        try:
            return await getattr(self.store, method.name)(*args, **kwargs)
        finally:
            self._waiting[loop] -= 1
            if not self._waiting[loop]:
                del self._waiting[loop]

    async def enqueue_many_rollouts(
        self,
        requests: Sequence[EnqueueRolloutRequest] = (),
        *,
        rollouts: Sequence[EnqueueRolloutRequest] = (),
    ) -> list[Rollout]:
        filled = [
            request if request.config is not None else msgspec.structs.replace(request, config=self.rollout_config)
            for request in (*requests, *rollouts)
        ]
        found: list[Rollout] = await self._call(METHODS["enqueue_many_rollouts"], (filled,), {})
        return found

    def wake_waiting(self) -> None:
        """Let every loop that waits here turn once: an exception that another thread raised in it takes effect."""
        for loop in list(self._waiting):
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda: None)

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return self.store.capabilities

    def address(self) -> StoreAddress | None:
        return self.store.address()

    def otlp_traces_endpoint(self) -> str:
        return self.store.otlp_traces_endpoint()

    def __getattr__(self, name: str) -> Any:
        if name == "store":  # a half-made copy has none yet
            raise AttributeError(name)
        return getattr(self.store, name)


# -- its checkpoints ---------------------------------------------------------------------------------


class Checkpoints:
    """The checkpoint of a run: the state of the algorithm as JSON, and that of its loop beside it.

    `algorithm.json` is what counts. The state of the loop is in a file whose name is made from the state of the
    algorithm that it belongs to, and is written first; so the two that are read are always of one moment, also when
    the process is killed between them. Without a path nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._disk = FullDisk("checkpoints")

    @property
    def exist(self) -> bool:
        return self.path is not None and self.path.exists()

    def save(self, state: State, loop: TrainingLoop) -> None:
        """Keep the state. While the disk is full, the last one that could be written stays."""
        assert self.path is not None
        with self._disk.tolerated(self.path.parent):
            kept = _loop_path(self.path, state) if loop.is_in_use else None
            if kept is not None:
                save_state(kept, loop.own_state())
            write_json(self.path, state)
            for old in self.path.parent.glob("loop-*.state"):
                if old != kept:
                    old.unlink(missing_ok=True)

    def load(self) -> State | None:
        """Return the state of the algorithm."""
        if self.path is None or not self.path.exists():
            return None
        found: State = read_json(self.path)
        return found

    def load_loop(self) -> State | None:
        """Return the state of the loop at that moment."""
        state = self.load()
        if state is None or self.path is None:
            return None
        remove_leftovers(self.path.parent)
        path = _loop_path(self.path, state)
        found: State | None = load_state(path) if path.exists() else None
        return found


def _loop_path(path: Path, state: Any) -> Path:
    # Read and written once more: what JSON lacks, such as a tuple, is then what it will be when it is loaded.
    plain = msgspec.json.decode(msgspec.json.encode(state))
    digest = hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()
    return path.with_name(f"loop-{digest[:16]}.state")
