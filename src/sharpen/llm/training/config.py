"""`TrainingConfig`: the settings of a fine-tuning run in one object, for all wrappers alike.

A field that is None is not set: the trainer's own default holds. A keyword of a wrapper may repeat a field, but not
contradict it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...loggers import Logger
from .limits import check_values


@dataclass(kw_only=True)
class TrainingConfig:
    """Every setting that the wrappers share. What a wrapper cannot use, it refuses."""

    model_name: str | os.PathLike[str] | None = None
    """A name on the hub, a model folder, an adapter folder, or a `.gguf` file."""
    output_dir: str | os.PathLike[str] | None = None
    num_train_epochs: float | None = None
    per_device_train_batch_size: int | None = None
    """Rows of one forward pass; in GRPO prompts, each of which is answered `num_generations` times."""
    gradient_accumulation_steps: int | None = None
    """Batches of one optimiser step."""
    learning_rate: float | None = None
    warmup: float | None = None
    """A share of the run (below 1), or a number of steps (1 and more)."""
    logging_steps: int | None = None
    save_steps: int | None = None
    """Optimiser steps between two checkpoints; 0 saves only at the end."""
    eval_steps: int | None = None
    """Optimiser steps between two evaluations; not set: after each epoch."""
    max_length: int | None = None
    """Tokens of a row, longer ones are cut; in GRPO tokens of prompt and completion; 0 is no limit."""
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    precision: str | None = None
    """`auto`, `fp32`, `bf16` or `fp16`."""
    gradient_checkpointing: bool | None = None
    """Compute activations twice to save memory; not set: on a GPU."""
    use_lora: bool | None = None
    lora_r: int | None = None
    lora_alpha: float | None = None
    lora_dropout: float | None = None
    lora_target_modules: str | Sequence[str] | None = None
    loggers: str | Logger | Sequence[str | Logger] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        check_values(self.set_fields())

    def set_fields(self) -> Mapping[str, Any]:
        """The fields that say something."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}
