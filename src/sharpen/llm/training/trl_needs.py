"""Options of TRL that act only together with another one: set alone they would do nothing, and are refused."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...errors import ConfigError


class Need(NamedTuple):
    """What another option must be. `is_met` gets its value, None where it is not set."""

    option: str
    words: str
    is_met: Callable[[Any], bool]


def _on(option: str) -> Need:
    return Need(option, f"{option}=True", bool)


def _set(option: str, example: str) -> Need:
    return Need(option, f"{option}={example}", bool)


def _one_of(option: str, *values: str) -> Need:
    def is_met(value: Any) -> bool:
        return bool(set(values) & ({value} if isinstance(value, str) else set(value or ())))

    return Need(option, f"{option}={' or '.join(map(repr, values))}", is_met)


_NOT_LIKE_ADAM = ("sgd", "adagrad", "rmsprop", "adafactor")
_WITHOUT_ARGUMENTS = (None, "adamw_torch", "adamw_torch_fused", *_NOT_LIKE_ADAM)
_ADAM = Need("optim", "an AdamW-like optimiser", lambda value: value not in _NOT_LIKE_ADAM)
_WORKERS = _set("dataloader_num_workers", "2 or more")
_VLLM = _on("use_vllm")
_PENALTY = _set("beta", "0.04 or another weight above 0")

NEEDS: Mapping[str, Need] = {
    "adam_beta1": _ADAM,
    "adam_beta2": _ADAM,
    "adam_epsilon": _ADAM,
    "optim_args": Need("optim", "an optim that reads it", lambda value: value not in _WITHOUT_ARGUMENTS),
    "optim_target_modules": Need(
        "optim", "optim='galore_adamw' or 'apollo_adamw'", lambda value: str(value).startswith(("galore", "apollo"))
    ),
    "liger_kernel_config": _on("use_liger_kernel"),
    "dataloader_persistent_workers": _WORKERS,
    "dataloader_prefetch_factor": _WORKERS,
    "dataloader_multiprocessing_context": _WORKERS,
    "length_column_name": _one_of("train_sampling_strategy", "group_by_length", "batch_rebalance"),
    "packing_strategy": _on("packing"),
    "transformers_continuous_batching_config": _on("use_transformers_continuous_batching"),
    "sapo_temperature_neg": _one_of("loss_type", "sapo"),
    "sapo_temperature_pos": _one_of("loss_type", "sapo"),
    "vespo_k_pos": _one_of("loss_type", "vespo"),
    "vespo_lambda_pos": _one_of("loss_type", "vespo"),
    "vespo_k_neg": _one_of("loss_type", "vespo"),
    "vespo_lambda_neg": _one_of("loss_type", "vespo"),
    "entropy_coef_min": _on("use_adaptive_entropy"),
    "entropy_coef_max": _on("use_adaptive_entropy"),
    "entropy_coef_delta": _on("use_adaptive_entropy"),
    "entropy_target": _on("use_adaptive_entropy"),
    "num_completions_to_print": _on("log_completions"),
    "log_unique_prompts": _on("log_completions"),
    "ref_model_mixup_alpha": _on("sync_ref_model"),
    "ref_model_sync_steps": _on("sync_ref_model"),
    "precompute_ref_batch_size": _on("precompute_ref_log_probs"),
    "f_alpha_divergence_coef": _one_of("f_divergence_type", "alpha_divergence"),
    "label_smoothing": _one_of("loss_type", "robust", "exo_pair", "aot", "aot_unpaired"),
    "discopop_tau": _one_of("loss_type", "discopop"),
    "loss_weights": Need(
        "loss_type", "loss_type=[...], a list of losses", lambda value: isinstance(value, list | tuple)
    ),
    **{
        f"vllm_{name}": _VLLM
        for name in (
            *("mode", "model_impl", "enable_sleep_mode", "structured_outputs_regex", "server_base_url", "server_host"),
            *("server_port", "server_timeout", "group_port", "gpu_memory_utilization", "max_model_length"),
            *("tensor_parallel_size", "importance_sampling_correction", "importance_sampling_mode"),
            *("importance_sampling_clip_max", "importance_sampling_clip_min"),
        )
    },
}

NEEDS_IN_GRPO: Mapping[str, Need] = {"sync_ref_model": _PENALTY, "use_bias_correction_kl": _PENALTY}
"""DPO has its reference always."""


def check_needs(algorithm: str, options: Mapping[str, Any]) -> None:
    """Refuse an option that is set while the one that it belongs to is not."""
    needs = {**NEEDS, **NEEDS_IN_GRPO} if algorithm == "grpo" else NEEDS
    for name, value in options.items():
        need = needs.get(name)
        is_asking = value is not None and value is not False
        if need is not None and is_asking and not need.is_met(options.get(need.option)):
            raise ConfigError(
                f"{name} is {value!r}, which has no effect without {need.words}: set it too, or omit {name}"
            )
