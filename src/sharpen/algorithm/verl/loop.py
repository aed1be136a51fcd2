"""One run of `VERL`, from its first step to its last.

A step: rollouts of a batch of tasks with the newest weights, credit, updates. With `max_staleness` the rollouts of the
next steps are asked for meanwhile; all that were asked for are trained, whatever they took, so no kind of rollout is
preferred. Weights change only between the engine's steps.
"""

import asyncio
import contextlib
import functools
import gc
import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...adapter.base import TraceAdapter, for_models
from ...adapter.messages import TraceToMessages
from ...errors import ConfigError
from ...llm.errors import ModelError, TrainingError
from ...llm.policy.critic import LocalCritic
from ...llm.policy.policy import LocalPolicy
from ...types import Dataset, Rollout, Span
from ..base import State
from ..datasets import TaskOrder, all_tasks
from ..gateway_hold import HeldCalls
from ..serving import PublishedModel, model_name
from ..threads import compute, finish
from .checkpoints import MODEL, changes, resumable_state, settings_of
from .config import training_sampling, validation_sampling
from .learner import Learner, Metrics, make_critic, make_policy, mismatch
from .preflight import NUM_GROUPS, conclude, run_checks
from .reports import (
    Summary,
    describe_metrics,
    describe_reward,
    final_warning,
    group_labels,
    limit_warning,
    staleness,
    step_warnings,
    validation_metrics,
)
from .rollouts import Batch, Rollouts
from .samplers import make_sampler, with_engine_here
from .scoring import Conversation, RewardModel, conversation_of
from .training_data import CollectedRollout, collect

if TYPE_CHECKING:
    from .verl import VERL

log = logging.getLogger(__name__)

MOST_BARREN = 3  # steps of which every rollout failed, before the run ends


