"""The algorithm of a run as a strategy gets it: one object that can travel to another process.

A strategy calls `await algorithm(store, event)` once. The other half of a run is `runner.bundle.RunnerBundle`.
"""

import asyncio
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..algorithm import Algorithm
from ..algorithm.base import Gateway
from ..algorithm.own_thread import run_to_end
from ..errors import SharpenError
from ..execution.events import ExecutionEvent
from ..execution.lost_attempts import lose_those_of_the_dead
from ..files import is_disk_full
from ..runner.bundle import GatewayReadiness
from ..runs.folder import naming_full_disk
from ..store import LightningStore
from ..types import Dataset, NamedResources, PromptTemplate, RolloutConfig
from .algorithm_store import AlgorithmStore
from .checkpoints import Checkpoints
from .gateway import RunGateway
from .loop import LoopPlan, TrainingLoop
from .loop_face import LoopFace
from .progress import Progress, ProgressPlan

if TYPE_CHECKING:
    from ..adapter import TraceAdapter

log = logging.getLogger(__name__)


class AlgorithmBundle:
    """Gives the algorithm all it needs and runs it, again from its last checkpoint where that is allowed."""

    def __init__(
        self,
        algorithm: Algorithm[Any] | None,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
        *,
        rollout_config: RolloutConfig,
        progress: ProgressPlan,
        trainer: Any = None,
        adapter: "TraceAdapter[Any] | None" = None,
        llm_proxy: Gateway | None = None,
        gateway_readiness: GatewayReadiness | None = None,
        initial_resources: NamedResources | None = None,
        checkpoint_path: Path | None = None,
        retries: int = 0,
        loop: LoopPlan | None = None,
        needs_llm: bool = False,
        agent_prompt: PromptTemplate | None = None,
        agent_takes_prompt: bool = True,
    ) -> None:
        self.algorithm = algorithm
        self.train_dataset, self.val_dataset = train_dataset, val_dataset
        self.rollout_config, self.progress = rollout_config, progress
        self.adapter, self.llm_proxy, self.initial_resources = adapter, llm_proxy, initial_resources
        self.gateway_readiness, self.needs_llm = gateway_readiness, needs_llm
        self.agent_prompt, self.agent_takes_prompt = agent_prompt, agent_takes_prompt
        self.checkpoints, self.retries = Checkpoints(checkpoint_path), retries
        self.loop = loop or LoopPlan()
        self._trainer = weakref.ref(trainer) if trainer is not None else None
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None = None
        self.cancelled_on_stop = algorithm is not None  # which does not see the event
        self.on_begin: Callable[[], None] | None = None
        """Called in the process of the trainer when the strategy has begun."""

    def parts(self) -> dict[str, object]:
        """What has to travel, by the names that people know it by."""
        names = ("algorithm", "train_dataset", "val_dataset", "adapter", "llm_proxy", "initial_resources")
        found: dict[str, object] = {name: getattr(self, name) for name in names}
        return found | {"callbacks": self.loop.callbacks, "loggers": self.loop.loggers}

    def folders(self) -> list[Path]:
        """Where it writes what the trainer reads, wherever it runs."""
        return [] if self.loop.run_dir is None else [self.loop.run_dir]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trainer": None, "_running": None, "on_begin": None}

    async def __call__(self, store: LightningStore, event: ExecutionEvent) -> None:
        face = AlgorithmStore(store, self.rollout_config)
        task = asyncio.current_task()
        assert task is not None
        self._running = asyncio.get_running_loop(), task
        if self.on_begin is not None:
            self.on_begin()
        gateway = RunGateway(
            self.llm_proxy,
            readiness=self.gateway_readiness,
            has_travelled=self._trainer is None,
            holds_calls=self.algorithm is not None and self.algorithm.holds_calls,
        )
        try:
            async with gateway.at_work(store, event):
                if self.progress.is_resumed:
                    await lose_those_of_the_dead(store)
                resources = self._first_resources(gateway)
                progress = Progress(face, self.progress, gateway)
                if self.algorithm is None:
                    async with progress:
                        await self._serve(face, event, resources)
                else:
                    self._equip(self.algorithm, face, gateway, resources)
                    with naming_full_disk(self.loop.run_dir):
                        await self._train(self.algorithm, face, progress)
        finally:
            self._running = None

    def _first_resources(self, gateway: RunGateway) -> NamedResources | None:
        if self.algorithm is not None and self.algorithm.publishes_model:
            return self.initial_resources
        return gateway.add_to(self.initial_resources, needs_llm=self.needs_llm)

    def cancel(self) -> None:
        """End the algorithm, from any thread. Does nothing where it runs in another process or not at all."""
        if self._running is not None:
            loop, task = self._running
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

    async def _train(self, algorithm: Algorithm[Any], store: AlgorithmStore, progress: Progress) -> None:
        trainer = self._trainer() if self._trainer is not None else None
        face = trainer if isinstance(trainer, LoopFace) else None
        loop, saved = TrainingLoop(self.loop, algorithm, face), self.checkpoints.load_loop()
        progress.follow_loop(lambda: loop.place)
        if face is not None:
            face.follow_loop(loop)
        with loop.opened(saved):
            async with progress:
                algorithm.set_loop(loop)
                save = lambda state: self.checkpoints.save(state, loop)  # noqa: E731
                algorithm.set_checkpointer(save if self.checkpoints.path is not None else None)
                await self._publish(store, algorithm.get_initial_resources())
                loop.start(saved)
                await self._run(algorithm, loop)
                loop.end()

    async def _run(self, algorithm: Algorithm[Any], loop: TrainingLoop) -> None:
        left, first = self.retries, loop.own_state()
        while True:
            self._load_checkpoint(algorithm)
            try:
                await run_to_end(algorithm, self.train_dataset, self.val_dataset)
                return
            except Exception as error:
                if left <= 0 or loop.error is not None or not self.checkpoints.exist or is_disk_full(error):
                    if left > 0 and loop.error is None and not self.checkpoints.exist:
                        log.warning("algorithm_retries has no effect: the algorithm saved no checkpoint")
                    # An error of ours says in words what is wrong; whoever catches it has its traceback.
                    is_clear = isinstance(error, SharpenError) or is_disk_full(error)
                    log.error("the algorithm failed: %s", error, exc_info=not is_clear)
                    raise
                left -= 1
                log.exception(
                    "the algorithm failed; restarting it from its last checkpoint (%d retries left after this)", left
                )
                loop.restore(self.checkpoints.load_loop() or first)

    async def _serve(self, store: AlgorithmStore, event: ExecutionEvent, resources: NamedResources | None) -> None:
        """Without an algorithm, others enqueue: serve the runners until somebody stops the run."""
        await self._publish(store, resources)
        while not event.is_set():
            await asyncio.to_thread(event.wait, 0.2)

    async def _publish(self, store: AlgorithmStore, resources: NamedResources | None) -> None:
        """Rollouts are bound to the latest resources: the first ones are there before anything is enqueued."""
        is_known = self.progress.is_resumed and await store.get_latest_resources() is not None
        if resources is not None and not is_known:
            await store.add_resources(resources)

    def _equip(
        self, algorithm: Algorithm[Any], store: AlgorithmStore, gateway: RunGateway, resources: NamedResources | None
    ) -> None:
        trainer = self._trainer() if self._trainer is not None else None
        if trainer is not None:
            algorithm.set_trainer(trainer)
        algorithm.set_store(store)
        if self.adapter is not None:
            algorithm.set_adapter(self.adapter)
        algorithm.set_llm_proxy(self.llm_proxy)
        algorithm.set_initial_resources(resources)
        algorithm.own_gateway_address = gateway.own_address
        algorithm.agent_prompt, algorithm.agent_takes_prompt = self.agent_prompt, self.agent_takes_prompt
        algorithm.run_dir = algorithm.records_dir = self.loop.run_dir

    def _load_checkpoint(self, algorithm: Algorithm[Any]) -> None:
        state = self.checkpoints.load()
        if state is not None:
            algorithm.load_state_dict(state)
