"""`Trainer`: builds the parts of a run and hands them to a strategy.

Override a `_make_*` method to build a part your own way. Callbacks and loggers are built later, in the process of the
algorithm; their specs are checked here. One call of `fit` is a `Run` (`run.py`).
"""

import asyncio
import contextvars
import inspect
import logging
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from ..algorithm import Algorithm
from ..algorithm.base import Gateway
from ..algorithm.sequence import AlgorithmSequence, build_stages, file_name
from ..callbacks import Callback
from ..callbacks.base import State
from ..checks import check_bool, check_int, check_ints, check_number, did_you_mean, listed
from ..compat.trainer import TrainerLegacy, check_daemon, renamed
from ..components import DEFAULT_REGISTRY, ComponentSpec, build_component
from ..components.build import has_methods_of
from ..components.paths import Origin, is_address, load_from, resolve_address
from ..components.registry import Target, classes_in_main
from ..errors import ComponentError, ComponentTypeError, ConfigError
from ..execution import ClientServerExecutionStrategy, ExecutionStrategy
from ..litagent import as_agent
from ..loggers import Logger
from ..runner import Runner
from ..runs import RunFolder
from ..secrets import hidden_password
from ..store import LightningStore
from ..types import LLM, Dataset, Hook, NamedResources, PromptTemplate, RolloutConfig
from .algorithm_bundle import RunPlan
from .config import describe, made_by
from .loop import TrainingLoop
from .run import Datasets, Run, algorithm_for, check_datasets
from .status import RunResult, RunStatus, snapshot

if TYPE_CHECKING:
    from ..adapter import TraceAdapter
    from ..tracer import Tracer

T = TypeVar("T")
log = logging.getLogger(__name__)
_SQLITE = re.compile(r"sqlite|(sharpen\.(store\.(sqlite\.)?)?)?SQLiteStore")
Resume = str | os.PathLike[str] | None
DEFAULT_ROLLOUT_CONFIG = RolloutConfig(unresponsive_seconds=60, max_attempts=3, retry_condition=["unresponsive"])


