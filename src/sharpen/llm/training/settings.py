"""`Settings`: everything that one fine-tuning run was told, checked and complete.

Every setting acts or is refused: an unknown name, a value that cannot be, two that contradict each other, and a setting
that would do nothing here are errors before anything is loaded. Options of TRL go to TRL's own config.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import ConfigError
from ...loggers import Logger
from .config import TrainingConfig, checked
from .options import Algorithm, Named, sort_options
from .processes import processes

if TYPE_CHECKING:
    from peft import LoraConfig

_EVERYWHERE: dict[str, Any] = {
    "num_train_epochs": 3,
    "gradient_accumulation_steps": 1,
    "warmup": 0.1,
    "logging_steps": 10,
    "save_steps": 100,
    "save_total_limit": 2,
    "precision": "auto",
    "seed": 42,
}
DEFAULTS: Mapping[Algorithm, Mapping[str, Any]] = {
    "sft": _EVERYWHERE
    | {
        "output_dir": "./output/sft",
        "per_device_train_batch_size": 4,
        "learning_rate": 2e-5,
        "max_length": 1024,
    },
    "grpo": _EVERYWHERE
    | {
        "output_dir": "./output/grpo",
        "per_device_train_batch_size": 2,
        "learning_rate": 1e-5,
        "max_new_tokens": 512,
        "temperature": 1.0,
        "top_p": 1.0,
        "num_generations": 8,
    },
    "dpo": _EVERYWHERE
    | {
        "output_dir": "./output/dpo",
        "per_device_train_batch_size": 2,  # each row is two answers, and the reference reads them too
        # DPO raises the probability of whole answers against a reference: at the rate of SFT it soon lowers that of
        # both answers and the model falls apart. The published recipes and TRL use 5e-7 to 1e-6.
        "learning_rate": 1e-6,
        "max_length": 1024,
    },
}
_OF_EVALUATION: dict[str, Any] = {"max_new_tokens": 512, "temperature": 0.0, "top_p": 1.0}
"""Where SFT and DPO answer questions only to be evaluated: always the likeliest token."""
_LORA = {
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_target_modules": "target_modules",
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one run. `None` says what stands beside it."""

    algorithm: Algorithm
    model_name: str
    output_dir: str
    num_train_epochs: float
    per_device_train_batch_size: int
    """Rows of one batch; in GRPO prompts."""
    gradient_accumulation_steps: int
    learning_rate: float
    warmup: float
    """A share of the run (below 1), or a number of steps."""
    logging_steps: int
    save_steps: int
    """0: only at the end."""
    seed: int
    precision: str
    """`auto`, `fp32`, `bf16` or `fp16`."""
    gradient_checkpointing: bool | None = None
    """None: on a GPU."""
    max_steps: int | None = None
    """None: whole epochs."""
    eval_steps: int | None = None
    """None: after each epoch."""
    max_length: int | None = None
    """None: no limit."""
    max_new_tokens: int | None = None
    """None, as temperature and top_p: nothing is sampled."""
    temperature: float | None = None
    top_p: float | None = None
    num_generations: int | None = None
    """None: not GRPO."""
    lora: "Mapping[str, Any] | LoraConfig | None" = None
    """None: all weights are trained."""
    is_lora_given: bool = False
    """Whether `lora` was chosen, rather than the usual one."""
    loggers: tuple[str | Logger, ...] | None = None
    """None: the console and `metrics.jsonl`."""
    save_total_limit: int
    """The newest checkpoints that are kept."""
    trust_remote_code: bool = False
    trl: Mapping[str, Any] = field(default_factory=dict)
    """Further options of TRL, by its names."""

    @property
    def use_lora(self) -> bool:
        return self.lora is not None

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as JSON has them."""
        names = (each.name for each in fields(self) if each.name != "is_lora_given")
        return {name: _in_json(getattr(self, name)) for name in names}


def resolve(
    algorithm: Algorithm,
    config: TrainingConfig | None,
    given: Mapping[str, Any],
    *,
    has_eval_dataset: bool = False,
    has_eval_reward: bool = False,
) -> Settings:
    """Return the settings of a run, from a config and the keywords that were given beside it.

    A keyword that is None is not set, but for `max_length` (no limit) and `save_steps` (only at the end).
    """
    if config is not None and not isinstance(config, TrainingConfig):
        raise ConfigError(f"config is {config!r}: pass a TrainingConfig(...), or its fields as keywords")
    named = sort_options(algorithm, given)
    values = checked(_merged(config, named))
    defaults = dict(DEFAULTS[algorithm])
    if has_eval_reward and algorithm != "grpo":
        defaults |= _OF_EVALUATION
    _refuse_idle(algorithm, values, named.trl, defaults, has_eval_dataset=has_eval_dataset)
    is_lora_given = named.lora_config is not None or any(name in values for name in _LORA)
    lora = _lora(values, named.lora_config)
    settings = _complete(algorithm, defaults | values | {"lora": lora, "is_lora_given": is_lora_given}, named.trl)
    _check_sampling(settings)
    return settings


def _merged(config: TrainingConfig | None, named: Named) -> dict[str, Any]:
    """What was set by config or keyword; both may say the same."""
    values = dict(config.set_fields()) if config is not None else {}
    for name, value in named.values.items():
        if name in values and values[name] != value:
            raise ConfigError(
                f"{named.spelling[name]} is {value!r}, but config has {name}={values[name]!r}: pass only one of them"
            )
        values[name] = value
    return values


def _refuse_idle(
    algorithm: Algorithm,
    values: Mapping[str, Any],
    trl: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    has_eval_dataset: bool,
) -> None:
    """Refuse what would do nothing in this run."""
    for name in ("max_new_tokens", "temperature", "top_p"):
        if name in values and name not in defaults:
            raise ConfigError(
                f"{name} is {values[name]!r}, but {algorithm.upper()} does not sample completions: pass eval_reward_fn "
                f"and eval_dataset, or omit {name}"
            )
    if "num_generations" in values and algorithm != "grpo":
        raise ConfigError(
            f"num_generations is an option of GRPO, and {algorithm.upper()} does not sample completions: omit it"
        )
    if "eval_steps" in values and not has_eval_dataset:
        raise ConfigError(f"eval_steps is {values['eval_steps']}, but there is nothing to evaluate: pass eval_dataset")
    if "num_train_epochs" in values and "max_steps" in values:
        raise ConfigError("max_steps and the number of epochs both set the length of training: omit one of them")
    if "warmup" in values and trl.get("lr_scheduler_type") == "constant":
        raise ConfigError("a constant learning rate has no warmup: use lr_scheduler_type='constant_with_warmup'")


def _lora(
    values: dict[str, Any], lora_config: "Mapping[str, Any] | LoraConfig | None"
) -> "Mapping[str, Any] | LoraConfig | None":
    """Take the settings of LoRA out of `values`, as one."""
    from ..models.lora import create_lora_config

    wanted = {_LORA[name]: values.pop(name) for name in _LORA if name in values}
    if not values.pop("use_lora", False):
        if wanted or lora_config is not None:
            what = "lora_config" if lora_config is not None else next(each for each in _LORA if _LORA[each] in wanted)
            raise ConfigError(f"{what} has no effect without use_lora=True: set it too, or omit {what}")
        return None
    complete = create_lora_config(**wanted)
    if lora_config is None:
        return complete
    if isinstance(lora_config, Mapping):
        lora_config = create_lora_config(**{str(name): value for name, value in lora_config.items()})
    for name in wanted:
        chosen = lora_config[name] if isinstance(lora_config, Mapping) else getattr(lora_config, name)
        if _comparable(chosen) != _comparable(complete[name]):
            raise ConfigError(
                f"{name} of LoRA is {complete[name]!r}, but lora_config has {chosen!r}: pass only one of them"
            )
    return lora_config


def _comparable(value: Any) -> Any:
    """Names of modules have no order."""
    return frozenset(value) if isinstance(value, list | tuple | set) else value


def _complete(algorithm: Algorithm, values: dict[str, Any], trl: Mapping[str, Any]) -> Settings:
    if "model_name" not in values:
        raise ConfigError("model_name is missing: pass the model to train, as a name on the hub or a folder")
    loggers = values.pop("loggers", None)
    if isinstance(loggers, str | Logger):
        loggers = [loggers]
    return Settings(
        algorithm=algorithm,
        loggers=None if loggers is None else tuple(loggers),
        trl=dict(trl),
        **values
        | {
            "model_name": os.fspath(values["model_name"]),
            "output_dir": os.fspath(values["output_dir"]),
            "max_length": values.get("max_length") or None,
        },
    )


def _check_sampling(settings: Settings) -> None:
    if settings.temperature == 0 and settings.top_p != 1:
        raise ConfigError(
            f"top_p is {settings.top_p}, which has no effect at temperature 0 (always the most likely token): "
            "raise temperature, or omit top_p"
        )
    if settings.algorithm != "grpo":
        return
    if settings.temperature == 0:
        raise ConfigError(
            "temperature is 0, but GRPO compares different answers to one prompt: use a number above 0, such as 1.0"
        )
    if settings.max_length is not None and settings.max_length <= (settings.max_new_tokens or 0):
        raise ConfigError(
            f"max_length is {settings.max_length}, which includes prompt and completion, but max_new_tokens alone is "
            f"{settings.max_new_tokens}: raise max_length or lower max_new_tokens"
        )


def _in_json(value: Any) -> Any:
    """A value as JSON has it; a logger by its class, a set in order, a LoraConfig by its fields."""
    if isinstance(value, Enum):
        return _in_json(value.value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _in_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(map(_in_json, value), key=str)
    if isinstance(value, PurePath):
        return str(value)
    if callable(getattr(value, "to_dict", None)):
        return _in_json(value.to_dict())
    return type(value).__name__


# -- the length of a run -----------------------------------------------------------------------------


class RunLength(NamedTuple):
    """How many optimiser steps a run takes, as transformers and TRL count them. Packed rows are fewer."""

    steps: int
    rows_per_batch: int
    """Rows that must be there together: a batch of all processes, or in GRPO the prompts that are sampled at once."""


def run_length(settings: Settings, num_rows: int) -> RunLength:
    """Return the length of a run over so many rows."""
    rows_per_batch = settings.per_device_train_batch_size * processes().count
    if settings.algorithm == "grpo":
        per_generation = _batches_per_generation(settings)
        rows_per_batch *= per_generation
        batches = num_rows // rows_per_batch * per_generation * int(settings.trl.get("num_iterations", 1))
    elif settings.trl.get("dataloader_drop_last", False):
        batches = num_rows // rows_per_batch
    else:
        batches = math.ceil(num_rows / rows_per_batch)
    return RunLength(_steps(settings, batches) if batches else 0, rows_per_batch)


def _steps(settings: Settings, batches: int) -> int:
    if settings.max_steps is not None:
        return settings.max_steps
    return math.ceil(settings.num_train_epochs * math.ceil(batches / settings.gradient_accumulation_steps))


def _batches_per_generation(settings: Settings) -> int:
    """Return how many batches GRPO samples at once."""
    if completions := settings.trl.get("generation_batch_size"):
        at_once = settings.per_device_train_batch_size * processes().count * (settings.num_generations or 1)
        return max(int(completions) // at_once, 1)
    return int(settings.trl.get("steps_per_generation") or settings.gradient_accumulation_steps)
