"""`GRPOTrainerWrapper`: reinforcement learning from rewards of sampled completions, compared within groups."""

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ...callbacks import Callback
from ...errors import ConfigError
from ..reward_runner import RewardFunction, reward_runners
from ..sources import Dataset, Source, to_hugging_face
from .config import TrainingConfig
from .options import remembering_given
from .preflight import prompt_lengths
from .wrapper import TrainerWrapper

log = logging.getLogger(__name__)

# What TRL itself hands to rewards.
_TAKEN = frozenset(
    (
        "prompts",
        "completions",
        "completion_ids",
        "trainer_state",
        "log_extra",
        "log_metric",
        "environments",
    )
)


class GRPOTrainerWrapper(TrainerWrapper):
    """Trains a model towards the completions that earn more reward than others of the same prompt.

    Rows have `prompt`, as a string or chat messages; their other columns are passed to the rewards. `reward_fn` is a
    function or a list of functions. `batch_size` counts prompts: each step samples `num_generations` completions for
    each of them. Every field of `TrainingConfig` and every option of `trl.GRPOConfig` can be passed as a keyword.
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
                "reward_fn is missing: pass a function f(completions, **columns) -> list of numbers, or a list of "
                "them; create_accuracy_reward() returns one"
            )
        self.reward_fns = reward_runners(
            reward_fn, timeout_seconds=reward_timeout_seconds, unit="completion of the batch"
        )
        self._set_up()

    def _rows(self, rows: Source | None, name: str) -> Dataset:
        dataset = super()._rows(rows, name)
        if taken := [each for each in dataset.column_names if each in _TAKEN]:
            raise ConfigError(
                f"{name} has a column {taken[0]!r}, which is a reserved argument of rewards: rename the column"
            )
        return dataset

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

    def rows_for(self, tokenizer: Any, window: int | None) -> Any:
        """Return the rows with all columns, without prompts that are too long for a completion to fit."""
        rows = to_hugging_face(self.dataset)
        if "completion" in rows.column_names:  # of rows for SFT: here the model writes its own
            rows = rows.remove_columns("completion")
        limit = min((each for each in (self.settings.max_length, window) if each is not None), default=None)
        if limit is None:
            return rows
        longest = limit - (self.settings.max_new_tokens or 0)
        lengths = prompt_lengths(rows["prompt"], tokenizer, self.settings.trl.get("chat_template_kwargs"))
        kept = [row for row, length in enumerate(lengths) if length <= longest]
        if not kept:
            raise ConfigError(
                f"{_limit_in_words(self.settings.max_length, window)} is {limit} tokens, of which max_new_tokens "
                f"reserves {self.settings.max_new_tokens}: every prompt is longer than the remaining {longest}; "
                "lower max_new_tokens, or shorten the prompts"
            )
        if len(kept) < len(rows):
            log.warning(
                "skipping %d of %d prompts, which are longer than %d tokens: %s is %d, and max_new_tokens is %d",
                len(rows) - len(kept),
                len(rows),
                longest,
                _limit_in_words(self.settings.max_length, window),
                limit,
                self.settings.max_new_tokens,
            )
        return rows.select(kept)

    def make_trainer(self, **parts: Any) -> Any:
        from trl.trainer.grpo_trainer import GRPOTrainer

        from .trl import resumable

        trainer = resumable(GRPOTrainer)(reward_funcs=list(self.reward_fns), **parts)
        if trainer.ref_model is not None:  # the model as training begins, whatever folder, adapter or file it came from
            trainer.ref_model.load_state_dict(trainer.model.state_dict())
        return trainer


def _limit_in_words(max_length: int | None, window: int | None) -> str:
    return (
        "the model's context window"
        if max_length is None or (window is not None and window < max_length)
        else "max_length"
    )