class Trainer(TrainerLegacy):
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
        if stall_seconds != math.inf:  # never
            check_number("stall_seconds", stall_seconds, above=0, unit="seconds")
        check_bool("dev", dev, optional=True)
        check_bool("dashboard", dashboard, optional=True)
        self.is_dev, self.dashboard = bool(dev), dashboard
        self.n_runners, self.max_rollouts, self.port = n_runners, max_rollouts, port
        self.initial_resources = _checked_resources(initial_resources)
        self.rollout_config = _rollout_config(rollout_config)
        self.run_dir, self.name, self.seed = run_dir, name, check_int("seed", seed, optional=True)
        self.algorithm_retries, self.stall_seconds = algorithm_retries, stall_seconds
        if isinstance(algorithm, list):
            algorithm = tuple(algorithm)  # the list may change, the run does not
        parts = {"store": store, "llm_proxy": llm_proxy, "algorithm": algorithm, "strategy": strategy}
        self._specs: dict[str, Any] = {**parts, "runner": runner, "tracer": tracer, "adapter": adapter}
        self._store: LightningStore | None = None
        self._llm_proxy: Gateway | None = None
        self._fitting = threading.Lock()
        self._folder: RunFolder | None = None
        self._is_store_in_folder = False
        self._run: Run | None = None
        self._loop = TrainingLoop(RunPlan(run_dir=Path()))
        self.hooks = self._normalize_hooks(hooks)
        self.callbacks = _listener_specs(callbacks, Callback, "callbacks")
        self.tracer = self._make_tracer(tracer)
        self.adapter = self._make_adapter(adapter)
        offered = {"n_runners": self.n_runners or 1, "port": self.port}  # an override may take fewer
        taken = {name: value for name, value in offered.items() if _accepts(self._make_strategy, **{name: value})}
        self.strategy = self._make_strategy(strategy, **taken)
        self.runner = self._make_runner(runner)
        self._check_agreement()
        self.n_runners = getattr(self.strategy, "n_runners", self.n_runners)
        if getattr(self.runner, "tracer", None) is None:
            self.runner.tracer = self.tracer
        self.algorithm = self._make_algorithm(algorithm)
        if self.algorithm is not None and self.algorithm.needs_gateway and llm_proxy is None:
            self._specs["llm_proxy"] = "LLMProxy"
        own_loggers = () if self.algorithm is None else self.algorithm.default_loggers
        self.loggers = _listener_specs(own_loggers if loggers is None else loggers, Logger, "loggers")

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
        work = partial(self._fit, agent, (train_dataset, val_dataset), resume, is_dev=self.is_dev)
        return _without_loop(work, on_interrupt=self.stop)

    def dev(
        self,
        agent: Any,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
        *,
        resume: Resume = None,
    ) -> RunResult:
        """Try out the agent: like `fit`, with a `FastAlgorithm` (`Baseline` by default)."""
        work = partial(self._fit, agent, (train_dataset, val_dataset), resume, is_dev=True)
        return _without_loop(work, on_interrupt=self.stop)

    async def fit_async(
        self,
        agent: Any,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
        *,
        resume: Resume = None,
    ) -> RunResult:
        """`fit` for async code. Cancelling it ends the run in order."""
        unwanted = threading.Event()  # set for a run that has not begun yet
        work = partial(self._fit, agent, (train_dataset, val_dataset), resume, is_dev=self.is_dev, unwanted=unwanted)
        running = asyncio.wrap_future(_in_thread(work))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not running.done():
                unwanted.set()
                self.stop()
                await asyncio.wait([running])
            raise

    def stop(self) -> None:
        """Ask the run under way to end in order, from any thread."""
        if self._run is not None and self._run.result is None:
            self._run.stop()

    def status(self) -> RunStatus:
        """Return what every rollout and worker is doing now; of the last run, if none is running."""
        run, store = self._run, self._store
        if run is None or store is None:
            return RunStatus(state="not started")
        state = "running" if run.result is None else run.result.status
        run_dir = None if self._folder is None else str(self._folder.path)
        return _without_loop(lambda: asyncio.run(snapshot(store, state, run_dir)))

    @property
    def result(self) -> RunResult | None:
        """The result of the last run, also if it failed."""
        return None if self._run is None else self._run.result

    def _fit(
        self, agent: Any, datasets: Datasets, resume: Resume, *, is_dev: bool, unwanted: threading.Event | None = None
    ) -> RunResult:
        algorithm, lit_agent = algorithm_for(self, is_dev=is_dev), as_agent(agent)
        is_default_store = _has_no_place(self._specs["store"]) and type(self)._make_store is Trainer._make_store
        is_json = is_default_store or isinstance(self.strategy, ClientServerExecutionStrategy)
        check_datasets(algorithm, datasets, is_json=is_json)
        if not self._fitting.acquire(blocking=False):
            raise ConfigError("this Trainer is already running: wait for it to finish, or create another Trainer")
        try:
            self._open_folder(resume, algorithm)
            self._loop = TrainingLoop(RunPlan(run_dir=Path()))
            self._run = Run(self, self._folder, lit_agent, algorithm, datasets, is_resumed=resume is not None)
            if unwanted is not None and unwanted.is_set():
                self._run.stop()
            return self._run.execute()
        finally:
            if self._folder is not None:
                self._folder.release()
            self._fitting.release()

    # -- as the loop of callbacks --------------------------------------------------------------------
    # Callbacks read and set these on the current loop, or on the last one. Where the algorithm runs in another process,
    # its loop is there too, and this one keeps its initial values.

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
        """Return everything that is needed to continue, with the state of the algorithm."""
        return self._loop.state_dict()

    def load_state_dict(self, state_dict: State, /) -> None:
        self._loop.load_state_dict(state_dict)

    # -- the folder and its store --------------------------------------------------------------------

    def _open_folder(self, resume: Resume, algorithm: Algorithm[Any] | None) -> None:
        """The folder for a run that begins or is resumed; the store in it is made anew when it is asked for."""
        if _is_runner_only(self.strategy):
            return
        before, has_had_run = self._folder, self._run is not None and self._run.folder is self._folder
        if before is not None and resume is None and not has_had_run:
            return  # it was made for the store, which was asked for before the run
        self._folder = self._new_folder(algorithm) if resume is None else _folder_of(resume, algorithm)
        if before is not None:
            before.release()
        if self._is_store_in_folder and self._store is not None:
            asyncio.run(self._store.close())
            self._store = self._llm_proxy = None
        self._is_store_in_folder = False

    def _new_folder(self, algorithm: Algorithm[Any] | None) -> RunFolder:
        name = self.name or ("run" if algorithm is None else file_name(algorithm))
        return RunFolder.create(name, run_dir=self.run_dir)

    def _place_of_store(self) -> Path:
        if self._folder is None:
            self._folder = self._new_folder(getattr(self, "algorithm", None))
        self._is_store_in_folder = True
        return self._folder.store_path

    @property
    def store(self) -> LightningStore:
        """The store of the run under way, of the last one, or of the next: made when it is first asked for."""
        if self._store is None:
            given = (self._specs["store"], self.strategy)
            takes_both = _accepts(self._make_store, *given)  # older overrides of the method take no strategy
            self._store = self._make_store(*given) if takes_both else self._make_store(given[0])
        return self._store

    @property
    def made_store(self) -> LightningStore | None:
        """The store, if it has been made already."""
        return self._store

    @property
    def llm_proxy(self) -> Gateway | None:
        """The gateway, made when it is first asked for."""
        if self._llm_proxy is None and self._specs["llm_proxy"] is not None:
            self._llm_proxy = self._make_llm_proxy(self._specs["llm_proxy"], store=self.store)
        return self._llm_proxy

    # -- from specs to parts: what a part's own constructor takes of its siblings, it is given --------

    def _make_tracer(self, tracer: "ComponentSpec[Tracer]") -> "Tracer":
        from ..tracer import OtelTracer, Tracer

        return build_component(tracer, expected_type=Tracer, spec_name="tracer", default_factory=OtelTracer)

    def _make_adapter(self, adapter: "ComponentSpec[TraceAdapter[Any]]") -> "TraceAdapter[Any]":
        from ..adapter import TraceAdapter

        return _built("adapter", adapter, TraceAdapter, "TracerTraceToTriplet")  # type: ignore[type-abstract]

    def _make_algorithm(
        self, algorithm: ComponentSpec[Algorithm[Any]] | Sequence[ComponentSpec[Algorithm[Any]]]
    ) -> Algorithm[Any] | None:
        # The store is made when the run begins, the gateway with it: asking for either is what makes it now.
        names = ("store", "llm_proxy", "tracer", "adapter", "initial_resources")
        offered = {name: partial(getattr, self, name) for name in names}
        if isinstance(algorithm, list | tuple):
            return AlgorithmSequence(build_stages(algorithm, offered=offered))
        return build_component(
            algorithm, expected_type=Algorithm, spec_name="algorithm", allow_none=True, optional_defaults=offered
        )

    def _make_strategy(
        self, strategy: ComponentSpec[ExecutionStrategy], *, n_runners: int | None = None, port: int | None = None
    ) -> ExecutionStrategy:
        # An override may pass neither number on. Where nobody gave n_runners, the strategy has its own default.
        n_runners = self.n_runners if n_runners is None else n_runners
        is_given = self.n_runners is not None or n_runners != 1
        wanted = {"n_runners": n_runners if is_given else None, "server_port": self.port if port is None else port}
        offered = {name: value for name, value in wanted.items() if value is not None}
        return _built("strategy", strategy, ExecutionStrategy, "ClientServerExecutionStrategy", offered)

    def _make_runner(self, runner: ComponentSpec[Runner[Any]]) -> Runner[Any]:
        offered = {"tracer": lambda: self.tracer, "max_rollouts": self.max_rollouts, "hooks": lambda: self.hooks}
        return _built("runner", runner, Runner, "LitAgentRunner", offered)

    def _make_store(
        self, store: ComponentSpec[LightningStore], strategy: ExecutionStrategy | None = None
    ) -> LightningStore:
        if store is None and _is_runner_only(self.strategy if strategy is None else strategy):
            store = "memory"  # never used: the store of this run is served elsewhere
        if is_address(store):
            return _store_at(store)
        if _has_no_place(store):
            given = store if isinstance(store, Mapping) else {}
            store = {**given, "type": "SQLiteStore", "database_url": self._place_of_store()}
        return build_component(
            store, expected_type=LightningStore, spec_name="store", optional_defaults={"thread_safe": True}
        )

    def _make_llm_proxy(self, llm_proxy: ComponentSpec[Any], *, store: LightningStore) -> Gateway | None:
        # A dict without a type is for the gateway of this package, which is imported only then.
        if is_address(llm_proxy):
            llm_proxy = {"type": "LLMProxyClient", "url": resolve_address(llm_proxy)}
        elif isinstance(llm_proxy, Mapping):
            llm_proxy = {"type": "LLMProxy", **llm_proxy}
        return build_component(
            llm_proxy,
            expected_type=Gateway,  # type: ignore[type-abstract]
            spec_name="llm_proxy",
            allow_none=True,
            optional_defaults={"store": lambda: store},
        )

    def _normalize_hooks(self, hooks: Hook | Sequence[Any] | None) -> list[Hook]:
        return [build_component(each, expected_type=Hook, spec_name="hooks") for each in _several(hooks)]

    def _check_agreement(self) -> None:
        """What was given to the trainer must be what strategy and runner have: nothing is dropped in silence."""
        name, strategy = type(self.strategy).__name__, self.strategy
        port, count = getattr(strategy, "server_port", None), getattr(strategy, "n_runners", None)
        if self.port is not None and port != self.port:
            has = f"server_port={port}" if hasattr(strategy, "server_port") else "no store server"
            raise ConfigError(f"port is {self.port}, but the given {name} has {has}: omit port, or change it there")
        if self.n_runners is not None and count is None:
            log.warning("n_runners is %d, but %s does not have that setting", self.n_runners, name)
        elif self.n_runners is not None and count != self.n_runners:
            raise ConfigError(
                f"n_runners is {self.n_runners}, but the given {name} has n_runners={count}: change it there, or pass "
                "only the strategy's name ('shm', 'cs') and n_runners here"
            )
        name, limit = type(self.runner).__name__, getattr(self.runner, "max_rollouts", None)
        if self.max_rollouts is not None and limit != self.max_rollouts:
            raise ConfigError(f"max_rollouts is {self.max_rollouts}, but the given {name} has max_rollouts={limit}")


