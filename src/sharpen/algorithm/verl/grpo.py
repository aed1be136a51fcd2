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
        model: A name on the Hugging Face hub, a folder, an adapter or a GGUF file. Required.
        group_size: Number of rollouts of each task.
        batch_size: Number of tasks in a step.
        learning_rate: Learning rate of AdamW. LoRA needs about ten times the rate of full training.
        steps: Number of steps. None runs `epochs` passes over the tasks.
        epochs: Number of passes over the tasks if `steps` is None.
        lora_rank: Rank of the LoRA adapter to train. 0 trains the weights themselves.
        lora_alpha: Scale of the adapter.
        trainable: The weights to train: `all`, `lora` or `top:N` (the last N layers).
        temperature: Sampling temperature in training.
        max_prompt_length: Maximum number of prompt tokens. Calls with a longer prompt are excluded from training.
        max_response_length: Maximum number of tokens in an answer. A step waits for its longest rollout.
        clip: How far from 1 the ratio of the new to the old policy may be.
        clip_high: The same above 1. None uses `clip`.
        kl_coef: Weight in the loss of the KL divergence from the model at the start of the run.
        entropy_coef: Weight of the entropy in the loss.
        mini_batch_size: Number of tasks in an update. None uses `batch_size`.
        ppo_epochs: Number of passes over the rollouts of a step.
        scale_by_std: Whether to divide advantages by the standard deviation of the group.
        max_staleness: By how many steps the weights of a rollout may be out of date. 0 trains in lockstep.
        validate_every: Number of steps between validations. -1 validates only before the first and after the last step.
        validate_by: A field of the tasks. Validation also reports the mean reward for each of its values.
        save_every: Number of steps between saved checkpoints. -1 saves only the last.
        output_dir: The folder of the checkpoints. None uses the run folder.
        seed: Seed of everything that has no separate seed.
        precision: `fp32` or `bf16`. None depends on the device.
        config: Further settings with verl's keys, which override the options above.

    Raises:
        ConfigError: An option is unknown or has a value that is not allowed. The message names the nearest option.
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
