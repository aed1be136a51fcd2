"""The algorithm of a run as a strategy gets it: one object that can travel to another process.

A strategy calls `await bundle(store, event)` once. The gateway runs around everything else, progress is shown around
the algorithm, and an algorithm that fails is restarted from its last checkpoint where that is allowed. The other half
of a run is `runner.base.RunnerBundle`.
"""

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..algorithm import Algorithm
from ..algorithm.base import Gateway
from ..algorithm.threads import run_to_end
from ..errors import SharpenError
from ..execution.events import ExecutionEvent
from ..execution.supervisor import lose_those_of_the_dead
from ..files import is_disk_full
from ..store import LightningStore
from ..store.methods import Method, StoreWrapper
from ..types import Dataset, NamedResources, PromptTemplate, RolloutConfig
from .gateway import RunGateway
from .loop import Checkpoints, TrainingLoop
from .progress import Progress

if TYPE_CHECKING:
    from ..adapter import TraceAdapter

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The parts of a run and its settings, in a form that travels. Callbacks and loggers are specs, built where the
    algorithm runs."""

    run_dir: Path
    algorithm: Algorithm[Any] | None = None
    train_dataset: Dataset[Any] | None = None
    val_dataset: Dataset[Any] | None = None
    adapter: "TraceAdapter[Any] | None" = None
    llm_proxy: Gateway | None = None
    initial_resources: NamedResources | None = None
    callbacks: Sequence[Any] = ()
    loggers: Sequence[Any] = ()
    rollout_config: RolloutConfig = field(default_factory=RolloutConfig)
    holds_runners: bool = False
    """Whether runners, which would find work at once, wait until the gateway answers."""
    algorithm_retries: int = 0
    needs_llm: bool = False
    """Whether the agent asks for an LLM that no algorithm publishes."""
    agent_prompt: PromptTemplate | None = None
    agent_takes_prompt: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)
    """The settings, as loggers record them."""
    is_resumed: bool = False
    earlier_seconds: float = 0.0
    """How long the run worked before it was resumed."""
    shows_table: bool = True
    stall_seconds: float = 60.0


class AlgorithmBundle:
    """Gives the algorithm all it needs and runs it. The trainer is there only in its own process."""

    def __init__(self, plan: RunPlan, trainer: Any = None) -> None:
        self.plan, self._trainer, self._checkpoints = plan, trainer, Checkpoints(plan.run_dir)
        self.cancelled_on_stop = plan.algorithm is not None  # which does not see the event
        self.holds_runners = plan.holds_runners
        self.on_begin: Callable[[], object] = lambda: None
        """Called in the process of the trainer when the strategy has begun."""
        self._task: asyncio.Task[Any] | None = None

    def parts(self) -> dict[str, object]:
        """Return what travels, under the names that users know."""
        names = ("algorithm", "train_dataset", "val_dataset", "adapter", "llm_proxy", "initial_resources")
        return {name: getattr(self.plan, name) for name in (*names, "callbacks", "loggers")}

    def folders(self) -> list[Path]:
        """Return the folders where it writes what the trainer reads, wherever it runs."""
        return [self.plan.run_dir]

    def __reduce__(self) -> tuple[Any, ...]:
        return AlgorithmBundle, (self.plan,)

    def cancel(self) -> None:
        """End the algorithm, from any thread. Does nothing where it runs in another process or not at all."""
        task = self._task
        if task is not None and not task.get_loop().is_closed():
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        self._task = asyncio.current_task()
        self.on_begin()
        try:
            await self._run(store, event)
        finally:
            self._task = None

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
            if algorithm is not None:
                algorithm.set_initial_resources(resources)
                await self._train(algorithm, run_store, gateway)
                return
            async with Progress(run_store, plan, gateway):  # others enqueue: serve the runners until somebody stops it
                await self._publish(run_store, resources)
                while not event.is_set():
                    await asyncio.to_thread(event.wait, 0.2)

    async def _publish(self, store: "AlgorithmStore", resources: NamedResources | None) -> None:
        """Rollouts are bound to the latest resources: the first ones are there before anything is enqueued."""
        is_known = self.plan.is_resumed and await store.get_latest_resources() is not None
        if resources is not None and not is_known:
            await store.add_resources(resources)

    async def _train(self, algorithm: Algorithm[Any], store: "AlgorithmStore", gateway: RunGateway) -> None:
        plan, checkpoints = self.plan, self._checkpoints
        trainer = self._trainer if hasattr(self._trainer, "follow_loop") else None
        loop, saved = TrainingLoop(plan, trainer), checkpoints.load_loop()
        if self._trainer is not None:
            algorithm.set_trainer(self._trainer)
        if plan.adapter is not None:
            algorithm.set_adapter(plan.adapter)
        algorithm.set_store(store)
        algorithm.set_llm_proxy(plan.llm_proxy)
        algorithm.own_gateway_address = gateway.own_address
        algorithm.agent_prompt, algorithm.agent_takes_prompt = plan.agent_prompt, plan.agent_takes_prompt
        algorithm.run_dir = algorithm.records_dir = plan.run_dir
        if trainer is not None:
            trainer.follow_loop(loop)
        with loop.opened(saved):
            async with Progress(store, plan, gateway, lambda: loop.place):
                algorithm.set_loop(loop)
                algorithm.set_checkpointer(lambda state: checkpoints.save(state, loop))
                await self._publish(store, algorithm.get_initial_resources())
                loop.start(saved)
                await self._run_with_retries(algorithm, loop)
                loop.end()

    async def _run_with_retries(self, algorithm: Algorithm[Any], loop: TrainingLoop) -> None:
        left, first, checkpoints = self.plan.algorithm_retries, loop.own_state(), self._checkpoints
        while True:
            state = checkpoints.load()
            if state is not None:
                algorithm.load_state_dict(state)
            try:
                return await run_to_end(algorithm, self.plan.train_dataset, self.plan.val_dataset)
            except Exception as error:
                has_checkpoint = checkpoints.exist
                may_retry = left > 0 and loop.error is None
                if not may_retry or not has_checkpoint or is_disk_full(error):
                    if may_retry and not has_checkpoint:
                        log.warning("algorithm_retries has no effect: the algorithm saved no checkpoint")
                    # An error of ours says in words what is wrong; whoever catches it has its traceback.
                    is_clear = isinstance(error, SharpenError) or is_disk_full(error)
                    log.error("the algorithm failed: %s", error, exc_info=not is_clear)
                    raise
                left -= 1
                log.exception(
                    "the algorithm failed; restarting it from its last checkpoint (%d retries left after this)", left
                )
                loop.restore(checkpoints.load_loop() or first)


class AlgorithmStore(StoreWrapper):
    """The store as an algorithm sees it: rollouts that come without a configuration get the trainer's.

    It knows which event loops wait in it, so that they can be woken. Closing it closes nothing: the store belongs to
    the run.
    """

    def __init__(self, store: LightningStore, rollout_config: RolloutConfig) -> None:
        super().__init__(store)
        self.rollout_config = rollout_config
        self._waiting: Counter[asyncio.AbstractEventLoop] = Counter()

    async def _call(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if method.name in ("enqueue_rollout", "enqueue_many_rollouts", "start_rollout"):
            args, kwargs = (), self._with_config(method.bind(args, kwargs))
        loop = asyncio.get_running_loop()
        self._waiting[loop] += 1
        try:
            return await super()._call(method, args, kwargs)
        finally:
            self._waiting[loop] -= 1
            if not self._waiting[loop]:
                del self._waiting[loop]

    def _with_config(self, given: dict[str, Any]) -> dict[str, Any]:
        if "requests" not in given:
            return {**given, "config": given.get("config") or self.rollout_config}
        fill = functools.partial(msgspec.structs.replace, config=self.rollout_config)
        return {"requests": [each if each.config is not None else fill(each) for each in given["requests"]]}

    def wake_waiting(self) -> None:
        """Let every loop that waits here turn once: an exception that another thread raised in it takes effect."""
        for loop in list(self._waiting):
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda: None)

    def __getattr__(self, name: str) -> Any:
        if name == "store":  # a half-made copy has none yet
            raise AttributeError(name)
        return getattr(self.store, name)
