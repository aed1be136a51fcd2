"""`Run`: one run of a trainer, from the folder it is kept in to the result it leaves behind.

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
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ..algorithm import Algorithm, Baseline
from ..algorithm.prompts.seed_prompt import prompt_of_agent, takes_prompt
from ..algorithm.rewards import why_failed, with_last_attempt, with_old_names
from ..algorithm.sequence import stages_of, title_of
from ..errors import ConfigError, MissingExtraError, SharpenError
from ..execution import ExecutionStrategy
from ..execution.serving import Mount
from ..litagent import FunctionalLitAgent, LitAgent
from ..logging import also_to_file, is_set_up, setup_logging
from ..runner.bundle import RunnerBundle
from ..runs import RunFolder
from ..runs.folder import FullDisk, naming_full_disk
from ..runs.history import EARLIER, moment
from ..secrets import hiding
from ..store import LightningStore
from ..store.local import LocalStore
from ..types import Dataset, NamedResources, ProxyLLM, ResourcesUpdate
from .algorithm_bundle import AlgorithmBundle
from .config import resolved_config
from .factories import is_runner_only
from .plan import RunPlan
from .status import RunEnd, RunResult
from .waiting import call_sync

if TYPE_CHECKING:
    from .trainer import Trainer

T = TypeVar("T")
log = logging.getLogger(__name__)
ASYNC_AGENTS = 32  # side by side in a runner
DASHBOARD_PREFIX = "/dashboard"
DASHBOARD = "sharpen.dashboard.mounted:dashboard_app"


class Run:
    """One call of `fit`: `execute` builds the parts, hands them to the strategy, and reports how it ended."""

    def __init__(
        self,
        trainer: "Trainer",
        folder: RunFolder | None,
        agent: LitAgent[Any],
        algorithm: Algorithm[Any] | None,
        train_dataset: Dataset[Any] | None,
        val_dataset: Dataset[Any] | None,
        *,
        is_resumed: bool,
    ) -> None:
        self._trainer, self._folder, self._is_resumed = trainer, folder, is_resumed
        self._agent, self._algorithm, self._stages = agent, algorithm, stages_of(algorithm)
        self._datasets = (train_dataset, val_dataset)
        self._began, self._earlier_seconds = time.monotonic(), 0.0
        self._started = ""
        self._is_stopped = False
        self._bundle: AlgorithmBundle | None = None
        self.result: RunResult | None = None

    def execute(self) -> RunResult:
        """Run to the end. An error passes to the caller, after it was recorded."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(hiding(self._trainer.secrets))
            if not is_set_up():
                setup_logging()
            if self._folder is not None:
                stack.enter_context(also_to_file(self._folder.log_path))
            try:
                with naming_full_disk(None if self._folder is None else self._folder.path):
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
        strategy = self._trainer.strategy
        if getattr(type(strategy), "stop", ExecutionStrategy.stop) is not ExecutionStrategy.stop:
            strategy.stop()
        elif self._bundle is not None:
            self._bundle.cancel()

    def _begin(self) -> None:
        """A strategy that was asked to stop before it began has not heard of it."""
        if self._is_stopped:
            self.stop()

    # -- the parts -----------------------------------------------------------------------------------

    def _build(self) -> tuple[AlgorithmBundle, RunnerBundle]:
        """Lay out the two halves of the run, and write down what it consists of."""
        trainer, folder, agent = self._trainer, self._folder, self._agent
        if trainer.seed is not None:
            _seed_everything(trainer.seed)
        agent.set_trainer(trainer)
        adapter: Any = trainer.adapter
        if agent.trained_agents is not None and getattr(adapter, "agent_match", "") is None:
            adapter.agent_match = agent.trained_agents
        self._raise_concurrency()
        self._mount_dashboard()
        config = self._config()
        if folder is not None:
            folder.write_config(config)
            if self._algorithm is not None:  # one that runs in another process is asked here where its model is
                self._algorithm.run_dir = folder.path
        algorithm = AlgorithmBundle(self._plan(config), trainer)
        algorithm.on_begin = self._begin
        return algorithm, RunnerBundle(agent, trainer.runner, trainer.hooks)

    def _hand_over(self, algorithm: AlgorithmBundle, runner: RunnerBundle) -> None:
        """Have the strategy run both halves to their end."""
        self._bundle = algorithm
        log.info("%s", self._summary())
        self._warn_of_content()
        executing: Any = self._trainer.strategy.execute(algorithm, runner, self._trainer.store)
        if inspect.isawaitable(executing):

            async def finish() -> None:
                await executing

            asyncio.run(finish())

    def _raise_concurrency(self) -> None:
        """Where the algorithm asks for many rollouts at once, async agents run side by side unless a runner was
        given."""
        algorithm, runner = self._algorithm, self._trainer.runner
        if algorithm is None or not algorithm.runs_side_by_side or self._trainer.spec_of("runner") is not None:
            return
        if self._agent.is_async():
            runner.concurrency = max(runner.concurrency, ASYNC_AGENTS)
        elif runner.concurrency == 1:
            log.info("the agent is not async, so each runner runs one rollout at a time; raise n_runners for more")

    def _may_find_work(self) -> bool:
        """Whether rollouts may wait in the store before the algorithm has begun, or others may enqueue them."""
        store = self._trainer.store
        if self._is_resumed or self._algorithm is None or not isinstance(store, LocalStore):
            return True
        waiting = call_sync(store.statistics)["queue_length"]
        if waiting:
            log.warning("the store has %d queued rollouts from elsewhere; this run will work on them too", waiting)
        return bool(waiting)

    def _warn_of_content(self) -> None:
        """What a gateway keeps out of the store, the tracer may write there all the same."""
        trainer = self._trainer
        tracer = getattr(trainer.runner, "tracer", None) or trainer.tracer
        if getattr(trainer.llm_proxy, "hides_content", False) and _captures_calls(tracer):
            log.warning(
                "the gateway omits or redacts content, but the tracer records what agents send to models on its own: "
                "pass tracer=OtelTracer(capture_content=False) to the Trainer"
            )

    def _mount_dashboard(self) -> None:
        """Have the strategy serve the dashboard beside the store, where it serves one and jinja2 is installed."""
        strategy, wanted, folder = self._trainer.strategy, self._trainer.dashboard, self._folder
        if not hasattr(strategy, "mounts"):
            if wanted:
                raise ConfigError(
                    f"dashboard=True, but {type(strategy).__name__} does not serve the store: omit it, or use "
                    "strategy='cs'"
                )
            return
        is_missing = find_spec("jinja2") is None
        if wanted and is_missing:
            raise MissingExtraError.of("jinja2", extra="dashboard", feature="the dashboard")
        strategy.mounts = [mount for mount in strategy.mounts if mount.prefix != DASHBOARD_PREFIX]
        if wanted is not False and not is_missing:
            options = {"name": "store"} if folder is None else {"name": folder.path.name, "run_path": str(folder.path)}
            strategy.mounts.append(Mount(DASHBOARD_PREFIX, DASHBOARD, "dashboard", options))

    def _summary(self) -> str:
        if is_runner_only(self._trainer.strategy):
            return "starting runners for a store that is served elsewhere"
        algorithm = "no algorithm" if self._algorithm is None else title_of(self._algorithm)
        parts = f"{algorithm}, {type(self._trainer.strategy).__name__}, {type(self._trainer.store).__name__}"
        where = "" if self._folder is None else f" in {self._folder.path}"
        return f"{'resuming' if self._is_resumed else 'starting'} the run{where}: {parts}"

    def _plan(self, config: dict[str, Any]) -> RunPlan:
        trainer, folder = self._trainer, self._folder
        train_dataset, val_dataset = self._datasets
        return RunPlan(
            algorithm=self._algorithm,
            train_dataset=train_dataset,
            val_dataset=val_dataset,
            adapter=trainer.adapter,
            llm_proxy=trainer.llm_proxy,
            initial_resources=trainer.initial_resources,
            callbacks=trainer.callbacks,
            loggers=trainer.loggers,
            rollout_config=trainer.rollout_config,
            holds_runners=self._may_find_work() and trainer.llm_proxy is not None,
            retries=trainer.algorithm_retries,
            needs_llm=self._needs_llm(),
            agent_prompt=prompt_of_agent(self._agent),
            agent_takes_prompt=takes_prompt(self._agent),
            config=msgspec.to_builtins(config, enc_hook=str),
            run_dir=None if folder is None else folder.path,
            metrics_path=None if folder is None else folder.metrics_path,
            checkpoint_path=None if folder is None else folder.checkpoint_path,
            is_resumed=self._is_resumed,
            earlier_seconds=self._earlier_seconds,
            # A Baseline shows its own.
            shows_table=not self._stages or any(not isinstance(each, Baseline) for each in self._stages),
            stall_seconds=trainer.stall_seconds,
        )

    def _needs_llm(self) -> bool:
        """Whether the agent asks for an LLM that no algorithm will publish."""
        agent = self._agent
        is_asking = isinstance(agent, FunctionalLitAgent) and agent.asks_for("llm")
        is_first = bool(self._stages) and isinstance(self._stages[0], Baseline)
        return is_asking and is_first and not self._is_resumed

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = self._trainer.hide(
            resolved_config(self._trainer, self._agent, self._algorithm, *self._datasets)
        )
        if self._is_resumed and self._folder is not None:
            config = self._folder.resumed_config(config)
            self._earlier_seconds = config[EARLIER]
        self._started = config["started"]
        return config

    # -- the end -------------------------------------------------------------------------------------

    def _conclude(self, error: BaseException | None) -> RunResult:
        latest, status = self._ask(lambda store: store.get_latest_resources()), self._end(error)
        metrics = self._metrics()
        warnings = self._rollout_warnings(metrics) + ([] if status == "failed" else self._decline_warnings(latest))
        for warning in warnings:
            log.warning("%s", warning)
        if status != "failed":
            logged_by_stages = [warning for stage in self._stages for warning in stage.final_warnings]
            warnings = logged_by_stages + warnings
        result = RunResult(
            status=status,
            metrics=metrics,
            best_resources=None if latest is None else self._lasting(latest.resources),
            run_dir=None if self._folder is None else self._folder.path,
            seconds=self._earlier_seconds + time.monotonic() - self._began,
            resources_id=None if latest is None else latest.resources_id,
            resources_version=None if latest is None else latest.version,
            error=None if error is None else self._trainer.hide("".join(traceback.format_exception(error)).strip()),
            warnings=warnings,
            model_dir=self._model_dir(),
        )
        if self._folder is not None:
            with FullDisk("result.json").tolerated(self._folder.path):
                self._folder.write_result(result.record())
            if result.status == "interrupted" and self._algorithm is not None:
                log.info("the run was interrupted; fit(..., resume=%r) resumes it", str(self._folder.path))
        return result

    def _lasting(self, resources: NamedResources) -> NamedResources:
        """Without the model that an algorithm served: nobody answers at its address any more."""
        is_served = any(stage.needs_gateway for stage in self._stages)
        return {name: each for name, each in resources.items() if not is_served or not isinstance(each, ProxyLLM)}

    def _model_dir(self) -> Path | None:
        folders = [found for stage in self._stages if (found := stage.model_folder()) is not None]
        return folders[-1] if folders else None

    def _metrics(self) -> dict[str, Any]:
        """Those of the whole run, of the last iteration and of the last validation, less what passes with the run."""
        if self._folder is None:
            return {}
        of_the_run = self._folder.last_metrics(lambda line: "step" not in line)
        iteration = self._folder.last_metrics(lambda line: _is_iteration(line) and not _is_validation(line))
        validation = self._folder.last_metrics(lambda line: _is_iteration(line) and bool(_validated(line)))
        passing = ("step", "time", "queued", "running", "done")
        found = with_old_names(of_the_run | iteration | _validated(validation))
        return {name: value for name, value in found.items() if name not in passing}

    def _end(self, error: BaseException | None) -> RunEnd:
        if self._is_stopped and self._algorithm is not None:
            return "interrupted"
        if error is None:
            return "succeeded"
        is_interrupt = isinstance(error, KeyboardInterrupt | SystemExit | asyncio.CancelledError)
        return "interrupted" if is_interrupt else "failed"

    def _rollout_warnings(self, metrics: dict[str, Any]) -> list[str]:
        """That every rollout failed, or that none had a reward."""
        count, succeeded = metrics.get("rollouts", 0), metrics.get("succeeded", 0)
        if count and metrics.get("failed") == count:
            reason = self._ask(_last_failure) or "no reason was recorded"
            return [f"all {count} rollouts failed; the last: {self._trainer.hide(reason)}"]
        if succeeded and metrics.get("run/reward_mean", 0) is None:
            return [
                f"none of the {succeeded} rollouts that succeeded had a reward: return a number from the agent or "
                "call emit_reward, unless the algorithm computes rewards"
            ]
        return []

    def _decline_warnings(self, latest: ResourcesUpdate | None) -> list[str]:
        """That what was published last is worse than what the run began with."""
        if self._algorithm is None or latest is None:
            return []
        from ..archive.comparison import validation_decline

        published = latest.resources_id, latest.version
        began = moment(self._started) or 0.0
        decline = self._ask(lambda store: validation_decline(store, published, started_after=began))
        return [] if decline is None else [decline.describe("val/reward_mean")]

    def _ask(self, question: Callable[[LightningStore], Coroutine[Any, Any, T]]) -> T | None:
        """An answer of the store, after the run; None where it does not answer any more."""
        store = self._trainer.made_store
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
    reasons = [why_failed(await with_last_attempt(store, rollout)) for rollout in failed]
    return reasons[0] if reasons else None


def _is_iteration(line: dict[str, Any]) -> bool:
    """Whether a line holds metrics of a step, and no settings, text or end."""
    return "step" in line and not line.keys() & {"config", "text", "status"}


def _validated(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name.startswith("val/")}


def _is_validation(line: dict[str, Any]) -> bool:
    """Whether a line holds a validation between two iterations, and nothing else."""
    return _validated(line).keys() == line.keys() - {"step", "time"}


def _captures_calls(tracer: Any) -> bool:
    from ..tracer import OtelTracer

    return isinstance(tracer, OtelTracer) and tracer.capture_content


def _seed_everything(seed: int) -> None:
    """Seed Python's own generator, and those of NumPy and torch where they are loaded already."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)
