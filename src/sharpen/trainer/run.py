"""`Run`: one call of `fit`, from the folder it is kept in to the result it leaves behind.

It goes through four steps: build the parts, hand them to the strategy, wait until the strategy has brought algorithm
and runners to their end, and report. Whatever ends a run, how it ended is written down.
"""

import asyncio
import contextlib
import inspect
import logging
import random
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..algorithm import Algorithm, Baseline, FastAlgorithm, FunctionalAlgorithm
from ..algorithm.prompts.templates import prompt_of_agent, takes_prompt
from ..algorithm.rewards import why_failed, with_last_attempt, with_old_names
from ..algorithm.sequence import stages_of, title_of
from ..checks import check_installed
from ..compat.trainer import refuse_address
from ..errors import ComponentTypeError, ConfigError, SharpenError
from ..execution import ExecutionStrategy
from ..execution.serving import Mount
from ..litagent import FunctionalLitAgent, LitAgent
from ..logging import also_to_file, is_set_up, setup_logging
from ..runner.base import RunnerBundle
from ..runs import RunFolder
from ..runs.folder import EARLIER, FullDisk, moment, naming_full_disk
from ..secrets import hiding
from ..store import LightningStore
from ..store.local import LocalStore
from ..store.task_json import check_task
from ..types import Dataset, ProxyLLM, ResourcesUpdate, SizedDataset
from .algorithm_bundle import AlgorithmBundle, RunPlan
from .config import resolved_config
from .status import RunEnd, RunResult

if TYPE_CHECKING:
    from .trainer import Trainer

T = TypeVar("T")
log = logging.getLogger(__name__)
ASYNC_AGENTS = 32  # side by side in a runner
Datasets = tuple[Dataset[Any] | None, Dataset[Any] | None]
DASHBOARD_PREFIX = "/dashboard"
DASHBOARD = "sharpen.dashboard.mounted:dashboard_app"


# -- before anything is written ----------------------------------------------------------------------


def algorithm_for(trainer: "Trainer", *, is_dev: bool) -> Algorithm[Any] | None:
    """Return the algorithm of the next run, or refuse it."""
    algorithm: Algorithm[Any] | None = trainer.algorithm or (Baseline() if is_dev else None)
    if algorithm is None:
        # Iterations are what an algorithm reports: without one, these would never hear of anything.
        for name, given in (("callbacks", trainer.callbacks), ("loggers", trainer.loggers)):
            if given:
                raise ConfigError(
                    f"{name} are given, but there is no algorithm whose iterations would call them: use "
                    f"Trainer(algorithm=...) or dev(...), or omit {name}"
                )
    for stage in stages_of(algorithm):
        if is_dev and not isinstance(stage, FastAlgorithm):
            raise ComponentTypeError(
                "dev mode is for trying out an agent and takes a FastAlgorithm such as Baseline, but the algorithm is "
                f"{type(stage).__name__}: use fit instead"
            )
        if trainer.algorithm_retries and isinstance(stage, FunctionalAlgorithm):
            raise ConfigError(
                f"algorithm_retries is {trainer.algorithm_retries}, but {title_of(stage)} is an @algo function, which "
                "saves no checkpoint to restart from: write an Algorithm with state_dict, load_state_dict and "
                "checkpoint(), or omit algorithm_retries"
            )
    return algorithm


def check_datasets(algorithm: Algorithm[Any] | None, datasets: Datasets, *, is_json: bool) -> None:
    """Refuse what is no data set, and tasks that a store of JSON cannot keep: all of a list, the first of other data
    sets with an index, which may be large or slow to read. An iterable may be readable only once."""
    given = {
        name: each for name, each in zip(("train_dataset", "val_dataset"), datasets, strict=True) if each is not None
    }
    for name, dataset in given.items():
        refuse_address(name, dataset)
        if not isinstance(dataset, SizedDataset | Iterable) or isinstance(dataset, Mapping | bytes):
            raise ComponentTypeError(
                f"{name} is a {type(dataset).__name__}: pass a list of tasks, anything with __len__ and __getitem__, "
                "or an iterable"
            )
    if algorithm is None and given:
        log.warning("tasks were given, but no algorithm to enqueue them: use dev(...) or Trainer(algorithm=...)")
    if is_json and any(stage.enqueues_tasks for stage in stages_of(algorithm)):
        for name, dataset in given.items():
            if isinstance(dataset, SizedDataset):
                count = len(dataset) if isinstance(dataset, list | tuple) else min(len(dataset), 1)
                for index in range(count):
                    check_task(dataset[index], f"{name}[{index}]")


