"""`GEPA`: the reflective, Pareto-based optimiser of the `gepa` package as an algorithm.

gepa chooses a candidate from the front of those that are best on some task, lets a model reflect on rollouts of it, and
keeps what the model writes if that does better on the same tasks; it may also merge candidates. Here its evaluations
are rollouts, and what the model is shown of them comes from their traces.
"""

import copy
import importlib
import importlib.util
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ...checks import check_bool, check_ints
from ...errors import ConfigError, MissingExtraError
from ...types import TaskT
from ..bounds import UpperBound
from ..prompts.evaluations import Evaluation
from ..prompts.models import Assistant, choose_client
from ..prompts.optimiser import SEED, PromptOptimiser
from ..prompts.preflight import SharedOptions, check_client, check_models, check_options, check_temperature
from ..prompts.race import Promotion
from .gepa_search import GepaSearch

if TYPE_CHECKING:
    from openai import AsyncOpenAI


class GEPA(PromptOptimiser[TaskT]):
    """The reflective, Pareto-based prompt optimiser of the `gepa` package.

    It improves all prompts of the resources together, or only the one named `resource_name`. Each iteration of gepa is
    a round.

    Example:
        ```python
        trainer = Trainer(algorithm=GEPA(max_metric_calls=300), initial_resources={"prompt": PromptTemplate("...")})
        trainer.fit(agent, train_dataset=tasks, val_dataset=val_tasks)
        ```

    Args:
        reflection_client: The client that calls `reflection_model`. By default the trainer's gateway if it lists the
            model, otherwise a client made from the environment (`OPENAI_API_KEY`).
        reflection_model: The model that reflects on rollouts and writes new prompts.
        max_metric_calls: The maximum number of rollouts. A prompt on a task counts once, however often gepa asks for
            it.
        reflection_temperature: Sampling temperature of `reflection_model`. None uses the model's default.
        skip_perfect_score: Skip the reflection on training tasks that all have `perfect_reward`, if that is set.
        perfect_score: gepa's name for `perfect_reward`.

    The arguments from `candidate_selection_strategy` to `stop_callbacks` that are not listed here are gepa's own. The
    others (`patience`, `rollout_batch_timeout`, `promotion`, `train_split`, `resource_name`, `seed`, `perfect_reward`,
    `model`, `max_response_tokens`) are those of `sharpen.algorithm.prompts.PromptOptimiser`.
    """

    takes_many_prompts = True

    def __init__(
        self,
        *,
        reflection_client: "AsyncOpenAI | None" = None,
        reflection_model: str = "gpt-5-mini",
        max_metric_calls: int = 150,
        reflection_temperature: float | None = None,
        candidate_selection_strategy: Any = "pareto",
        reflection_minibatch_size: int | None = None,
        reflection_prompt_template: str | Mapping[str, str] | None = None,
        module_selector: Any = "round_robin",
        skip_perfect_score: bool = True,
        perfect_score: float | None = None,
        use_merge: bool = False,
        max_merge_invocations: int = 5,
        merge_val_overlap_floor: int = 5,
        acceptance_criterion: Any = "strict_improvement",
        batch_sampler: Any = "epoch_shuffled",
        sampling_strategy: Any = None,
        selection_strategy: Any = None,
        stop_callbacks: Any = None,
        rollout_batch_timeout: float = 3600.0,
        patience: int | None = None,
        promotion: Promotion = "interval",
        **shared: Unpack[SharedOptions],
    ) -> None:
        check_refused(shared)
        check_options(self, GEPA, shared)
        if importlib.util.find_spec("gepa") is None:
            raise MissingExtraError.of("gepa", extra="gepa", feature="GEPA")
        if perfect_score is not None:
            if shared.get("perfect_reward") is not None:
                raise ConfigError("perfect_score is another name for perfect_reward: use only one of them")
            shared["perfect_reward"] = perfect_score
        super().__init__(rollout_batch_timeout=rollout_batch_timeout, patience=patience, promotion=promotion, **shared)
        if max_metric_calls is None:
            raise ConfigError("max_metric_calls is None: use the maximum number of rollouts of the search")
        check_ints(max_metric_calls=max_metric_calls)
        check_models(reflection_model=reflection_model)
        check_client("reflection_client", reflection_client)
        reflection_temperature = check_temperature("reflection_temperature", reflection_temperature, optional=True)
        self.reflection_client, self.reflection_model = reflection_client, reflection_model
        self.max_metric_calls, self.reflection_temperature = max_metric_calls, reflection_temperature
        self.options = GepaOptions(
            candidate_selection_strategy=candidate_selection_strategy,
            reflection_minibatch_size=reflection_minibatch_size,
            reflection_prompt_template=reflection_prompt_template,
            module_selector=module_selector,
            skip_perfect_score=skip_perfect_score,
            use_merge=use_merge,
            max_merge_invocations=max_merge_invocations,
            merge_val_overlap_floor=merge_val_overlap_floor,
            acceptance_criterion=acceptance_criterion,
            batch_sampler=batch_sampler,
            sampling_strategy=sampling_strategy,
            selection_strategy=selection_strategy,
            stop_callbacks=stop_callbacks,
        )

    def upper_bound(self, train_size: int | None, val_size: int | None) -> UpperBound:
        told = (
            f"GEPA: up to {self.max_metric_calls} evaluations of a prompt on a task (max_metric_calls)",
            "GEPA: the number of reflections depends on the search; usually one for every minibatch",
        )
        bound = UpperBound(self.max_metric_calls, None, told, (self.reflection_model,))
        return self.with_lost(bound)

    async def search(self) -> None:
        minibatch_size = self.options.minibatch_size(len(self.train_items))
        check_budget(self.max_metric_calls, num_val=len(self.val_items), minibatch_size=minibatch_size)
        self.options.check_components(self.seed_prompts)
        client = self.reflection_client or choose_client(
            self, [self.reflection_model], feature="GEPA", argument="reflection_client"
        )
        assistant = Assistant(client)
        if not self.has_ended:
            await assistant.check([self.reflection_model])
        await self.validate_seed()
        if self.has_ended or await self.is_perfect():
            return
        seed = await self.evaluate(SEED, self.val_items) if self.options["use_merge"] else None
        scale = ScoreScale() if seed is None else ScoreScale.for_merges(seed)
        await GepaSearch(self, assistant, Budget(self.max_metric_calls), scale).run()

    @property
    def has_ended(self) -> bool:
        """Whether the search had already finished before the run was resumed."""
        return self.should_stop or (self.patience is not None and self._num_fruitless >= self.patience)


