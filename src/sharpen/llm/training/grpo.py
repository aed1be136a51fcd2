"""`GRPOTrainerWrapper`: reinforcement learning from rewards of sampled completions, compared within groups."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ...callbacks import Callback
from ...errors import ConfigError
from ..reward_runner import RewardFunction, reward_runners
from ..sources import Source
from .config import TrainingConfig
from .given import remembering_given
from .prompts import prompt_lengths
from .wrapper import TrainerWrapper

log = logging.getLogger(__name__)


class GRPOTrainerWrapper(TrainerWrapper):
    """Makes completions likelier that earn more than others of the same prompt.

    Rows have `prompt`, as a text or chat messages; their other columns go to the rewards. `reward_fn` is one function
    or a list. `batch_size` counts prompts: each step samples `num_generations` completions of each of them. Every
    field of `TrainingConfig` and every option of `trl.GRPOConfig` can be given by name.
    """

    algorithm = "grpo"
    columns: ClassVar[Sequence[str]] = ("prompt",)

    @remembering_given
    def __init__(
        self,
        model_name: str | None = None,
        dataset: Source | None = None,
        reward_fn: RewardFunction | Sequence[RewardFunction] | None = None,
        output_dir: str | os.PathLike[str] = "./output/grpo",
        num_epochs: float = 3,
        batch_size: int = 2,
        learning_rate: float = 1e-5,
        use_lora: bool = False,
        lora_config: Mapping[str, Any] | Any | None = None,
        *,
        num_generations: int = 8,
        config: TrainingConfig | None = None,
        eval_dataset: Source | None = None,
        eval_reward_fn: RewardFunction | None = None,
        reward_timeout_seconds: float | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        resume: bool | str | os.PathLike[str] = False,
        allow_download: bool = True,
        **options: Any,
    ) -> None:
        if reward_fn is None:
            raise ConfigError(
                "reward_fn is missing: give a function f(completions, **columns) -> list of numbers, or several in a "
                "list; create_accuracy_reward() makes one"
            )
        self.reward_fns = reward_runners(reward_fn, timeout_seconds=reward_timeout_seconds)
        self._set_up(
            dataset,
            config=config,
            eval_dataset=eval_dataset,
            eval_reward_fn=eval_reward_fn,
            callbacks=callbacks,
            resume=resume,
            allow_download=allow_download,
        )

    def judge(self) -> RewardFunction | None:
        return self.eval_reward_fn or self._sum_of_rewards

    def _sum_of_rewards(self, completions: Sequence[Any], **columns: Any) -> list[float]:
        """What training itself maximises."""
        weights = self.settings.trl.get("reward_weights") or [1.0] * len(self.reward_fns)
        rewards = [each(completions, **columns) for each in self.reward_fns]
        return [
            sum(weight * (value or 0.0) for weight, value in zip(weights, row, strict=True))
            for row in zip(*rewards, strict=True)
        ]

    def rows_for(self, tokenizer: Any) -> Any:
        """Without the prompts that leave no room for a completion within `max_length`."""
        rows = super().rows_for(tokenizer)
        limit = self.settings.max_length
        if limit is None:
            return rows
        longest = limit - (self.settings.max_new_tokens or 0)
        lengths = prompt_lengths(rows["prompt"], tokenizer, self.settings.trl.get("chat_template_kwargs"))
        kept = [row for row, length in enumerate(lengths) if length <= longest]
        if not kept:
            raise ConfigError(
                f"max_length is {limit} and max_new_tokens {self.settings.max_new_tokens}, which leaves {longest} "
                "tokens for the prompt, but every prompt is longer: raise max_length"
            )
        if len(kept) < len(rows):
            log.warning(
                "%d of %d prompts are longer than max_length - max_new_tokens = %d tokens and are left out",
                len(rows) - len(kept),
                len(rows),
                longest,
            )
        return rows.select(kept)

    def make_trainer(self, trl: Any, **parts: Any) -> Any:
        return trl.GRPO(reward_funcs=list(self.reward_fns), **parts)
