"""`SFTTrainerWrapper`: supervised fine-tuning on prompts and their completions."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ...callbacks import Callback
from ..reward_runner import RewardFunction
from ..sources import Source
from .config import TrainingConfig
from .options import remembering_given
from .wrapper import TrainerWrapper


class SFTTrainerWrapper(TrainerWrapper):
    """Trains a model on the completions of a data set.

    Rows have `prompt` and `completion`, as strings or chat messages. `eval_dataset` adds a validation loss, and
    `eval_reward_fn` the reward of the model's own answers to it. Every field of `TrainingConfig` and every option of
    `trl.SFTConfig` can be passed as a keyword.
    """

    algorithm = "sft"
    columns: ClassVar[Sequence[str]] = ("prompt", "completion")

    @remembering_given
    def __init__(
        self,
        model_name: str | None = None,
        dataset: Source | None = None,
        output_dir: str | os.PathLike[str] = "./output/sft",
        num_epochs: float = 3,
        batch_size: int = 4,
        learning_rate: float = 2e-5,
        use_lora: bool = False,
        lora_config: Mapping[str, Any] | Any | None = None,
        *,
        config: TrainingConfig | None = None,
        eval_dataset: Source | None = None,
        eval_reward_fn: RewardFunction | None = None,
        callbacks: Callback | Sequence[Callback] | None = None,
        resume: bool | str | os.PathLike[str] = False,
        allow_download: bool = True,
        **options: Any,
    ) -> None:
        self._set_up()

    def make_trainer(self, **parts: Any) -> Any:
        from trl.trainer.sft_trainer import SFTTrainer

        from .trl import resumable

        rows = None if self.eval_dataset is None else self._learned_from(self.eval_dataset)
        return resumable(SFTTrainer)(eval_dataset=rows, **parts)