# -- what the rollouts cost, and what they are worth ---------------------------------------------------


class Budget:
    """At most `limit` rollouts, counted exactly.

    gepa counts what it asks for, and looks at the count between iterations only. Here a prompt on a task counts once,
    since it is paid for once, and what does not fit is not begun.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._paid: set[Hashable] = set()

    @property
    def spent(self) -> int:
        return len(self._paid)

    @property
    def left(self) -> int:
        return self.limit - self.spent

    def take(self, batches: Sequence[Sequence[Hashable]]) -> list[int] | None:
        """Pay for what is not paid for yet, and return how much that is of each batch; None, and nothing is paid, where
        it does not all fit."""
        paid, counts = set(self._paid), []
        for batch in batches:
            counts.append(len(set(batch) - paid))
            paid |= set(batch)
        if len(paid) > self.limit:
            return None
        self._paid = paid
        return counts


class ScoreScale:
    """Rewards as gepa gets them.

    gepa compares sums of scores. On a grid of powers of two a sum is exact, so it does not depend on the order of the
    tasks, and "better" never means a rounding error. For merges it draws lots weighted by mean scores, and fails where
    they are not positive: then all scores are lifted by the same amount, which changes no comparison.
    """

    GRID, LEAST = 2.0**-30, 2.0**-20

    def __init__(self, *, lift: float = 0.0) -> None:
        self._lift = self._on_grid(lift)

    @classmethod
    def for_merges(cls, seed: Sequence[Evaluation]) -> "ScoreScale":
        """With a lift that makes scores positive, also if some candidate is as far below 0 again as the seed."""
        worst = min((each.reward for each in seed if not each.is_lost), default=0.0)
        return cls(lift=cls.LEAST - 2 * min(worst, 0.0))

    def of(self, reward: float) -> float:
        return self._on_grid(reward) + self._lift

    def of_all(self, evaluations: Sequence[Evaluation]) -> list[float]:
        """One that was lost says nothing about the prompt: it gets the mean of the others."""
        known = [each.reward for each in evaluations if not each.is_lost]
        mean = math.fsum(known) / len(known) if known else 0.0
        return [self.of(mean if each.is_lost else each.reward) for each in evaluations]

    def _on_grid(self, value: float) -> float:
        return round(value / self.GRID) * self.GRID


def check_budget(limit: int, *, num_val: int, minibatch_size: int) -> None:
    """The least that makes a difference: the seed, one minibatch with it and with a candidate, and the candidate."""
    least = 2 * num_val + 2 * minibatch_size
    if limit < least:
        raise ConfigError(
            f"max_metric_calls is {limit}, but trying one candidate takes {least} rollouts: {num_val} validation tasks "
            f"and {minibatch_size} training tasks for the seed prompt, and as many for the candidate. Raise it, or use "
            "a smaller val_dataset"
        )


# -- options of gepa -----------------------------------------------------------------------------------

MINIBATCH_SIZE = 3

_CHOICES = {
    "candidate_selection_strategy": ("pareto", "current_best", "epsilon_greedy", "top_k_pareto"),
    "module_selector": ("round_robin", "all"),
    "acceptance_criterion": ("strict_improvement", "improvement_or_equal"),
    "batch_sampler": ("epoch_shuffled",),
}
_COUNTS = ("reflection_minibatch_size", "max_merge_invocations", "merge_val_overlap_floor")
_FLAGS = ("skip_perfect_score", "use_merge")
# Given to gepa by the search, or not at all.
_OURS_TO_PASS = ("stop_callbacks", "reflection_prompt_template", "skip_perfect_score")
_FIELDS = ("<curr_param>", "<side_info>")

_OURS = "the run writes its own records: use loggers= and run_dir= of the Trainer"
_DATA = "pass the agent and its data sets to Trainer.fit, and the initial prompts as initial_resources="
_ROLLOUTS = "evaluations are rollouts of the agent"
_REFLECTION = "choose the reflecting model with reflection_model= and its client with reflection_client="
_KEPT = "a resumed run could not restore its proposals; use reflection_prompt_template="
REFUSED: Mapping[str, str] = {
    "seed_candidate": _DATA,
    "trainset": _DATA,
    "valset": _DATA,
    "adapter": _ROLLOUTS,
    "task_lm": _ROLLOUTS,
    "evaluator": _ROLLOUTS,
    "reflection_lm": _REFLECTION,
    "reflection_lm_kwargs": f"{_REFLECTION}, and its temperature with reflection_temperature=",
    "reflection_strategy": _KEPT,
    "custom_candidate_proposer": _KEPT,
    "frontier_type": "a rollout has one score, not several objectives, so the only front is that of tasks",
    "max_reflection_cost": "the price of the model is unknown here; limit the search with max_metric_calls=",
    "run_dir": "gepa would write pickled files there and load them again; use run_dir= of the Trainer",
    "use_cloudpickle": "nothing is pickled; a run resumes from its checkpoint and its store",
    "cache_evaluation": "the store keeps every evaluation, so none is paid for twice",
    "raise_on_exception": "errors of gepa are logged, and stop the search if they persist",
    "track_best_outputs": "the store has the trace of every rollout",
    "display_progress_bar": "the run shows its own progress",
    "logger": "messages of gepa go to the log of sharpen at debug level",
    "callbacks": "pass callbacks= to the Trainer",
    "use_wandb": _OURS,
    "wandb_api_key": _OURS,
    "wandb_init_kwargs": _OURS,
    "wandb_attach_existing": _OURS,
    "use_mlflow": _OURS,
    "mlflow_tracking_uri": _OURS,
    "mlflow_experiment_name": _OURS,
    "mlflow_attach_existing": _OURS,
    "tracking_key_prefix": _OURS,
    "val_evaluation_policy": "candidates are compared on all validation tasks; use a smaller val_dataset",
    "run_initial_validation": "gepa always scores the seed prompt first",
    "val_batch_size": "gepa scores every candidate on all validation tasks; use a smaller val_dataset",
}


class GepaOptions:
    """Options of gepa, checked, by name."""

    def __init__(self, **given: Any) -> None:
        _check_choices(given)
        check_ints(**{name: given[name] for name in _COUNTS})
        for name in _FLAGS:
            check_bool(name, given[name])
        _check_template(given["reflection_prompt_template"])
        self._given = given

    def __getitem__(self, name: str) -> Any:
        return self._given[name]

    @property
    def stop_callbacks(self) -> list[Any]:
        given = self["stop_callbacks"]
        return [] if given is None else list(given) if isinstance(given, Sequence) else [given]

    def minibatch_size(self, num_train: int) -> int:
        """How many training tasks a reflection is about; 0 where a sampler of the user decides."""
        if self["batch_sampler"] != "epoch_shuffled":
            return 0
        return min(int(self["reflection_minibatch_size"] or MINIBATCH_SIZE), num_train)

    def check_components(self, names: Iterable[str]) -> None:
        """The templates by component are for components that there are."""
        template, known = self["reflection_prompt_template"], list(names)
        for name in template if isinstance(template, Mapping) else ():
            if name not in known:
                names_there = ", ".join(map(repr, known))
                raise ConfigError(f"reflection_prompt_template has {name!r}, but the prompts are {names_there}")

    def for_gepa(self, *, num_train: int, num_val: int) -> dict[str, Any]:
        """For one search. Strategies have a state of their own, which the next search must not inherit."""
        found = {name: copy.deepcopy(value) for name, value in self._given.items() if name not in _OURS_TO_PASS}
        found["reflection_minibatch_size"] = self.minibatch_size(num_train) or None
        # gepa merges nothing where there are fewer validation tasks than this.
        found["merge_val_overlap_floor"] = min(self["merge_val_overlap_floor"], num_val)
        return found


def check_refused(given: Iterable[str]) -> None:
    """Say why an option of gepa, or of other searches, is none here."""
    for name in given:
        if name in REFUSED:
            raise ConfigError(f"GEPA does not accept {name}: {REFUSED[name]}")


def _check_choices(given: Mapping[str, Any]) -> None:
    for name, choices in _CHOICES.items():
        value = given[name]
        if isinstance(value, str) and value not in choices:
            raise ConfigError(f"{name} is {value!r}: use {' or '.join(map(repr, choices))}, or a strategy of gepa")
    if given["batch_sampler"] != "epoch_shuffled" and given["reflection_minibatch_size"] is not None:
        raise ConfigError(
            "reflection_minibatch_size works only with batch_sampler='epoch_shuffled': leave one of them out"
        )


def _check_template(template: Any) -> None:
    if template is None:
        return
    for name, text in (template if isinstance(template, Mapping) else {"": template}).items():
        where = "reflection_prompt_template" + (f"[{name!r}]" if name else "")
        if not isinstance(text, str):
            raise ConfigError(f"{where} is {type(text).__name__}: use a str, or a dict of str by component")
        missing = [each for each in _FIELDS if each not in text]
        if missing:
            raise ConfigError(
                f"{where} does not contain {' and '.join(missing)}: gepa replaces <curr_param> by the current prompt "
                "and <side_info> by the rollouts"
            )