def _folder_of(resume: str | os.PathLike[str], algorithm: Algorithm[Any] | None) -> RunFolder:
    """Open the folder of an earlier run, which continues with the algorithm that it began with."""
    folder = RunFolder.last() if resume == "last" else RunFolder.open(resume)
    before = made_by(folder.read_config().get("components", {}).get("algorithm"))
    now = made_by(describe(algorithm)) or "no algorithm"
    if before is not None and before != now:
        folder.release()
        raise ConfigError(
            f"the run in {str(folder.path)!r} was made by {before}, not by {now}: use that run's algorithm, or resume "
            "another folder"
        )
    return folder


def _built(
    name: str, spec: ComponentSpec[Any], kind: type[T], default: str, offered: Mapping[str, Any] | None = None
) -> T:
    """Build a part of which there is always one: no spec, and a dict without a type, are for the default."""
    if spec is None or isinstance(spec, Mapping):
        spec = {"type": default, **(spec or {})}
    return build_component(spec, expected_type=kind, spec_name=name, optional_defaults=offered)


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
    if given is None or isinstance(given, RolloutConfig):
        return given or DEFAULT_ROLLOUT_CONFIG
    try:
        return msgspec.convert(dict(given), RolloutConfig)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise ConfigError(f"rollout_config is {given!r}: {error}") from error


