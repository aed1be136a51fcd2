"""`DPOTrainerWrapper`: learning from pairs of answers of which one is preferred."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ...callbacks import Callback
from ..reward_runner import RewardFunction
from ..sources import Source
from .config import TrainingConfig
from .options import remembering_given
from .wrapper import TrainerWrapper


class DPOTrainerWrapper(TrainerWrapper):
    """Trains a model to prefer chosen over rejected answers, relative to the initial model as a reference.

    Rows have `prompt`, `chosen` and `rejected`, as strings or chat messages. Every field of `TrainingConfig` and every
    option of `trl.DPOConfig` can be passed as a keyword.
    """

    algorithm = "dpo"
    columns: ClassVar[Sequence[str]] = ("prompt", "chosen", "rejected")

    @remembering_given
    def __init__(
        self,
        model_name: str | None = None,
        dataset: Source | None = None,
        output_dir: str | os.PathLike[str] = "./output/dpo",
        num_epochs: float = 3,
        batch_size: int = 2,
        learning_rate: float = 1e-6,
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
        from copy import deepcopy

        from trl.trainer.dpo_trainer import DPOTrainer

        from .trl import resumable

        rows = None if self.eval_dataset is None else self._learned_from(self.eval_dataset)
        # An adapter is its own reference: TRL turns it off, or keeps a copy of one that was trained before.
        reference = None if self.settings.use_lora else deepcopy(parts["model"])
        return resumable(DPOTrainer)(ref_model=reference, eval_dataset=rows, **parts)
