"""`GEPA`: the reflective, Pareto-based optimiser of the `gepa` package as an algorithm.

gepa chooses a candidate from the front of those that are best on some task, lets a model reflect on rollouts of it, and
keeps what the model writes if that does better on the same tasks; it may also merge candidates. Here its evaluations
are rollouts, and what the model is shown of them comes from their traces.
"""

import importlib
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ...checks import check_ints
from ...errors import ConfigError, MissingExtraError
from ...types import TaskT
from ..bounds import UpperBound
from ..prompts.models import Assistant, choose_client
from ..prompts.optimiser import SEED, PromptOptimiser
from ..prompts.preflight import SharedOptions, check_client, check_models, check_options, check_temperature
from ..prompts.race import Promotion
from .budget import check_budget
from .gepa_search import GepaSearch
from .options import GepaOptions, check_refused
from .scores import ScoreScale

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
        if reflection_temperature is not None:
            check_temperature("reflection_temperature", reflection_temperature)
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
        assistant = Assistant(self.reflection_client or self._choose_client())  # before anything is paid for
        if not self.has_ended:
            await assistant.check([self.reflection_model])
        await self.validate_seed()
        if self.has_ended or await self.is_perfect():
            return
        await GepaSearch(self, assistant, await self._scale()).run()

    @property
    def has_ended(self) -> bool:
        """Whether the search had already finished before the run was resumed."""
        return self.should_stop or (self.patience is not None and self._num_fruitless >= self.patience)

    def _choose_client(self) -> "AsyncOpenAI":
        return choose_client(self, [self.reflection_model], feature="GEPA", argument="reflection_client")

    async def _scale(self) -> ScoreScale:
        if not self.options["use_merge"]:
            return ScoreScale()
        return ScoreScale.for_merges(await self.evaluate(SEED, self.val_items))