def _several(given: Any) -> list[Any]:
    if given is None:
        return []
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]


def _accepts(method: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether a method that somebody may have overridden takes these arguments."""
    try:
        inspect.signature(method).bind_partial(*args, **kwargs)
    except TypeError:
        return False
    return True


# -- what specs mean to a trainer, beyond what `components` makes of any spec --------------------------


def _is_runner_only(strategy: object) -> bool:
    """Whether this process only runs agents for a store and an algorithm elsewhere."""
    return getattr(strategy, "role", None) == "runner"


def _has_no_place(store: ComponentSpec[LightningStore]) -> bool:
    """Whether a spec asks for a durable store without saying where: then it lies in the folder of the run."""
    if isinstance(store, Mapping):
        return _is_sqlite(store.get("type")) and "database_url" not in store
    loaded = getattr(sys.modules.get("sharpen.store.sqlite"), "SQLiteStore", None)  # by whoever has the class
    return store is None or store is loaded or _is_sqlite(store)


def _is_sqlite(name: object) -> bool:
    return isinstance(name, str) and _SQLITE.fullmatch(name) is not None


def _store_at(url: str) -> LightningStore:
    """Open the store that an address names; `env:NAME` stands for one with a password."""
    found = resolve_address(url)
    if not found.startswith(("http://", "https://")):
        from ..store.opening import open_url

        return open_url(found)
    from ..store.client import LightningStoreClient

    try:
        return LightningStoreClient(found)
    except ValueError as error:  # a port that is no number; and our own errors, which say more
        raise ConfigError(f"store is {hidden_password(found)!r}: {error}") from error


def _listener_specs(specs: Any, expected_type: type, spec_name: str) -> list[Any]:
    """The specs of callbacks or loggers, which are built where the algorithm runs. What can be no spec at all is
    refused here, not in the middle of a run."""
    several = _several(specs)
    for spec in several:
        if isinstance(spec, str | Mapping):
            _check_name(spec, expected_type, spec_name)
        elif not callable(spec):
            build_component(spec, expected_type=expected_type, spec_name=spec_name)
    return several


def _check_name(spec: str | Mapping[str, Any], expected_type: type, spec_name: str) -> None:
    """Refuse a name that leads nowhere, with the nearest that does, and one that leads to another kind of part. The
    modules of others are not imported for that."""
    name, origin = spec if isinstance(spec, str) else spec.get("type"), Origin(spec_name, spec)
    if name is None:
        raise ComponentError(f"{origin}: {spec_name} dict must have a 'type' key: a name or an import path")
    known: dict[str, Target] = {**classes_in_main(), **DEFAULT_REGISTRY}
    target = known.get(name, name) if isinstance(name, str) else name
    if isinstance(target, str) and "." not in target:
        package = expected_type.__module__.rpartition(".")[0]
        fitting = sorted(each for each, path in known.items() if str(path).startswith(package))
        hint = did_you_mean(target, fitting) or f" Known names: {listed(fitting)}."
        raise ComponentError(f"{origin}: no component is named {target!r}.{hint}")
    if isinstance(target, str) and _knows_its_names(target.rpartition(".")[0]):
        target = load_from(target, origin)
    if isinstance(target, type) and not (issubclass(target, expected_type) or has_methods_of(target, expected_type)):
        raise ComponentTypeError(f"{origin} resolves to {target.__name__}, which is not a {expected_type.__name__}")


def _knows_its_names(module: str) -> bool:
    """Whether a module is loaded, and looking for a name in it imports nothing else; names of ours are few."""
    found = sys.modules.get(module)
    return found is not None and (not hasattr(found, "__getattr__") or module.startswith("sharpen"))


# -- calls from a thread with an event loop, such as a notebook's ------------------------------------


def _without_loop(work: Callable[[], T], on_interrupt: Callable[[], None] = lambda: None) -> T:
    """Do the work here or, if an event loop runs here, in another thread. Ctrl-C asks that one to stop, and is raised
    once it has."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    future = _in_thread(work)
    try:
        return future.result()
    except KeyboardInterrupt:
        if not future.done():
            on_interrupt()
            future.exception()
        raise


def _in_thread(work: Callable[[], T]) -> "Future[T]":
    """Begin in a thread; whatever it raises is in the future."""
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def run() -> None:
        try:
            future.set_result(context.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            future.set_exception(error)

    threading.Thread(target=run, name="sharpen-fit", daemon=True).start()
    return future