class Run:
    """One call of `fit`: `execute` builds the parts, hands them to the strategy, and reports how it ended. Where there
    is no folder, this process only runs agents for a store and an algorithm elsewhere."""

    def __init__(
        self,
        trainer: "Trainer",
        folder: RunFolder | None,
        agent: LitAgent[Any],
        algorithm: Algorithm[Any] | None,
        datasets: Datasets,
        *,
        is_resumed: bool,
    ) -> None:
        self.trainer, self.folder, self.agent, self.algorithm = trainer, folder, agent, algorithm
        self.datasets, self.is_resumed = datasets, is_resumed
        self.result: RunResult | None = None
        self._bundle: AlgorithmBundle | None = None
        self._is_stopped = False
        self._started, self._began, self._earlier_seconds = "", time.monotonic(), 0.0
        self._stages = stages_of(algorithm)
        self._run_dir = None if folder is None else folder.path

    def execute(self) -> RunResult:
        """Run to the end. An error passes to the caller, after it was recorded."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(hiding(self.trainer.secrets))
            if not is_set_up():
                setup_logging()
            if self.folder is not None:
                stack.enter_context(also_to_file(self.folder.log_path))
            try:
                with naming_full_disk(self._run_dir):
                    self._hand_over(*self._build())
            except BaseException as error:
                self.result = self._conclude(error)
                if not self._is_stopped or not isinstance(error, asyncio.CancelledError):
                    raise
            else:
                self.result = self._conclude(None)
            return self.result

    def stop(self) -> None:
        """Ask the run to end in order, from any thread."""
        self._is_stopped = True
        strategy = self.trainer.strategy
        if getattr(type(strategy), "stop", ExecutionStrategy.stop) is not ExecutionStrategy.stop:
            strategy.stop()
        elif self._bundle is not None:
            self._bundle.cancel()

    # -- the parts -----------------------------------------------------------------------------------

    def _build(self) -> tuple[AlgorithmBundle, RunnerBundle]:
        """Lay out the two halves of the run, and write down what it consists of."""
        trainer, agent, algorithm = self.trainer, self.agent, self.algorithm
        if trainer.seed is not None:  # of Python's own generator, and those that are loaded already
            random.seed(trainer.seed)
            if (numpy := sys.modules.get("numpy")) is not None:
                numpy.random.seed(trainer.seed % 2**32)
            if (torch := sys.modules.get("torch")) is not None:
                torch.manual_seed(trainer.seed)
        agent.set_trainer(trainer)
        adapter: Any = trainer.adapter
        if agent.trained_agents is not None and getattr(adapter, "agent_match", "") is None:
            adapter.agent_match = agent.trained_agents
        self._raise_concurrency()
        self._mount_dashboard()
        config: dict[str, Any] = trainer.hide(resolved_config(self))
        if self.folder is not None:
            if self.is_resumed:
                config = self.folder.resumed_config(config)
                self._earlier_seconds = config[EARLIER]
            self.folder.write_config(config)
            if algorithm is not None:  # one that runs in another process is asked here where its model is
                algorithm.run_dir = self.folder.path
        self._started = config["started"]
        bundle = self._bundle = AlgorithmBundle(self._plan(config), trainer)
        # A strategy that was asked to stop before it began has not heard of it.
        bundle.on_begin = lambda: self.stop() if self._is_stopped else None
        return bundle, RunnerBundle(agent, trainer.runner, trainer.hooks)

    def _plan(self, config: dict[str, Any]) -> RunPlan:
        trainer, agent, stages = self.trainer, self.agent, self._stages
        is_asking = isinstance(agent, FunctionalLitAgent) and agent.asks_for("llm")
        return RunPlan(
            run_dir=self._run_dir or Path(),  # without one, no algorithm runs here
            algorithm=self.algorithm,
            train_dataset=self.datasets[0],
            val_dataset=self.datasets[1],
            adapter=trainer.adapter,
            llm_proxy=trainer.llm_proxy,
            initial_resources=trainer.initial_resources,
            callbacks=trainer.callbacks,
            loggers=trainer.loggers,
            rollout_config=trainer.rollout_config,
            algorithm_retries=trainer.algorithm_retries,
            stall_seconds=trainer.stall_seconds,
            holds_runners=self._may_find_work() and trainer.llm_proxy is not None,
            needs_llm=is_asking and bool(stages) and isinstance(stages[0], Baseline) and not self.is_resumed,
            agent_prompt=prompt_of_agent(agent),
            agent_takes_prompt=takes_prompt(agent),
            config=msgspec.to_builtins(config, enc_hook=str),
            is_resumed=self.is_resumed,
            earlier_seconds=self._earlier_seconds,
            # A Baseline shows its own.
            shows_table=not stages or any(not isinstance(each, Baseline) for each in stages),
        )

    def _raise_concurrency(self) -> None:
        """Where the algorithm asks for many rollouts at once, async agents run side by side unless a runner was
        given."""
        algorithm, runner = self.algorithm, self.trainer.runner
        if algorithm is None or not algorithm.runs_side_by_side or self.trainer.spec_of("runner") is not None:
            return
        if self.agent.is_async():
            runner.concurrency = max(runner.concurrency, ASYNC_AGENTS)
        elif runner.concurrency == 1:
            log.info("the agent is not async, so each runner runs one rollout at a time; raise n_runners for more")

    def _may_find_work(self) -> bool:
        """Whether rollouts may wait in the store before the algorithm has begun, or others may enqueue them."""
        store = self.trainer.store
        if self.is_resumed or self.algorithm is None or not isinstance(store, LocalStore):
            return True
        waiting = asyncio.run(store.statistics())["queue_length"]
        if waiting:
            log.warning("the store has %d queued rollouts from elsewhere; this run will work on them too", waiting)
        return bool(waiting)

    def _mount_dashboard(self) -> None:
        """Have the strategy serve the dashboard beside the store, where it serves one and jinja2 is installed."""
        strategy, wanted = self.trainer.strategy, self.trainer.dashboard
        if not hasattr(strategy, "mounts"):
            if wanted:
                raise ConfigError(
                    f"dashboard=True, but {type(strategy).__name__} does not serve the store: omit it, or use "
                    "strategy='cs'"
                )
            return
        if wanted:
            check_installed("jinja2", extra="dashboard", feature="the dashboard")
        strategy.mounts = [mount for mount in strategy.mounts if mount.prefix != DASHBOARD_PREFIX]
        if wanted is not False and find_spec("jinja2") is not None:
            run = self._run_dir
            options = {"name": "store"} if run is None else {"name": run.name, "run_path": str(run)}
            strategy.mounts.append(Mount(DASHBOARD_PREFIX, DASHBOARD, "dashboard", options))

    # -- in the hands of the strategy ----------------------------------------------------------------

    def _hand_over(self, algorithm: AlgorithmBundle, runner: RunnerBundle) -> None:
        """Have the strategy run both halves to their end."""
        trainer = self.trainer
        if self.folder is None:
            log.info("starting runners for a store that is served elsewhere")
        else:
            begin = "resuming" if self.is_resumed else "starting"
            title = "no algorithm" if self.algorithm is None else title_of(self.algorithm)
            parts = f"{title}, {type(trainer.strategy).__name__}, {type(trainer.store).__name__}"
            log.info("%s the run in %s: %s", begin, self._run_dir, parts)
        self._warn_of_content()
        executing: Any = trainer.strategy.execute(algorithm, runner, trainer.store)
        if inspect.isawaitable(executing):

            async def finish() -> None:
                await executing

            asyncio.run(finish())

    def _warn_of_content(self) -> None:
        """What a gateway keeps out of the store, the tracer may write there all the same."""
        from ..tracer import OtelTracer

        tracer = getattr(self.trainer.runner, "tracer", None) or self.trainer.tracer
        is_captured = isinstance(tracer, OtelTracer) and tracer.capture_content
        if is_captured and getattr(self.trainer.llm_proxy, "hides_content", False):
            log.warning(
                "the gateway omits or redacts content, but the tracer records what agents send to models on its own: "
                "pass tracer=OtelTracer(capture_content=False) to the Trainer"
            )

    # -- the end -------------------------------------------------------------------------------------

    def _conclude(self, error: BaseException | None) -> RunResult:
        latest, status = self._ask(lambda store: store.get_latest_resources()), self._end(error)
        metrics = self._metrics()
        warnings = self._warnings(metrics, None if status == "failed" else latest)
        for warning in warnings:
            log.warning("%s", warning)
        if status != "failed":  # those of the algorithm are logged already
            warnings = [warning for stage in self._stages for warning in stage.final_warnings] + warnings
        resources = None if latest is None else latest.resources
        if resources is not None and any(stage.needs_gateway for stage in self._stages):  # nobody serves it any more
            resources = {name: each for name, each in resources.items() if not isinstance(each, ProxyLLM)}
        models = [found for stage in self._stages if (found := stage.model_folder()) is not None]
        result = RunResult(
            status=status,
            metrics=metrics,
            best_resources=resources,
            run_dir=self._run_dir,
            seconds=self._earlier_seconds + time.monotonic() - self._began,
            resources_id=None if latest is None else latest.resources_id,
            resources_version=None if latest is None else latest.version,
            error=None if error is None else self.trainer.hide("".join(traceback.format_exception(error)).strip()),
            warnings=warnings,
            model_dir=models[-1] if models else None,
        )
        if self.folder is not None:
            with FullDisk("result.json").tolerated(self.folder.path):
                self.folder.write_result(result.record())
            if status == "interrupted" and self.algorithm is not None:
                log.info("the run was interrupted; fit(..., resume=%r) resumes it", str(self.folder.path))
        return result

    def _end(self, error: BaseException | None) -> RunEnd:
        is_interrupt = isinstance(error, KeyboardInterrupt | SystemExit | asyncio.CancelledError)
        if is_interrupt or (self._is_stopped and self.algorithm is not None):
            return "interrupted"
        return "succeeded" if error is None else "failed"

    def _metrics(self) -> dict[str, Any]:
        """Those of the whole run, of the last iteration and of the last validation, less what passes with the run."""
        if self.folder is None:
            return {}
        of_the_run = self.folder.last_metrics(lambda line: "step" not in line)
        iteration = self.folder.last_metrics(lambda line: not all(map(_is_val, _of_step(line))))
        validation = _of_step(self.folder.last_metrics(lambda line: any(map(_is_val, _of_step(line)))))
        validated = {name: value for name, value in validation.items() if _is_val(name)}
        found = with_old_names(of_the_run | _of_step(iteration) | validated)
        return {name: value for name, value in found.items() if name not in ("time", "queued", "running", "done")}

    def _warnings(self, metrics: dict[str, Any], latest: ResourcesUpdate | None) -> list[str]:
        """That every rollout failed, or that none had a reward; that what was published last is worse than what the run
        began with."""
        warnings, count, succeeded = [], metrics.get("rollouts", 0), metrics.get("succeeded", 0)
        if count and metrics.get("failed") == count:
            reason = self._ask(_last_failure) or "no reason was recorded"
            warnings.append(f"all {count} rollouts failed; the last: {self.trainer.hide(reason)}")
        elif succeeded and metrics.get("run/reward_mean", 0) is None:
            warnings.append(
                f"none of the {succeeded} rollouts that succeeded had a reward: return a number from the agent or "
                "call emit_reward, unless the algorithm computes rewards"
            )
        if self.algorithm is not None and latest is not None:
            from ..archive.comparison import validation_decline

            published, began = (latest.resources_id, latest.version), moment(self._started) or 0.0
            decline = self._ask(lambda store: validation_decline(store, published, started_after=began))
            warnings += [] if decline is None else [decline.describe("val/reward_mean")]
        return warnings

    def _ask(self, question: Callable[[LightningStore], Coroutine[Any, Any, T]]) -> T | None:
        """An answer of the store, after the run; None where it does not answer any more."""
        store = self.trainer.made_store
        if store is None:
            return None
        try:
            return asyncio.run(asyncio.wait_for(question(store), 10))
        except (SharpenError, RuntimeError, TimeoutError) as error:
            log.debug("could not read the store after the run: %s", error)
            return None


async def _last_failure(store: LightningStore) -> str | None:
    """Why the rollout that failed last did so."""
    failed = await store.query_rollouts(status_in=["failed"], sort_by="end_time", sort_order="desc", limit=1)
    return why_failed(await with_last_attempt(store, failed[0])) if failed else None


def _of_step(line: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a line of one step; none of one with settings, text, the end, or the whole run."""
    if "step" not in line or line.keys() & {"config", "text", "status"}:
        return {}
    return {name: value for name, value in line.items() if name not in ("step", "time")}


def _is_val(name: str) -> bool:
    return name.startswith("val/")
