"""The names under which a wrapper takes its options, and what each of them sets."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from ...errors import ConfigError
from .config import TrainingConfig
from .trl_names import OURS, PASSED, REFUSED, REFUSED_IN, Algorithm

OTHER_NAMES: Mapping[str, str] = {
    "num_epochs": "num_train_epochs",
    "batch_size": "per_device_train_batch_size",
    "max_completion_length": "max_new_tokens",
    "warmup_steps": "warmup",
    "warmup_ratio": "warmup",
}
SETTINGS = frozenset(each.name for each in fields(TrainingConfig)) | {
    "num_generations",
    "save_total_limit",
    "trust_remote_code",
}
_PRECISIONS = ("fp16", "bf16")
_ZERO_FOR_NONE = ("max_length", "save_steps")
_OF_WRAPPERS = ("dataset", "reward_fn", "config", "eval_dataset", "eval_reward_fn", "callbacks", "resume")


@dataclass
class Named:
    """Options, sorted by what they are."""

    values: dict[str, Any] = field(default_factory=dict)
    """Settings by the names of TrainingConfig."""
    spelling: dict[str, str] = field(default_factory=dict)
    """How the caller wrote each of them."""
    lora_config: Any = None
    trl: dict[str, Any] = field(default_factory=dict)


def sort_options(algorithm: Algorithm, given: Mapping[str, Any]) -> Named:
    """Sort the options of a caller; refuse the names that are none, and two that say different things."""
    named = Named()
    for name, value in given.items():
        if name == "lora_config":
            named.lora_config = _checked_lora(value)
        elif name in _PRECISIONS:
            continue
        elif name in SETTINGS or name in OTHER_NAMES:
            _set(named, name, value)
        else:
            check_name(algorithm, name)
            named.trl[name] = value
    _set_precision(named, {name: given[name] for name in _PRECISIONS if given.get(name) is not None})
    return named


def _set(named: Named, name: str, value: Any) -> None:
    setting = OTHER_NAMES.get(name, name)
    if value is None:
        if setting not in _ZERO_FOR_NONE:
            return
        value = 0
    if name == "warmup_ratio" and not (isinstance(value, int | float) and 0 <= value < 1):
        raise ConfigError(f"warmup_ratio is {value!r}: use a fraction of the run, at least 0 and below 1")
    if setting in named.values and named.values[setting] != value:
        other = named.spelling[setting]
        raise ConfigError(
            f"{other} is {named.values[setting]!r} and {name} is {value!r}, but they are the same setting: "
            "pass only one of them"
        )
    named.values[setting], named.spelling[setting] = value, name


def _set_precision(named: Named, flags: Mapping[str, Any]) -> None:
    """`fp16` and `bf16` in words of `precision`. One that is False, without the other being True, means fp32."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}: use True or False")
    wanted = [name for name, value in flags.items() if value]
    if len(wanted) == 2:
        raise ConfigError("fp16 and bf16 are both True: choose one")
    chosen = named.values.get("precision")
    if wanted:
        _set(named, "precision", wanted[0])
    elif chosen in flags:
        raise ConfigError(f"precision is {chosen!r} and {chosen} is False: omit one of them")
    elif flags and chosen in (None, "auto"):
        _set_fp32(named, flags)


def _set_fp32(named: Named, flags: Mapping[str, Any]) -> None:
    named.values["precision"], named.spelling["precision"] = "fp32", " and ".join(flags)


def _checked_lora(value: Any) -> Any:
    if value is None or isinstance(value, Mapping) or hasattr(value, "target_modules"):
        return value
    raise ConfigError(f"lora_config is {value!r}: pass the result of create_lora_config(...), or a peft.LoraConfig")


# -- names of TRL ------------------------------------------------------------------------------------


def check_name(algorithm: Algorithm, name: str) -> None:
    """Refuse a name that is no option of TRL for this algorithm, or one that would do nothing."""
    if reason := REFUSED_IN.get((algorithm, name)) or REFUSED.get(name):
        raise ConfigError(f"{name} is not supported: {reason}")
    if name in PASSED:
        algorithms = PASSED[name].algorithms
        if algorithm not in algorithms:
            raise ConfigError(f"{name} is an option of {_listed(algorithms)}, not of {algorithm.upper()}: omit it")
        return
    if not _is_new_in_trl(algorithm, name):
        raise ConfigError(_unknown(algorithm, name))


def option_names(algorithm: Algorithm) -> list[str]:
    """Every name that can be set, in order."""
    passed = {name for name, option in PASSED.items() if algorithm in option.algorithms}
    names = SETTINGS | set(OTHER_NAMES) | set(_PRECISIONS) | {"lora_config"} | passed
    return sorted(names if algorithm == "grpo" else names - {"num_generations"})


def _is_new_in_trl(algorithm: Algorithm, name: str) -> bool:
    """Whether the installed TRL knows an option that our tables do not have yet."""
    try:
        from .trl_options import trl_fields

        return name in trl_fields(algorithm) and name not in OURS
    except ImportError:
        return False


def _unknown(algorithm: Algorithm, name: str) -> str:
    nearest = get_close_matches(name, [*option_names(algorithm), *_OF_WRAPPERS], 1)
    meant = f"did you mean {nearest[0]}? " if nearest else ""
    return (
        f"{algorithm.upper()} has no option {name!r}: {meant}The options are the fields of "
        f"sharpen.llm.TrainingConfig and of trl.{algorithm.upper()}Config"
    )


def _listed(algorithms: Iterable[str]) -> str:
    return " and ".join(sorted(each.upper() for each in algorithms))
