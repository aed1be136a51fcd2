"""The settings in TRL's words: an `SFTConfig`, `GRPOConfig` or `DPOConfig`, made when the device is known.

TRL's trainer trains and logs; saving, evaluating and reporting are the wrapper's, and stay off here.
"""

import logging
from typing import TYPE_CHECKING, Any

from ...checks import check_names
from ...errors import ConfigError, text_of
from .option_names import config_class
from .run_length import run_length
from .settings import Settings

if TYPE_CHECKING:
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.sft_config import SFTConfig

    TrlConfig = SFTConfig | GRPOConfig | DPOConfig

log = logging.getLogger(__name__)


def trl_config(
    settings: Settings, *, device: str, precision: str, num_rows: int, longest_row: int | None = None
) -> "TrlConfig":
    """TRL's config for a run on `device` (`cpu`, `cuda`, `mps`), in `fp32`, `bf16` or `fp16`, over `num_rows` rows.

    `longest_row` is the number of tokens of the longest row, where that is known.
    """
    _check_generation(settings, device)
    options = {
        **_common(settings, device, precision),
        **_of_algorithm(settings, is_flash=flash_attention(device, precision) is not None, longest_row=longest_row),
        **settings.trl,
    }
    try:
        config: TrlConfig = config_class(settings.algorithm)(**options)
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        raise ConfigError(f"TRL rejected these settings: {text_of(error)}") from error
    _check_length(settings, num_rows)
    _stay_here(config)
    return config


def flash_attention(device: str, precision: str) -> str | None:
    """The name of flash attention for `attn_implementation`, where it is installed and can run."""
    if not device.startswith("cuda") or precision == "fp32":
        return None
    from transformers.utils.import_utils import is_flash_attn_2_available

    return "flash_attention_2" if is_flash_attn_2_available() else None


def is_checkpointed(settings: Settings, device: str) -> bool:
    """Whether activations are computed twice to save memory: as it was said, otherwise on a GPU."""
    return device != "cpu" if settings.gradient_checkpointing is None else settings.gradient_checkpointing


def _common(settings: Settings, device: str, precision: str) -> dict[str, Any]:
    return {
        "output_dir": settings.output_dir,
        "num_train_epochs": settings.num_train_epochs,
        "max_steps": settings.max_steps or -1,
        "per_device_train_batch_size": settings.per_device_train_batch_size,
        "per_device_eval_batch_size": settings.per_device_train_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "learning_rate": settings.learning_rate,
        "warmup_steps": settings.warmup,  # below 1 it is a share for transformers, too
        "logging_steps": settings.logging_steps,
        "seed": settings.seed,
        "gradient_checkpointing": is_checkpointed(settings, device),
        # Both are said, since TRL turns bf16 on by itself.
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "use_cpu": device == "cpu",
        "dataloader_pin_memory": device.startswith("cuda"),
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_nan_inf_filter": False,
        "trust_remote_code": settings.trust_remote_code,
    }


def is_padding_free(settings: Settings, *, is_flash: bool, longest_row: int | None) -> bool:
    """Whether batches of SFT can be laid end to end: flash attention keeps their rows apart, and none has to be cut.

    It changes no number, only the work on padding. Packed rows are laid so by TRL itself.
    """
    if settings.algorithm != "sft" or not is_flash or settings.trl.get("packing"):
        return False
    return settings.max_length is None or (longest_row is not None and longest_row <= settings.max_length)


def _of_algorithm(settings: Settings, *, is_flash: bool, longest_row: int | None) -> dict[str, Any]:
    if settings.algorithm == "dpo":
        return {"max_length": settings.max_length}
    if settings.algorithm == "sft":
        is_free = is_padding_free(settings, is_flash=is_flash, longest_row=longest_row)
        return {"max_length": None if is_free else settings.max_length, "padding_free": is_free}
    generations = settings.num_generations or 1
    return {
        # TRL counts completions.
        "per_device_train_batch_size": settings.per_device_train_batch_size * generations,
        "num_generations": generations,
        "max_completion_length": settings.max_new_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "remove_unused_columns": False,  # rewards read the other columns
    }


def _check_generation(settings: Settings, device: str) -> None:
    from transformers import GenerationConfig

    # transformers keeps a name that it does not know, and nothing reads it.
    known = vars(GenerationConfig())  # type: ignore[no-untyped-call]
    check_names(settings.trl.get("generation_kwargs") or (), known, owner="generation_kwargs", noun="field")
    if settings.trl.get("use_transformers_continuous_batching") and not device.startswith("cuda"):
        raise ConfigError(
            f"use_transformers_continuous_batching takes all memory of a machine without an NVIDIA GPU, and training "
            f"runs on {device}: omit it"
        )


def _check_length(settings: Settings, num_rows: int) -> None:
    length = run_length(settings, num_rows)
    if length.steps == 0:
        raise ConfigError(
            f"the data set has {num_rows} rows, but one batch needs {length.rows_per_batch} and incomplete ones are "
            "dropped: pass more rows, or lower batch_size"
        )
    if settings.warmup >= max(length.steps, 1):
        log.warning(
            "the warmup takes %d steps but the run only %d, so the learning rate never reaches %g",
            *(settings.warmup, length.steps, settings.learning_rate),
        )


def _stay_here(config: Any) -> None:
    """Undo what the environment adds: other reporters, several GPUs in one process, another precision."""
    config.report_to = []
    config._n_gpu = min(config.n_gpu, 1)
    config.mixed_precision = "bf16" if config.bf16 else "fp16" if config.fp16 else "no"
