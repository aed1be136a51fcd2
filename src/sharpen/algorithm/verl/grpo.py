"""`GRPO`: the same training for those who do not know verl."""

import os
from collections.abc import Mapping
from typing import Any, Never

from ...types import TaskT
from .grpo_options import OPTIONS, grpo_config, refuse_unknown
from .verl import VERL


class GRPO(VERL[TaskT]):
    """Train the model behind an agent from the agent's own rollouts.

    Each task is tried `group_size` times. Answers that score above the mean of their group become more likely, the
    others less. Run it with `Trainer(algorithm=GRPO(model)).fit(agent, train_tasks, val_tasks)`.

    Args:
        model: A name on the hub, a folder, an adapter or a GGUF file. Required.
        group_size: Rollouts of each task.
        batch_size: Tasks of a step.
        learning_rate: Of AdamW. LoRA needs about ten times as much as all weights.
        steps: Steps of the run; None for `epochs` passes over the tasks.
        epochs: Passes over the tasks, where `steps` is None.
        lora_rank: Rank of the adapter to train; 0 trains the weights themselves.
        lora_alpha: Scale of the adapter.
        trainable: `all`, `lora` or `top:N` (the last N layers).
        temperature: Of sampling in training.
        max_prompt_length: Tokens; a call with a longer prompt is not trained.
        max_response_length: Tokens of one answer. A step waits for its longest rollout.
        clip: How far from 1 the ratio of new to old policy counts.
        clip_high: The same above 1; None for `clip`.
        kl_coef: Weight of the KL to the start of the run in the loss.
        entropy_coef: Weight of the entropy in the loss.
        mini_batch_size: Tasks of one update; None for `batch_size`.
        ppo_epochs: Passes over the rollouts of a step.
        scale_by_std: Divide advantages by the standard deviation of the group.
        max_staleness: Steps by which the weights of a rollout may be behind; 0 for none.
        validate_every: Steps between validations; -1 for only before the first and after the last step.
        validate_by: A field of the tasks: validation also reports the mean of each of its values.
        save_every: Steps between checkpoints that are kept; -1 for only the last.
        output_dir: The folder of the checkpoints; None for the folder of the run.
        seed: Of everything that has no seed of its own.
        precision: `fp32` or `bf16`; None to choose by the device.
        config: Further settings with verl's keys, which count more than the options.

    Raises:
        ConfigError: An option is unknown or has a value that cannot be; the message names the nearest option.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *others: Never,
        group_size: int = 8,
        batch_size: int = 8,
        learning_rate: float = 1e-5,
        steps: int | None = None,
        epochs: int = 1,
        lora_rank: int = 0,
        lora_alpha: float | None = None,
        trainable: str | None = None,
        temperature: float = 1.0,
        max_prompt_length: int = 4096,
        max_response_length: int = 512,
        clip: float = 0.2,
        clip_high: float | None = None,
        kl_coef: float = 0.0,
        entropy_coef: float = 0.0,
        mini_batch_size: int | None = None,
        ppo_epochs: int = 1,
        scale_by_std: bool = True,
        max_staleness: int = 0,
        validate_every: int = -1,
        validate_by: str | None = None,
        save_every: int = -1,
        output_dir: str | os.PathLike[str] | None = None,
        seed: int = 0,
        precision: str | None = None,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        **unknown: Never,
    ) -> None:
        refuse_unknown(unknown, others)
        given = locals()
        super().__init__(grpo_config({name: given[name] for name in OPTIONS}, config))

    def spelled(self, key: str) -> str:
        return next((f"{option}=" for option, own in OPTIONS.items() if own == key), super().spelled(key))
