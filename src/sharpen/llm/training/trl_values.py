"""The values that TRL's options may have: their types, their limits, and what they need beside them."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...checks import is_number
from ...errors import ConfigError
from .trl_names import Algorithm, check_kind
from .trl_needs import check_needs

_LEAST: Mapping[str, float] = {
    "neftune_noise_alpha": 0,
    "pad_to_multiple_of": 1,
    "dataset_num_proc": 1,
    "weight_decay": 0,
    "max_grad_norm": 0,
    "adam_epsilon": 0,
    "dataloader_num_workers": 0,
    "per_device_eval_batch_size": 1,
    "steps_per_generation": 1,
    "generation_batch_size": 2,
    "num_iterations": 1,
    "beta": 0,
    "epsilon": 0,
    "top_k": 0,
    "ref_model_sync_steps": 1,
    "precompute_ref_batch_size": 1,
    "torch_empty_cache_steps": 1,
}
_SHARES = ("adam_beta1", "adam_beta2", "label_smoothing_factor", "min_p", "top_entropy_quantile")
VALUES: Mapping[str, tuple[str | bool, ...]] = {
    "log_level": ("passive", "detail", "debug", "info", "warning", "error", "critical"),
    "include_num_input_tokens_seen": ("no", "all", "non_padding", True, False),
    "train_sampling_strategy": ("random", "sequential", "group_by_length", "batch_rebalance"),
    "scale_rewards": ("group", "batch", "none", True, False),
    "importance_sampling_level": ("token", "sequence"),
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "f_divergence_type": ("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"),
}
"""Values that TRL looks at only in the middle of a run, or never, so that another one would do nothing."""
_BY_EVALUATION = ("reduce_lr_on_plateau", "greedy")
LOSSES: Mapping[Algorithm, tuple[str, ...]] = {
    "sft": ("nll", "dft"),
    "grpo": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "dpo": (
        *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot"),
        *("aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
    ),
}
_SAMPLING = {
    "max_new_tokens": "max_new_tokens",
    "max_length": "max_new_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "cache_implementation": "cache_implementation",
    "num_return_sequences": "num_generations",
    "do_sample": "temperature",
}
"""Keys of generation_kwargs that would override an option in silence, and that option."""
_PACKAGES = {"use_vllm": "vllm", "use_liger_kernel": "liger_kernel"}


def check_options(
    algorithm: Algorithm, options: Mapping[str, Any], values: Mapping[str, Any], *, has_eval_dataset: bool
) -> None:
    """Refuse a value that an option of TRL cannot have, and an option that would do nothing beside the others."""
    for name, value in options.items():
        check_kind(name, value)
        if name in _LEAST and is_number(value) and value < _LEAST[name]:
            raise ConfigError(f"{name} is {value!r}: use a number of at least {_LEAST[name]}")
        if name in _SHARES and value is not None and not 0 <= value <= 1:
            raise ConfigError(f"{name} is {value!r}: use a number from 0 to 1")
        if name == "repetition_penalty" and value <= 0:
            raise ConfigError(f"{name} is {value!r}: use a number above 0 (1.0 means no penalty)")
        if name in VALUES and value not in VALUES[name]:
            raise ConfigError(f"{name} is {value!r}: use one of {', '.join(map(repr, VALUES[name]))}")
        if value and name in _PACKAGES and find_spec(_PACKAGES[name]) is None:
            raise ConfigError(f"{name} needs the package {_PACKAGES[name]!r}, which is not installed: install it")
    _check_max_steps(options.get("max_steps", -1))
    _check_schedule(options.get("lr_scheduler_type"))
    _check_losses(algorithm, options.get("loss_type"))
    _check_generation(options)
    _check_template(options.get("chat_template_path"))
    check_needs(algorithm, options)
    for name in ("per_device_eval_batch_size", "eval_packing"):
        if options.get(name) is not None and not has_eval_dataset:
            raise ConfigError(f"{name} is {options[name]!r}, but there is nothing to evaluate: pass eval_dataset")
    if options.get("padding_free") and not options.get("packing") and values.get("max_length") != 0:
        raise ConfigError(
            "padding_free cannot truncate rows to max_length: add packing=True, or max_length=None (no limit)"
        )


def _check_max_steps(value: int) -> None:
    if value != -1 and value < 1:
        raise ConfigError(f"max_steps is {value}: use 1 or more, or omit it to train for whole epochs")


def _check_schedule(name: str | None) -> None:
    if name in _BY_EVALUATION:
        raise ConfigError(
            f"lr_scheduler_type is {name!r}, which needs the evaluation of transformers: use one that depends on the "
            "step, such as 'cosine'; the EarlyStopping callback ends a run that no longer improves"
        )


def _check_losses(algorithm: Algorithm, value: str | list[str] | None) -> None:
    if value is None:
        return
    if not isinstance(value, str) and algorithm != "dpo":
        raise ConfigError(f"loss_type is {value!r}: {algorithm.upper()} takes a single loss, as a string")
    for each in [value] if isinstance(value, str) else value:
        if each not in LOSSES[algorithm]:
            raise ConfigError(f"loss_type is {each!r}: {algorithm.upper()} supports {', '.join(LOSSES[algorithm])}")


def _check_generation(options: Mapping[str, Any]) -> None:
    for name in options.get("generation_kwargs") or {}:
        if name in _SAMPLING:
            raise ConfigError(f"generation_kwargs has {name!r}: use the option {_SAMPLING[name]} instead")
    if options.get("steps_per_generation") is not None and options.get("generation_batch_size") is not None:
        raise ConfigError("steps_per_generation and generation_batch_size set the same thing: pass only one of them")


def _check_template(path: str | None) -> None:
    if path is not None and not Path(path).exists():
        raise ConfigError(
            f"chat_template_path is {path!r}, which does not exist: pass a Jinja file or a tokenizer's folder"
        )
