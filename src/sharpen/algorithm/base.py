"""`Algorithm`: what asks for rollouts, learns from their spans and publishes better resources.

Before `run` it is given the trainer, the store, the adapter, the gateway and the initial resources. It may run in
another process than the trainer, so it holds the trainer weakly, and what belongs to one process stays behind when
it travels.
"""

import inspect
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol

from ..errors import ConfigError, MissingExtraError
from ..store import LightningStore
from ..types import LLM, Dataset, NamedResources, PromptTemplate, TaskT, Worker
from .bounds import UpperBound

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from ..adapter import TraceAdapter

State = dict[str, Any]


class Gateway(Protocol):
    """What an algorithm needs of an LLM proxy."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    def is_running(self) -> bool: ...
    def as_resource(self) -> LLM: ...


def key_for(gateway: Any, llm: LLM) -> str:
    """The key with which an algorithm calls the gateway of its run outside of any attempt."""
    return llm.resolve_api_key() or getattr(gateway, "run_token", None) or "held-by-the-gateway"


def is_gateway(worker: Worker) -> bool:
    """Whether a worker of the store is a gateway, which keeps its totals there, and no runner."""
    return worker.worker_id.startswith("gateway-")


class IterationLoop(Protocol):
    """What an algorithm reports its iterations to."""

    should_stop: bool
    current_iter: int

    def begin_iteration(self) -> None: ...
    def report_validation(self, metrics: Mapping[str, float], /) -> None: ...
    def report_iteration(self, metrics: Mapping[str, float], val_metrics: Mapping[str, float] | None, /) -> bool: ...


class Algorithm(Generic[TaskT]):
    """Base class of algorithms: they ask for rollouts, learn from their spans, and publish better resources.

    Override `run`, sync or async.
    """

    needs_gateway: bool = False
    """Whether it serves its own model behind a gateway; the trainer creates a gateway if it was given none."""
    runs_side_by_side: bool = False
    """Whether it asks for many rollouts at once, so that async agents run concurrently in a runner."""
    enqueues_tasks: bool = False
    """Whether it enqueues the tasks of its data sets unchanged; the trainer then checks before the run that the store
    can keep them."""
    holds_calls: bool = False
    """Whether the gateway that the run starts holds the agents' calls until the algorithm lets them through."""
    run_dir: Path | None = None
    """The folder it writes to: the run folder, or a folder below it for each stage of a sequence."""
    records_dir: Path | None = None
    """The run folder, which has the metrics."""
    agent_prompt: PromptTemplate | None = None
    """The agent's own prompt, which it uses if no resource contains one."""
    agent_takes_prompt: bool = True
    """Whether the agent takes a prompt from its resources."""
    final_warnings: Sequence[str] = ()
    """Warnings about a run that succeeded, set after `run`. They are already logged, and are part of the result."""
    own_gateway_address: str | None = None
    """The address of the gateway if the run has started it, so that nobody else calls it."""

    @property
    def publishes_model(self) -> bool:
        """Whether agents get their first model from the algorithm instead of the trainer."""
        return self.needs_gateway

    @property
    def default_loggers(self) -> Sequence[Any]:
        """Loggers, or their names, of a trainer that was given none."""
        return ()

    # Set on the class, so that a subclass need not call `super().__init__()`.
    _trainer: "weakref.ref[Any] | None" = None
    _store: LightningStore | None = None
    _adapter: "TraceAdapter[Any] | None" = None
    _llm_proxy: Gateway | None = None
    _initial_resources: NamedResources | None = None
    _save: Callable[[State], None] | None = None
    _loop: IterationLoop | None = None

    def run(
        self, train_dataset: Dataset[TaskT] | None = None, val_dataset: Dataset[TaskT] | None = None
    ) -> None | Awaitable[None]:
        """Do the whole training. The run ends when it returns."""
        raise NotImplementedError(f"{type(self).__name__} does not implement run(): override it")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)

    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.run)

    def upper_bound(self, train_size: int | None, val_size: int | None) -> UpperBound:
        """Return the most rollouts and model calls that a run may take. Override it for `sharpen train --dry-run`.

        Args:
            train_size: Number of training tasks; 0 without a training set, None if the number is unknown.
            val_size: The same for the validation set.
        """
        name = getattr(self, "__name__", type(self).__name__)
        return UpperBound(None, None, (f"{name} does not report how many rollouts it takes",))

    def model_folder(self) -> Path | None:
        """Return the folder of the trained model, or None if there is none."""
        return None

    # -- what it is given ----------------------------------------------------------------------------

    def set_trainer(self, trainer: Any) -> None:
        self._trainer = weakref.ref(trainer)

    def get_trainer(self) -> Any:
        trainer = self._trainer() if self._trainer is not None else None
        if trainer is None:
            raise self._unset("trainer", "it is available only in Trainer.fit, in the process of the trainer")
        return trainer

    def set_store(self, store: LightningStore) -> None:
        self._store = store

    def get_store(self) -> LightningStore:
        if self._store is None:
            raise self._unset("store", "run it with Trainer.fit, or call set_store(store)")
        return self._store

    def set_adapter(self, adapter: "TraceAdapter[Any]") -> None:
        self._adapter = adapter

    def get_adapter(self) -> "TraceAdapter[Any]":
        if self._adapter is None:
            raise self._unset("adapter", "pass adapter= to the Trainer, or call set_adapter(adapter)")
        return self._adapter

    def set_llm_proxy(self, llm_proxy: Gateway | None) -> None:
        self._llm_proxy = llm_proxy

    def get_llm_proxy(self) -> Gateway | None:
        return self._llm_proxy

    def set_initial_resources(self, resources: NamedResources | None) -> None:
        self._initial_resources = resources

    def get_initial_resources(self) -> NamedResources | None:
        return self._initial_resources

    def get_client(self) -> "AsyncOpenAI":
        """Return an OpenAI client whose calls go through the gateway."""
        if self._llm_proxy is None:
            raise ConfigError(f"{type(self).__name__}.get_client() needs a gateway: pass llm_proxy= to the Trainer")
        try:
            from openai import AsyncOpenAI
        except ModuleNotFoundError as error:
            raise MissingExtraError.of("openai", extra="apo", feature="get_client()") from error
        llm = self._llm_proxy.as_resource()
        return AsyncOpenAI(base_url=llm.get_base_url(), api_key=key_for(self._llm_proxy, llm))

    def _unset(self, part: str, way_out: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__} has no {part}: {way_out}")

    # -- iterations ----------------------------------------------------------------------------------

    def set_loop(self, loop: IterationLoop | None) -> None:
        self._loop = loop

    def begin_iteration(self) -> None:
        """Report that an iteration starts. `report_iteration` also does this, but only at the end: callbacks that
        measure the time of an iteration need this call."""
        if self._loop is not None:
            self._loop.begin_iteration()

    def report_iteration(self, metrics: Mapping[str, float], *, val_metrics: Mapping[str, float] | None = None) -> bool:
        """Report the metrics of an iteration to callbacks and loggers, as `train/…` and `val/…`.

        Args:
            metrics: The metrics of the training.
            val_metrics: The metrics of the validation, if the iteration had one.

        Returns:
            True if the algorithm should stop.
        """
        return self._loop is not None and self._loop.report_iteration(metrics, val_metrics)

    def report_validation(self, metrics: Mapping[str, float]) -> None:
        """Report the metrics of a validation between iterations, for example one before the first, to the loggers."""
        if self._loop is not None:
            self._loop.report_validation(metrics)

    def go_on_after(self, iteration: int) -> None:
        """Continue counting after this iteration, if the state was loaded from elsewhere and not saved by this run."""
        if self._loop is not None:
            self._loop.current_iter = max(self._loop.current_iter, iteration)

    @property
    def should_stop(self) -> bool:
        """Whether a callback has asked to stop, in this run or before it was resumed."""
        return self._loop is not None and self._loop.should_stop

    # -- checkpoints ---------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Return what it needs to resume, as JSON. Override it together with `load_state_dict`."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Resume from what `state_dict` returned."""

    def set_checkpointer(self, save: Callable[[State], None] | None) -> None:
        self._save = save

    def checkpoint(self) -> None:
        """Save the current state. After an error, or when the run is resumed, it continues from here."""
        if self._save is not None:
            self._save(self.state_dict())

    def __getstate__(self) -> dict[str, Any]:
        stays_behind = ("_trainer", "_store", "_save", "_loop")
        return {name: value for name, value in self.__dict__.items() if name not in stays_behind}
