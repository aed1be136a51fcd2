"""`TrainingConfig`: the settings of a fine-tuning run in one object, for all wrappers alike, and their limits.

A field that is None is not set: the trainer's own default holds. A keyword of a wrapper may repeat a field, but not
contradict it.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from ...checks import check_choice, check_int, check_number, is_number
from ...errors import ConfigError
from ...loggers import Logger


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
        checked(self.set_fields())

    def set_fields(self) -> Mapping[str, Any]:
        """Return the fields that are not None."""
        return {each.name: value for each in fields(self) if (value := getattr(self, each.name)) is not None}


# -- the values that a setting may have --------------------------------------------------------------


def checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values, with numbers as plain ones; refuse the first that its setting cannot have."""
    return {name: _CHECKS[name](name, value) for name, value in values.items()}


def _only(is_allowed: Callable[[Any], bool], words: str) -> Callable[[str, Any], Any]:
    """Return a check that refuses every other value, with what to use instead."""

    def check(name: str, value: Any) -> Any:
        if not is_allowed(value):
            raise ConfigError(f"{name} is {value!r}: use {words}")
        return value

    return check


def _is_text(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and os.fspath(value) not in ("", b"")


def _are_modules(value: Any) -> bool:
    each_is_name = isinstance(value, Sequence | set) and all(isinstance(each, str) and each for each in value)
    return each_is_name and bool(value)


def _are_loggers(value: Any) -> bool:
    given = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(each, str | Logger) for each in given)


_AT_LEAST_0, _AT_LEAST_1 = partial(check_int, at_least=0), partial(check_int, at_least=1)
_ABOVE_0 = partial(check_number, above=0)
_TRUTH = _only(lambda value: isinstance(value, bool), "True or False")
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "model_name": _only(_is_text, "a name on the hub, a folder, or a .gguf file"),
    "output_dir": _only(_is_text, "a path"),
    "num_train_epochs": _ABOVE_0,
    "per_device_train_batch_size": _AT_LEAST_1,
    "gradient_accumulation_steps": _AT_LEAST_1,
    "learning_rate": _ABOVE_0,
    "warmup": _only(
        lambda value: is_number(value) and value >= 0 and (value < 1 or value == int(value)),
        "a fraction of the run below 1, such as 0.1, or a whole number of steps",
    ),
    "logging_steps": _AT_LEAST_1,
    "save_steps": _AT_LEAST_0,
    "eval_steps": _AT_LEAST_1,
    "max_length": _AT_LEAST_0,
    "max_new_tokens": _AT_LEAST_1,
    "temperature": partial(check_number, at_least=0),
    "top_p": partial(check_number, above=0, at_most=1),
    "precision": partial(check_choice, choices=("auto", "fp32", "bf16", "fp16")),
    "gradient_checkpointing": _TRUTH,
    "use_lora": _TRUTH,
    "lora_r": _AT_LEAST_1,
    "lora_alpha": _ABOVE_0,
    "lora_dropout": partial(check_number, at_least=0, below=1),
    "lora_target_modules": _only(_are_modules, 'module names, or "minimal", "recommended" or "full"'),
    "loggers": _only(_are_loggers, "a list of loggers, such as ['console', sharpen.loggers.CsvLogger('logs')]"),
    "seed": partial(check_int, at_least=0, at_most=2**32 - 1),
    "max_steps": _AT_LEAST_1,
    "num_generations": partial(check_int, at_least=2),
    "save_total_limit": _AT_LEAST_1,
    "trust_remote_code": _TRUTH,
}
SETTINGS = frozenset(_CHECKS)
"""All settings of the wrappers: the fields of `TrainingConfig`, and some that are given as keywords only."""
