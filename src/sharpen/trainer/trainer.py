"""`Trainer`: builds the parts of a run and hands them to a strategy."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from ..algorithm import Algorithm, Baseline, FastAlgorithm, FunctionalAlgorithm
from ..algorithm.sequence import file_name, stages_of, title_of
from ..callbacks import Callback
from ..callbacks.base import State
from ..checks import check_choice, check_int, check_ints, check_number
from ..compat.trainer import check_daemon, renamed
from ..components import ComponentSpec
from ..errors import ComponentTypeError, ConfigError
from ..execution import ClientServerExecutionStrategy, ExecutionStrategy
from ..litagent import as_agent
from ..loggers import Logger
from ..runner import Runner
from ..runs import RunFolder
from ..store import LightningStore
from ..store.task_json import check_task
from ..types import LLM, Dataset, Hook, NamedResources, PromptTemplate, RolloutConfig, SizedDataset
from .config import describe, made_by
from .factories import Factories, has_no_place, is_runner_only, log, taken_by
from .loop import TrainingLoop
from .plan import RunPlan
from .run import Run
from .status import RunResult, RunStatus, snapshot
from .waiting import call_sync, has_running_loop, start_thread, wait_for_thread

if TYPE_CHECKING:
    from ..adapter import TraceAdapter
    from ..tracer import Tracer

Resume = str | os.PathLike[str] | None
DEFAULT_ROLLOUT_CONFIG = RolloutConfig(unresponsive_seconds=60, max_attempts=3, retry_condition=["unresponsive"])


class Trainer(Factories):
    """Connects an algorithm, a store and runners, and runs them.

    A component (algorithm, store, strategy, tracer, adapter, runner, gateway, callback, logger) is passed as an
    instance, a class, a factory, a registered name, an import path, or a dict with `type`.

    Example:
        >>> trainer = Trainer(algorithm=GRPO("Qwen/Qwen3-0.6B"), n_runners=4)
        >>> result = trainer.fit(agent, train_tasks, val_tasks)

    Args:
        dev: Allow only a `FastAlgorithm`, as `dev(...)` does.
        n_runners: Number of runners; None leaves it to the strategy (1 by default).
        max_rollouts: Rollouts after which a runner stops; None for no limit.
        initial_resources: Prompts and LLMs by name, published before the algorithm starts.
        tracer: Records the spans of agents (default: `OtelTracer`).
        adapter: Turns spans into what the algorithm learns from (default: `TracerTraceToTriplet`).
        store: Where rollouts are kept (default: a SQLite file in the run folder). Also the address of a store server
            (`http://…`) or a database (`postgresql://…`, `redis://…`, `sqlite:///PATH`), or `env:NAME` to read the
            address, with its password, from the environment.
        runner: Runs the agent (default: `LitAgentRunner`).
        strategy: Layout of algorithm and runners: `"cs"` for processes (default), `"shm"` for threads, `"ray"`.
        port: Port of the store server (default: a free one, or 4747 for separate roles).
        algorithm: What learns. A list runs its members in sequence on the same agent, each starting from the resources
            that the previous one published; a resumed run continues in the right one.
        llm_proxy: The gateway, started and stopped with the run unless it is running already, and restarted on the same
            port if its process dies. If `initial_resources` has no LLM, agents receive it as `main_llm`. Also the
            address of a gateway that was started separately (`sharpen gateway`) and uses the same store.
        hooks: Called around rollouts and traces, in the runners.
        callbacks: Called around the iterations that the algorithm reports, in its process. The trainer is the loop, the
            algorithm what is trained.
        loggers: Receive the metrics of iterations. One that takes a folder and has none writes to the run folder.
        rollout_config: Timeouts and retries of rollouts that are enqueued without their own.
        run_dir: Folder of the run (default: a new one in `./runs`).
        name: Part of the new folder's name.
        seed: Seeds Python, and NumPy and torch if they are loaded, in this process.
        algorithm_retries: How often an algorithm that failed is restarted from its checkpoint.
        stall_seconds: Log a warning if nothing has finished for this long although there is work.
        dashboard: Serve the dashboard beside the store; None does so if its packages are installed.
        n_workers: Deprecated; use `n_runners`.
        max_tasks: Deprecated; use `max_rollouts`.
        daemon: Deprecated; runners always stop with the run.
        triplet_exporter: Deprecated; use `adapter`.
    """

    SETTINGS: ClassVar = ("is_dev", "n_runners", "max_rollouts", "port", "seed", "algorithm_retries")

    def __init__(
        self,
        *,
        dev: bool = False,
        n_runners: int | None = None,
        max_rollouts: int | None = None,
        initial_resources: NamedResources | None = None,
        tracer: "ComponentSpec[Tracer]" = None,
        adapter: "ComponentSpec[TraceAdapter[Any]]" = None,
        store: ComponentSpec[LightningStore] = None,
        runner: ComponentSpec[Runner[Any]] = None,
        strategy: ComponentSpec[ExecutionStrategy] = None,
        port: int | None = None,
        algorithm: ComponentSpec[Algorithm[Any]] | Sequence[ComponentSpec[Algorithm[Any]]] = None,
        llm_proxy: ComponentSpec[Any] = None,
        hooks: Hook | Sequence[Any] | None = None,
        callbacks: ComponentSpec[Callback] | Sequence[ComponentSpec[Callback]] = None,
        loggers: ComponentSpec[Logger] | Sequence[ComponentSpec[Logger]] = None,
        rollout_config: RolloutConfig | Mapping[str, Any] | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        name: str | None = None,
        seed: int | None = None,
        algorithm_retries: int = 0,
        stall_seconds: float = 60.0,
        dashboard: bool | None = None,
        n_workers: int | None = None,
        max_tasks: int | None = None,
        daemon: bool | None = None,
        triplet_exporter: "ComponentSpec[TraceAdapter[Any]]" = None,
    ) -> None:
        n_runners = renamed("n_workers", n_workers, n_runners)
        max_rollouts = renamed("max_tasks", max_tasks, max_rollouts)
        adapter = renamed("triplet_exporter", triplet_exporter, adapter)
        check_daemon(daemon)
        check_ints(n_runners=n_runners, max_rollouts=max_rollouts)
        check_ints(at_least=0, algorithm_retries=algorithm_retries)
        seed = check_int("seed", seed, optional=True)
        check_number("stall_seconds", stall_seconds, above=0, unit="seconds")
        check_choice("dev", dev, (True, False))
        check_choice("dashboard", dashboard, (True, False), optional=True)
        self.is_dev = dev
        self.n_runners, self.max_rollouts, self.port = n_runners, max_rollouts, port
        self.initial_resources = _checked_resources(initial_resources)
        self.rollout_config = _rollout_config(rollout_config)
        self.run_dir, self.name, self.seed = run_dir, name, seed
        self.algorithm_retries, self.stall_seconds = algorithm_retries, stall_seconds
        self.dashboard = dashboard
        if isinstance(algorithm, list):
            algorithm = tuple(algorithm)  # the list may change, the run does not
        self._specs = {"store": store, "llm_proxy": llm_proxy, "algorithm": algorithm, "strategy": strategy}
        self._specs |= {"runner": runner, "tracer": tracer, "adapter": adapter}
        self._fitting = threading.Lock()
        self._folder: RunFolder | None = None
        self._is_folder_new = False
        self._is_store_in_folder = False
        self._run: Run | None = None
        self._reset_loop()
        self.hooks = self._normalize_hooks(hooks)
        self.callbacks = self._normalize_callbacks(callbacks)
        self.tracer = self._make_tracer(tracer)
        self.adapter = self._make_adapter(adapter)
        named = taken_by(self._make_strategy, n_runners=self.n_runners or 1, port=self.port)
        self.strategy = self._make_strategy(strategy, **named)
        self._check_strategy()
        self.n_runners = getattr(self.strategy, "n_runners", self.n_runners)
        self.runner = self._make_runner(runner)
        self._check_runner(self.runner)
        self.algorithm = self._make_algorithm(algorithm)
        if self.algorithm is not None and self.algorithm.needs_gateway and llm_proxy is None:
            self._specs["llm_proxy"] = "LLMProxy"
        own_loggers = () if self.algorithm is None else self.algorithm.default_loggers
        self.loggers = self._normalize_loggers(own_loggers if loggers is None else loggers)

    def spec_of(self, name: str) -> Any:
        """What was given for a component."""
        return self._specs[name]

    secrets: Mapping[str, str] = {}
    """Values that must not be logged, and what stands for each; for subclasses that know of secrets."""

    def hide(self, value: Any) -> Any:
        """A value as it may be written into the folder of a run; for subclasses that know of secrets."""
        return value

    # -- running -------------------------------------------------------------------------------------

    def fit(
        self,
        agent: Any,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
        *,
        resume: Resume = None,
    ) -> RunResult:
        """Run the algorithm to its end on the data sets, with the agent in the runners; raise its error if it fails.

        Args:
            agent: A `LitAgent`, or a function decorated with `@rollout`.
            train_dataset: Tasks to learn from.
            val_dataset: Tasks to measure with.
            resume: Resume an earlier run: `"last"`, or its folder.
        """
        return self._wait_for(agent, train_dataset, val_dataset, resume, is_dev=self.is_dev)

    def dev(
        self,
        agent: Any,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
        *,
        resume: Resume = None,
    ) -> RunResult:
        """Try out the agent: like `fit`, with a `FastAlgorithm` (`Baseline` by default)."""
        return self._wait_for(agent, train_dataset, val_dataset, resume, is_dev=True)

    async def fit_async(
        self,
        agent: Any,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
        *,
        resume: Resume = None,
    ) -> RunResult:
        """`fit` for async code. Cancelling it ends the run in order."""
        asked = threading.Event()
        arguments = (agent, train_dataset, val_dataset, resume)
        work = partial(self._fit, *arguments, is_dev=self.is_dev, is_unwanted=asked.is_set)
        running = asyncio.wrap_future(start_thread(work, "sharpen-fit"))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not running.done():
                asked.set()  # for a run that has not begun yet
                self.stop()
                await asyncio.wait([running])
            raise

    def stop(self) -> None:
        """Ask the run under way to end in order, from any thread."""
        run = self._run
        if run is not None and run.result is None:
            run.stop()

    def status(self) -> RunStatus:
        """Return what every rollout and worker is doing now; of the last run, if none is running."""
        run, store = self._run, self._store
        if run is None or store is None:
            return RunStatus(state="not started")
        state = "running" if run.result is None else run.result.status
        run_dir = None if self._folder is None else str(self._folder.path)
        return call_sync(lambda: snapshot(store, state, run_dir))

    @property
    def result(self) -> RunResult | None:
        """The result of the last run, also if it failed."""
        return None if self._run is None else self._run.result

    def _wait_for(self, *arguments: Any, is_dev: bool) -> RunResult:
        work = partial(self._fit, *arguments, is_dev=is_dev)
        if not has_running_loop():
            return work()
        return wait_for_thread(work, "sharpen-fit", on_interrupt=self.stop)

    def _fit(
        self,
        agent: Any,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
        resume: Resume,
        *,
        is_dev: bool,
        is_unwanted: Callable[[], bool] = lambda: False,
    ) -> RunResult:
        for name, dataset in (("train_dataset", train_dataset), ("val_dataset", val_dataset)):
            self._check_dataset(name, dataset)
        algorithm, lit_agent = self._algorithm_for(is_dev=is_dev), as_agent(agent)
        if algorithm is None:
            self._refuse_listeners()
        self._check_tasks(algorithm, train_dataset=train_dataset, val_dataset=val_dataset)
        functions = [stage for stage in stages_of(algorithm) if isinstance(stage, FunctionalAlgorithm)]
        if self.algorithm_retries and functions:
            raise ConfigError(
                f"algorithm_retries is {self.algorithm_retries}, but {title_of(functions[0])} is an @algo function, "
                "which saves no checkpoint to restart from: write an Algorithm with state_dict, load_state_dict and "
                "checkpoint(), or omit algorithm_retries"
            )
        if algorithm is None and (train_dataset is not None or val_dataset is not None):
            log.warning("tasks were given, but no algorithm to enqueue them: use dev(...) or Trainer(algorithm=...)")
        if not self._fitting.acquire(blocking=False):
            raise ConfigError("this Trainer is already running: wait for it to finish, or create another Trainer")
        try:
            self._open_folder(resume, algorithm)
            self._reset_loop()
            datasets = (train_dataset, val_dataset)
            self._run = Run(self, self._folder, lit_agent, algorithm, *datasets, is_resumed=resume is not None)
            if is_unwanted():
                self._run.stop()
            return self._run.execute()
        finally:
            if self._folder is not None:
                self._folder.release()
            self._fitting.release()

    def _algorithm_for(self, *, is_dev: bool) -> Algorithm[Any] | None:
        if not is_dev:
            return self.algorithm
        if self.algorithm is None:
            return Baseline()
        slow = [type(stage).__name__ for stage in stages_of(self.algorithm) if not isinstance(stage, FastAlgorithm)]
        if slow:
            raise ComponentTypeError(
                f"dev mode is for trying out an agent and takes a FastAlgorithm such as Baseline, "
                f"but the algorithm is {slow[0]}: use fit instead"
            )
        return self.algorithm

    def _refuse_listeners(self) -> None:
        """Iterations are what an algorithm reports: without one, callbacks and loggers would never hear of anything."""
        for name, given in (("callbacks", self.callbacks), ("loggers", self.loggers)):
            if given:
                raise ConfigError(
                    f"{name} are given, but there is no algorithm whose iterations would call them: use "
                    f"Trainer(algorithm=...) or dev(...), or omit {name}"
                )

    def _check_dataset(self, name: str, dataset: Any) -> None:
        self._refuse_address(name, dataset)
        is_dataset = isinstance(dataset, SizedDataset | Iterable) and not isinstance(dataset, Mapping | bytes)
        if dataset is not None and not is_dataset:
            raise ComponentTypeError(
                f"{name} is a {type(dataset).__name__}: pass a list of tasks, anything with __len__ and __getitem__, "
                "or an iterable"
            )

    def _check_tasks(self, algorithm: Algorithm[Any] | None, **datasets: Dataset[Any] | None) -> None:
        """Refuse tasks that the store cannot keep before anything is written: all of a list, the first of other data
        sets with an index, which may be large or slow to read. An iterable may be readable only once."""
        is_default_store = has_no_place(self._specs["store"]) and type(self)._make_store is Trainer._make_store
        is_json = is_default_store or isinstance(self.strategy, ClientServerExecutionStrategy)
        if not is_json or not any(stage.enqueues_tasks for stage in stages_of(algorithm)):
            return
        for name, dataset in datasets.items():
            if isinstance(dataset, SizedDataset):
                count = len(dataset) if isinstance(dataset, list | tuple) else min(len(dataset), 1)
                for index in range(count):
                    check_task(dataset[index], f"{name}[{index}]")

    # -- as the loop of callbacks --------------------------------------------------------------------
    # What callbacks read and set is of the loop under way, or of the last one. Where the algorithm runs in another
    # process, its loop is there too, and this one stays at its beginning.

    def _reset_loop(self) -> None:
        self._loop = TrainingLoop(RunPlan())

    def follow_loop(self, loop: TrainingLoop) -> None:
        self._loop = loop

    @property
    def metrics(self) -> dict[str, float]:
        """Of the newest iteration that the algorithm reported: `train/…` and `val/…`."""
        return self._loop.metrics

    @metrics.setter
    def metrics(self, metrics: dict[str, float]) -> None:
        self._loop.metrics = metrics

    @property
    def current_iter(self) -> int:
        """How many iterations are finished."""
        return self._loop.current_iter

    @current_iter.setter
    def current_iter(self, number: int) -> None:
        self._loop.current_iter = number

    @property
    def current_stage(self) -> str:
        return self._loop.current_stage

    @current_stage.setter
    def current_stage(self, stage: str) -> None:
        self._loop.current_stage = stage

    @property
    def should_stop(self) -> bool:
        """Set it, and the algorithm is told so when it reports its iteration."""
        return self._loop.should_stop

    @should_stop.setter
    def should_stop(self, should_stop: bool) -> None:
        self._loop.should_stop = should_stop

    def state_dict(self) -> dict[str, Any]:
        """Everything that is needed to go on, the state of the algorithm included."""
        return self._loop.state_dict()

    def load_state_dict(self, state_dict: State, /) -> None:
        self._loop.load_state_dict(state_dict)

    # -- the folder and its store --------------------------------------------------------------------

    def _open_folder(self, resume: Resume, algorithm: Algorithm[Any] | None) -> None:
        """The folder for a run that begins; the store in it is made anew when it is asked for."""
        if is_runner_only(self.strategy):
            return
        if self._is_folder_new and resume is None:
            self._is_folder_new = False  # the store was asked for before the run
            return
        self._leave_folder()
        if resume is None:
            self._folder = self._new_folder(algorithm)
        else:
            self._folder = RunFolder.last() if resume == "last" else RunFolder.open(resume)
            self._check_same_run(self._folder, algorithm)

    def _check_same_run(self, folder: RunFolder, algorithm: Algorithm[Any] | None) -> None:
        """A run goes on with the algorithm that it began with."""
        before = made_by(folder.read_config().get("components", {}).get("algorithm"))
        now = made_by(describe(algorithm)) or "no algorithm"
        if before is not None and before != now:
            folder.release()
            raise ConfigError(
                f"the run in {str(folder.path)!r} was made by {before}, not by {now}: use that run's "
                "algorithm, or resume another folder"
            )

    def _new_folder(self, algorithm: Algorithm[Any] | None) -> RunFolder:
        return RunFolder.create(
            self.name or ("run" if algorithm is None else file_name(algorithm)), run_dir=self.run_dir
        )

    def _leave_folder(self) -> None:
        if self._folder is not None:
            self._folder.release()
        if self._is_store_in_folder and self._store is not None:
            call_sync(self._store.close)
            self._store = self._llm_proxy = None
        self._is_store_in_folder = self._is_folder_new = False

    def _place_of_store(self) -> Path:
        if self._folder is None:
            self._folder = self._new_folder(getattr(self, "algorithm", None))
            self._is_folder_new = True
        self._is_store_in_folder = True
        return self._folder.store_path


def _checked_resources(resources: NamedResources | None) -> NamedResources | None:
    if resources is not None and not isinstance(resources, Mapping):
        raise ConfigError(f"initial_resources is a {type(resources).__name__}: pass a dict from names to resources")
    for name, resource in (resources or {}).items():
        if isinstance(resource, str):
            raise ConfigError(f"initial_resources[{name!r}] is a str; pass PromptTemplate({resource[:40]!r}) instead")
        if not isinstance(resource, LLM | PromptTemplate):
            kind = type(resource).__name__
            raise ConfigError(f"initial_resources[{name!r}] is a {kind}: pass an LLM or a PromptTemplate")
    return resources


def _rollout_config(given: RolloutConfig | Mapping[str, Any] | None) -> RolloutConfig:
    if given is None:
        return DEFAULT_ROLLOUT_CONFIG
    if isinstance(given, RolloutConfig):
        return given
    try:
        return msgspec.convert(dict(given), RolloutConfig)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise ConfigError(f"rollout_config is {given!r}: {error}") from error
