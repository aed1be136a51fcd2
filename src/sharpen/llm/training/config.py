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
    """The settings that all wrappers share. A wrapper rejects the ones that it cannot use."""

    model_name: str | os.PathLike[str] | None = None
    """A name on the hub, a model folder, an adapter folder, or a `.gguf` file."""
    output_dir: str | os.PathLike[str] | None = None
    num_train_epochs: float | None = None
    per_device_train_batch_size: int | None = None
    """Rows per forward pass; in GRPO, prompts, each of which gets `num_generations` completions."""
    gradient_accumulation_steps: int | None = None
    """Batches per optimiser step."""
    learning_rate: float | None = None
    warmup: float | None = None
    """A fraction of the run (below 1) or a number of steps (1 or more)."""
    logging_steps: int | None = None
    save_steps: int | None = None
    """Optimiser steps between checkpoints; 0 saves only at the end."""
    eval_steps: int | None = None
    """Optimiser steps between evaluations; by default, evaluate after each epoch."""
    max_length: int | None = None
    """Maximum tokens of a row, which is truncated if longer; in GRPO, of prompt and completion; 0 means no limit."""
    max_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    precision: str | None = None
    """`auto`, `fp32`, `bf16` or `fp16`."""
    gradient_checkpointing: bool | None = None
    """Recompute activations to save memory; by default, only on a GPU."""
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
        """Return the fields that are not None."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}
