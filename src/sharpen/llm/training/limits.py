"""The values that a setting of training may have, whatever the algorithm."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...checks import is_int, is_number
from ...errors import ConfigError
from ...loggers import Logger

PRECISIONS = ("auto", "fp32", "bf16", "fp16")
_MOST_SEED = 2**32 - 1

Check = Callable[[Any], str | None]
"""What a value must be, in words, if it is not; otherwise None."""


def check_values(values: Mapping[str, Any]) -> None:
    """Refuse the first value that its setting cannot have. Names without a limit here pass."""
    for name, value in values.items():
        wanted = _CHECKS[name](value) if name in _CHECKS else None
        if wanted is not None:
            raise ConfigError(f"{name} is {value!r}: use {wanted}")


def whole(least: int, most: int | None = None, *, zero: str = "") -> Check:
    """A whole number from `least` on. `zero` says what 0 means, where it has a meaning of its own."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    words = f"an integer {bounds}" + (f" (0: {zero})" if zero else "")
    return lambda value: None if is_int(value) and least <= value and (most is None or value <= most) else words


def number(is_allowed: Callable[[float], bool], words: str) -> Check:
    return lambda value: None if is_number(value) and is_allowed(value) else words


def _truth(value: Any) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _path(value: Any) -> str | None:
    return None if isinstance(value, str | os.PathLike) and os.fspath(value) not in ("", b"") else "a path"


def _name(value: Any) -> str | None:
    wanted = "a name on the hub, a folder, or a .gguf file"
    return None if isinstance(value, str | os.PathLike) and os.fspath(value) not in ("", b"") else wanted


def _precision(value: Any) -> str | None:
    return None if isinstance(value, str) and value in PRECISIONS else f"one of {', '.join(PRECISIONS)}"


def _warmup(value: Any) -> str | None:
    is_right = is_number(value) and value >= 0 and (value < 1 or value == int(value))
    return None if is_right else "a fraction of the run below 1, such as 0.1, or a whole number of steps"


def _modules(value: Any) -> str | None:
    if isinstance(value, str):
        return None if value else "module names"
    is_right = (
        isinstance(value, Sequence | set) and bool(value) and all(isinstance(each, str) and each for each in value)
    )
    return None if is_right else 'module names, or "minimal", "recommended" or "full"'


def _loggers(value: Any) -> str | None:
    if isinstance(value, str | Logger):
        return None
    is_right = isinstance(value, list | tuple) and all(isinstance(each, str | Logger) for each in value)
    return None if is_right else "a list of loggers, such as ['console', sharpen.loggers.CsvLogger('logs')]"


_CHECKS: dict[str, Check] = {
    "model_name": _name,
    "output_dir": _path,
    "num_train_epochs": number(lambda value: value > 0, "a number above 0"),
    "per_device_train_batch_size": whole(1),
    "gradient_accumulation_steps": whole(1),
    "learning_rate": number(lambda value: value > 0, "a number above 0, such as 2e-5"),
    "warmup": _warmup,
    "logging_steps": whole(1),
    "save_steps": whole(0, zero="only at the end"),
    "eval_steps": whole(1),
    "max_length": whole(0, zero="no limit"),
    "max_new_tokens": whole(1),
    "temperature": number(lambda value: value >= 0, "0 (always the most likely token) or a positive number"),
    "top_p": number(lambda value: 0 < value <= 1, "a number above 0 and at most 1"),
    "precision": _precision,
    "gradient_checkpointing": _truth,
    "use_lora": _truth,
    "lora_r": whole(1),
    "lora_alpha": number(lambda value: value > 0, "a number above 0"),
    "lora_dropout": number(lambda value: 0 <= value < 1, "a number of at least 0 and below 1"),
    "lora_target_modules": _modules,
    "loggers": _loggers,
    "seed": whole(0, _MOST_SEED),
    "max_steps": whole(1),
    "num_generations": whole(2),
    "save_total_limit": whole(1),
    "trust_remote_code": _truth,
}