class TrainingRun:
    """`saved` is the state that it goes on from."""

    def __init__(
        self, verl: "VERL", train: Dataset[Any] | None, val: Dataset[Any] | None, saved: State | None, calls: HeldCalls
    ) -> None:
        self._verl, self._config, self._calls = verl, with_engine_here(verl.settings), calls
        self._folders = verl.step_folders()
        self._folders.mend()
        self._is_resumed = saved is not None
        self._loads_from: Path | None = None
        if saved is None:
            saved = self._state_on_disk()
        elif saved.get("folder"):
            self._loads_from = Path(saved["folder"])
        self.step: int = saved["step"] if saved else 0
        self._first_step = 0 if self._is_resumed else self.step
        """Where it begins: what an earlier run left in the same folder is not its own."""
        self._saved = saved
        self._val_tasks = all_tasks(val)
        self._val_labels = group_labels(self._val_tasks, self._config.trainer.val_group_key)
        self._tasks = None if train is None else self._task_order(train)
        self._total = self._total_steps()
        self._settings = settings_of(
            self._config, num_tasks=0 if self._tasks is None else len(self._tasks), num_val_tasks=len(self._val_tasks)
        )
        self._key = secrets.token_hex(6)
        self._earlier_keys = self._keys_of(saved)
        self._batches: dict[int, list[Batch]] = {}
        self._first: list[CollectedRollout] = []
        self._num_barren = 0
        self._has_gone_back = False
        self._warned: set[str] = set()
        self._scorer: RewardModel | None = None
        self._conversations: dict[str, Conversation | None] = {}
        self.summary = Summary.of(saved["summary"] if saved else None)

    def _keys_of(self, saved: State | None) -> list[str]:
        """What the ids of rollouts begin with that can be taken from earlier lives of this run."""
        found = changes(saved.get("settings", {}), self._settings) if saved else []
        for change in found:
            log.warning("resuming the run with a changed setting: %s", change)
        is_same = self._is_resumed and not any(change.is_of_rollouts for change in found)
        keys = [saved["key"], *saved.get("earlier_keys", [])] if saved and is_same else []
        forgotten = set(self._folders.forgotten())
        return [key for key in keys if key not in forgotten]

    def _task_order(self, train: Dataset[Any]) -> TaskOrder:
        data = self._config.data
        return TaskOrder(train, batch_size=data.train_batch_size, shuffle=data.shuffle, seed=data.seed)

    def _total_steps(self) -> int:
        trainer = self._config.trainer
        if trainer.val_only:
            if not self._val_tasks:
                raise ConfigError("trainer.val_only is set, but there is no val_dataset: pass one to fit")
            return 0
        if self._tasks is None:
            raise ConfigError("VERL has no tasks to train on: pass train_dataset to fit")
        if trainer.total_training_steps is not None:
            return trainer.total_training_steps
        return trainer.total_epochs * self._tasks.steps_per_epoch

    def _state_on_disk(self) -> State | None:
        """That of an earlier run, as verl finds it: the newest in a folder that the settings name, or the one named."""
        trainer = self._config.trainer
        if trainer.resume_mode == "resume_path":
            path = Path(trainer.resume_from_path or "").expanduser().absolute()
            self._loads_from = path
            return resumable_state(path)
        is_given = self._config.origin("trainer.default_local_dir") == "given"
        steps = self._folders.steps() if is_given and trainer.resume_mode == "auto" else []
        if not steps:
            return None
        log.info(
            "resuming from step %d in %s (use trainer.resume_mode=disable to start over)",
            steps[-1],
            self._folders.folder,
        )
        return self._folders.read(steps[-1])

    # -- the whole -----------------------------------------------------------------------------------

    async def run(self) -> None:
        self._rollouts = Rollouts(
            self._verl.get_store(), self._key, self._read, earlier=self._earlier_keys, began=self._calls.held_at
        )
        if self._saved is not None:
            await self._rollouts.cancel(self._saved["key"])
        self._verl.checkpoint()  # a run that is killed in its first step finds its rollouts again
        log.info("loading %s", self._config.model.path)
        policy, critic = await compute(self._load)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, policy.close)
            await self._run_with(policy, critic, stack)
        self.summary.show(self._verl.records_dir)
        if self._folders.steps():
            log.info("checkpoints in %s", self._folders.describe())
        if (warning := final_warning(self.summary.steps, spell=self._verl.spelled)) is not None:
            log.warning("%s", warning)
            self._verl.final_warnings = (warning,)

    async def _run_with(
        self, policy: LocalPolicy, critic: LocalCritic | None, stack: contextlib.AsyncExitStack
    ) -> None:
        self._make_place()
        self._policy, self._critic = policy, critic
        self._learner = Learner(self._config, policy, critic, seed=self._config.trainer.seed, spell=self._verl.spelled)
        name = model_name(self._config.model.path)
        self._sampler = make_sampler(self._config, policy, name=name, rollout_prefix=self._rollouts.prefix)
        stack.push_async_callback(asyncio.to_thread, self._sampler.stop)
        await compute(self._sampler.start)
        await compute(self._sampler.take, policy)
        self._model = PublishedModel(
            self._verl.get_llm_proxy(),
            name=name,
            training=training_sampling(self._config),
            validation=validation_sampling(self._config),
        )
        stack.enter_context(self._model.listed(self._sampler.entries()))
        await stack.enter_async_context(self._calls.let_through(self._rollouts.are_running))
        await stack.enter_async_context(self._rollouts.following())
        stack.enter_context(frozen_heap())
        try:
            await self._train()
        except TrainingError:  # a run that is mended and resumed must not meet the rollouts that ended it
            self._folders.forget([self._key, *self._earlier_keys])
            raise

    def _make_place(self) -> None:
        """Later steps in the folder are another run's, and would be taken for this one's."""
        aside = None if self._is_resumed else self._folders.set_aside(later_than=self.step)
        if aside is not None:
            log.warning("moved checkpoints of an earlier run to %s, since this run starts before them", aside)

    def _load(self) -> tuple[LocalPolicy, LocalCritic | None]:
        with contextlib.ExitStack() as undo:
            policy = make_policy(self._config, total_steps=self._total)
            undo.callback(policy.close)
            critic = self._load_into(policy)
            undo.pop_all()
        return policy, critic

    def _load_into(self, policy: LocalPolicy) -> LocalCritic | None:
        critic = make_critic(self._config, total_steps=self._total)
        if self._saved is not None and self._saved["step"]:
            folder = self._loads_from or self._folders.path(self._saved["step"])
            resumable_state(folder)  # which says what is wrong with it
            try:
                policy.load(folder / "policy")
                if critic is not None:
                    critic.load(folder / "critic")
            except ModelError as error:
                raise ConfigError(
                    f"the run cannot resume from {str(folder)!r}: {error}. To start over, use another "
                    "trainer.default_local_dir, or trainer.resume_mode=disable"
                ) from error
            log.info("loaded step %d from %s", self._saved["step"], folder)
        if self._config.reward_model.enable and self._config.reward_model.path is not None:
            self._scorer = RewardModel(self._config.reward_model.path)
        return critic

    async def _train(self) -> None:
        trainer = self._config.trainer
        self._verl.go_on_after(self.step)
        if self._val_tasks and (trainer.val_only or (self.step == 0 and trainer.val_before_train)):
            self._verl.report_validation(await self._validate())
        if trainer.val_only:
            return
        if self.step >= self._total > 0:
            log.warning(
                "all %d steps are already done: raise trainer.total_training_steps or total_epochs, or start over with "
                "trainer.resume_mode=disable",
                self._total,
            )
        while self.step < self._total and not self._verl.should_stop:
            self._verl.begin_iteration()
            metrics = await self._one_step(self.step)
            self.step += 1
            is_last = self.step == self._total
            is_due = is_last or (trainer.test_freq > 0 and self.step % trainer.test_freq == 0)
            val = await self._validate() if is_due and self._val_tasks else None
            self.summary.add_step(self.step, metrics)
            self._warn_once(step_warnings(self.summary.steps, spell=self._verl.spelled))
            await self._keep(is_last)
            self._verl.report_iteration(metrics, val_metrics=val)
            self._checkpoint()
        if self._batches:  # asked for ahead of a run that a callback ended
            await self._rollouts.cancel(self._key)
        await self._validate_the_end()
        is_kept = self._folders.latest_model() == self._folders.path(self.step) / MODEL
        if self.step and (not is_kept or self._has_gone_back):  # a callback ended the run
            await finish(self._write, True)
            self._checkpoint()

    def _warn_once(self, warnings: Mapping[str, str | None]) -> None:
        """Each kind of warning is given once in a run."""
        for kind, warning in warnings.items():
            if warning is not None and kind not in self._warned:
                self._warned.add(kind)
                log.warning("%s", warning)

    async def _validate_the_end(self) -> None:
        """A run that a callback ended before its last step has an "after", too. Weights that were taken back were
        measured when they were new."""
        is_measured = any(each["step"] == self.step for each in self.summary.validations)
        if self.step and self._val_tasks and not is_measured and not self._has_gone_back:
            self._verl.report_validation(await self._validate())

    # -- a step --------------------------------------------------------------------------------------

    async def _one_step(self, step: int) -> Metrics:
        began = time.perf_counter()
        rollouts = await self._rollouts_of(step)
        self._check_outcomes(rollouts, step)
        sampled = time.perf_counter()
        behind = staleness(rollouts, self._policy.weights_version)
        metrics = await compute(self._learner.learn, rollouts, step=step)
        if await compute(self._sampler.take, self._policy):
            self._model.lead_to(self._sampler.entries())
        self.summary.selection.add(rollouts, self._learner.trained)
        ended = time.perf_counter()
        tokens = sum(len(sample) for rollout in rollouts for sample in rollout.samples)
        metrics |= {
            "seconds/rollouts": sampled - began,
            "seconds/step": ended - began,
            "tokens_per_second": tokens / (ended - began),
            "weights_version": float(self._policy.weights_version),
            "staleness": behind,
        } | self.summary.selection.metrics()
        log.info("step %d of %d: %s", step + 1, self._total, describe_metrics(metrics))
        limit = self._config.data.max_response_length
        self._warn_once({"limit": limit_warning(rollouts, limit=limit, spell=self._verl.spelled)})
        return metrics

    def _check_outcomes(self, rollouts: Sequence[CollectedRollout], step: int) -> None:
        """A step may go wrong as a whole; when it is one after the other, nothing is learned any more."""
        if not rollouts or any(not each.is_lost and (each.reward or not each.is_failed) for each in rollouts):
            self._num_barren = 0
            return
        self._num_barren += 1
        told = f"all {len(rollouts)} rollouts of step {step + 1} failed or were lost"
        if self._num_barren == MOST_BARREN:
            raise TrainingError(
                f"{told}, as in the {MOST_BARREN - 1} steps before: see run.log in the run folder. Fix the "
                "cause, then resume the run"
            )
        log.warning("%s; it does not train the model", told)

    async def _rollouts_of(self, step: int) -> list[CollectedRollout]:
        """Those of this step when all are finished; those of later ones are asked for as far as staleness allows."""
        if step not in self._batches:
            await self._ask(step)
        for ahead in range(step + 1, min(step + 1 + self._config.algorithm.max_staleness, self._total)):
            if ahead not in self._batches:
                await self._ask(ahead)
        found, self._first = self._first, []
        for batch in self._batches.pop(step):
            found += await self._results(batch)
        return found

    async def _results(self, batch: Batch) -> list[CollectedRollout]:
        """With the scores of the reward model, where there is one."""
        rollouts = await self._rollouts.results(batch)
        if self._scorer is None:
            return rollouts
        conversations = {each.rollout_id: self._conversations.pop(each.rollout_id, None) for each in rollouts}
        return await compute(self._scorer.rate, rollouts, conversations)

    async def _ask(self, step: int) -> None:
        assert self._tasks is not None
        tasks, num_first = self._tasks.batch(step), 0
        if step == 0 and self._config.trainer.preflight is not False:
            num_first = min(NUM_GROUPS, len(tasks))
            self._first = await self._preflight(tasks[:num_first])
        rest = await self._ask_for(step, tasks[num_first:], first=num_first)
        self._batches[step] = [rest]

    async def _ask_for(self, step: int, tasks: Sequence[Any], *, first: int) -> Batch:
        return await self._rollouts.ask(
            f"s{step}",
            tasks,
            n=self._config.rollout.n,
            mode="train",
            resources_id=await self._publish(is_validation=False),
            first=first,
            metadata={"step": step},
        )

    async def _publish(self, *, is_validation: bool) -> str:
        """The resources for the newest weights; once for every version."""
        name = f"rs-{self._key}-{'val-' if is_validation else ''}w{self._policy.weights_version}"
        resources = self._model.resources(self._verl.get_initial_resources(), is_validation=is_validation)
        store = self._verl.get_store()
        known = await store.get_resources_by_id(name)
        if known is None:
            await store.add_resources(resources, resources_id=name)
        return name

    async def _preflight(self, tasks: Sequence[Any]) -> list[CollectedRollout]:
        """The first groups of the first step, when they have shown that there is something to learn from."""
        batch = await self._ask_for(0, tasks, first=0)
        rollouts = await self._results(batch)
        temperature = self._config.rollout.temperature
        nats = await compute(mismatch, self._policy, rollouts, temperature=temperature)
        self._learner.notice_cuts(rollouts)
        checks = run_checks(
            self._policy.tokenizer,
            rollouts,
            nats=nats,
            corrects=self._learner.corrects,
            template_kwargs=self._config.data.apply_chat_template_kwargs,
            compares_batch=self._config.algorithm.adv_estimator in ("reinforce_plus_plus", "gae"),
            spell=self._verl.spelled,
        )
        self.summary.checks = [str(check) for check in checks if check.level != "passed"]
        conclude(checks, is_strict=self._config.trainer.preflight == "strict")
        return rollouts

    @functools.cached_property
    def _adapter(self) -> TraceAdapter[Any]:
        """The run's, for which other models' calls (a judge's, say) do not stand between a call and its reward."""
        return for_models(self._verl.get_adapter(), self._model.names)

    def _read(self, rollout: Rollout, spans: Sequence[Span]) -> CollectedRollout:
        data = self._config.data
        triplets = self._adapter.adapt(spans)
        ours = [each for each in triplets if each.metadata.get("model") in self._model.names]
        found = collect(
            rollout,
            ours,
            max_prompt_length=data.max_prompt_length,
            max_response_length=data.max_response_length,
            group=(rollout.metadata or {})["group"],
            temperature=self._config.rollout.temperature,
        )
        if self._scorer is not None and found.is_unrewarded:
            self._conversations[found.rollout_id] = conversation_of(
                spans, adapter=for_models(TraceToMessages(), self._model.names)
            )
        return found

    # -- validation ----------------------------------------------------------------------------------

    async def _validate(self) -> Metrics:
        """The rewards on the validation set, sampled as `val_kwargs` says."""
        began = time.perf_counter()
        log.info("validating on %d tasks after step %d", len(self._val_tasks), self.step)
        batch = await self._rollouts.ask(
            f"v{self.step}",
            self._val_tasks,
            n=self._config.rollout.val_kwargs.n,
            mode="val",
            resources_id=await self._publish(is_validation=True),
            metadata={"step": self.step},
        )
        rollouts = await self._results(batch)
        labels = [label for label in self._val_labels for _ in range(self._config.rollout.val_kwargs.n)]
        metrics = validation_metrics(rollouts, labels) | {"seconds": time.perf_counter() - began}
        groups = [f"{label} {metrics[label]:.3f}" for label in dict.fromkeys(labels) if label in metrics]
        told = f" ({', '.join(groups)})" if groups else ""
        log.info("validation after step %d: reward %s%s", self.step, describe_reward(metrics), told)
        self.summary.add_validation(self.step, metrics)
        return metrics

    # -- checkpoints ---------------------------------------------------------------------------------

    async def _keep(self, is_last: bool) -> None:
        frequency = self._config.trainer.save_freq
        is_best = self._config.trainer.max_actor_ckpt_to_keep is None and self._best_step() == self.step
        has_model = is_last or is_best or (frequency > 0 and self.step % frequency == 0)
        if has_model or self._folders.is_due():
            await finish(self._write, has_model)

    def _best_step(self) -> int | None:
        """The step with the best validation, of equal ones the newest; None where none was validated."""
        found = [each for each in self.summary.validations if each["step"] and "reward_mean" in each]
        return int(max(found, key=lambda each: (each["reward_mean"], each["step"]))["step"]) if found else None

    def _write(self, has_model: bool) -> None:
        def save(folder: Path) -> None:
            self._policy.save(folder / "policy")
            if self._critic is not None:
                self._critic.save(folder / "critic")
            if has_model:
                self._policy.save_model(folder / MODEL)

        self._loads_from = None
        self._folders.write(self.step, self.state(), save, has_model=has_model)
        self._saved = self.state()

    def state(self) -> State:
        return {
            "key": self._key,
            "earlier_keys": self._earlier_keys,
            "step": self.step,
            "folder": None if self._loads_from is None else str(self._loads_from),
            "settings": self._settings,
            "summary": self.summary.state(),
        }

    def keep_state(self) -> State:
        """The state of this moment, to come back to; its folder is written first where it is not there."""
        if self.step and (self._saved is None or self._saved["step"] != self.step):
            self._write(False)
        if self.step and self._loads_from is None:
            self._folders.pin(self.step)
        return self.state()

    def go_back_to(self, state: State) -> None:
        """Take the weights of an earlier state of this run, as early stopping does with the best ones."""
        if not state or not state["step"] or state["step"] == self.step:
            return
        folder = Path(state["folder"]) if state.get("folder") else self._folders.path(state["step"])
        resumable_state(folder)  # which says what is wrong with it
        self._policy.load(folder / "policy")
        if self._critic is not None:
            self._critic.load(folder / "critic")
        self._has_gone_back = True
        log.info("restored the weights after step %d", state["step"])

    def _checkpoint(self) -> None:
        """After callbacks and loggers have heard of the step, so that their state is of the same moment."""
        if self._saved is not None and self._saved["step"] == self.step:
            self._verl.checkpoint()
            self._folders.tidy(self.step, best=self._best_step(), after=self._first_step)


# -- garbage collection -------------------------------------------------------------------------------


@contextlib.contextmanager
def frozen_heap() -> Iterator[None]:
    """Inside, the collector looks only at what came later. Afterwards everything can be collected as before."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
