"""The keywords of a wrapper: which were given, under which names, and what each of them sets.

A name that is not a setting of ours must be a field of TRL's config, which is imported only then: it takes seconds. Its
value is TRL's to check. A few fields are refused, because the loop of the wrapper does what they would do.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, wraps
from typing import Any, Literal, TypeVar, cast, get_args

from ...checks import did_you_mean, needs_extra
from ...errors import ConfigError
from .config import SETTINGS

Algorithm = Literal["sft", "grpo", "dpo"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
Initialise = TypeVar("Initialise", bound=Callable[..., None])

OTHER_NAMES: Mapping[str, str] = {
    "num_epochs": "num_train_epochs",
    "batch_size": "per_device_train_batch_size",
    "max_completion_length": "max_new_tokens",
    "warmup_steps": "warmup",
    "warmup_ratio": "warmup",
}
REFUSED: Mapping[str, str] = {
    "report_to": "metrics are sent to the loggers: pass loggers=[...], for example with a WandbLogger",
    "logging_strategy": "metrics are logged by steps: use logging_steps",
    "logging_nan_inf_filter": "a loss that is not finite ends the run, so it must not be filtered",
    "push_to_hub": "training does not upload models: upload output_dir afterwards with `hf upload`",
    "hub_token": "training uploads nothing, and would only write it to logs and checkpoints",
    "save_strategy": "the wrapper writes full checkpoints: use save_steps (0: only at the end) and save_total_limit",
    "resume_from_checkpoint": "use resume=True, or resume='path of a checkpoint'",
    "ignore_data_skip": "a resumed run always continues with the next row",
    "load_best_model_at_end": "the callback Checkpoint(keep_best=...) keeps the best model beside the last one",
    **dict.fromkeys(
        ("eval_strategy", "eval_on_start"),
        "the wrapper runs the evaluation: pass eval_dataset, and eval_steps for its interval",
    ),
    "auto_find_batch_size": "a run whose batch size changes cannot be resumed exactly: lower batch_size",
    "model_init_kwargs": "the wrapper loads the model itself: use precision and trust_remote_code",
    **dict.fromkeys(("fsdp", "deepspeed"), "each process holds the whole model: launch with --multi_gpu alone"),
}
"""Fields of TRL's configs that the loop of the wrapper owns, and why."""
_PRECISIONS = ("fp16", "bf16")
_ZERO_FOR_NONE = ("max_length", "save_steps")
PARTS = (
    *("dataset", "reward_fn", "config", "eval_dataset", "eval_reward_fn", "callbacks", "resume", "allow_download"),
    "reward_timeout_seconds",
)
"""Keywords of the wrappers that are not settings of training."""


def remembering_given(initialise: Initialise) -> Initialise:
    """Keep the arguments that were given in `self._given`, by name: a default in a signature was not asked for."""
    signature = inspect.signature(initialise)

    @wraps(initialise)
    def remembering(self: Any, *args: Any, **options: Any) -> None:
        given = dict(signature.bind(self, *args, **options).arguments)
        given.pop("self")
        self._given = given | given.pop("options", {})
        initialise(self, *args, **options)

    return cast(Initialise, remembering)


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
    if name == "max_steps" and value == -1:  # as transformers has it
        return
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
    """Refuse a name that is not a field of TRL's config for this algorithm, or is one that our loop owns."""
    if name in REFUSED:
        raise ConfigError(f"{name} is not supported: {REFUSED[name]}")
    if name in trl_fields(algorithm):
        return
    others = [each.upper() for each in ALGORITHMS if name in trl_fields(each)]
    if others:
        raise ConfigError(f"{name} is an option of {' and '.join(others)}, not of {algorithm.upper()}: omit it")
    known = [*setting_names(algorithm), *PARTS, *(trl_fields(algorithm) - REFUSED.keys())]
    raise ConfigError(
        f"{algorithm.upper()} has no option {name!r}.{did_you_mean(name, known)} The options are the "
        f"fields of sharpen.llm.TrainingConfig and of trl.{algorithm.upper()}Config"
    )


def setting_names(algorithm: Algorithm) -> list[str]:
    """Return every name that can be set without a look at TRL, in order."""
    names = {*SETTINGS, *OTHER_NAMES, *_PRECISIONS, "lora_config"}
    return sorted(names if algorithm == "grpo" else names - {"num_generations"})


def trl_fields(algorithm: Algorithm) -> frozenset[str]:
    """Return the names of the options of the installed TRL."""
    return frozenset(each.name for each in fields(config_class(algorithm)) if each.init)


@cache
def config_class(algorithm: Algorithm) -> Any:
    """Import TRL's class of configs."""
    with needs_extra("trl", extra="llm", feature="fine-tuning"):
        import trl

        return getattr(trl, f"{algorithm.upper()}Config")
