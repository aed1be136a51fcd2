"""From a wrapper's settings to a trainer of TRL: its config, the model with its adapter, and the checks on the way.

TRL's trainer trains and logs; saving, evaluating and reporting are the wrapper's, and stay off in the config. What TRL
rejects in its config is known before the model is loaded.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checks import check_names, needs_extra
from ...errors import ConfigError, describe, text_of
from ..errors import ModelError
from ..generation import window_of
from ..models.loading import LoadedModel, Precision, choose_device, choose_precision, load_model, model_lock, place_of
from ..models.lora import lora_config_for, lora_differences
from ..models.templates import check_chat_template
from .options import config_class
from .preflight import check_length, check_memory, check_rows_left, row_lengths, warn_of_cut_rows
from .processes import check_launch, processes
from .settings import Settings
from .trained_model import TrainedModel

if TYPE_CHECKING:
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.sft_config import SFTConfig

    TrlConfig = SFTConfig | GRPOConfig | DPOConfig

log = logging.getLogger(__name__)

_ROWS_TO_MEASURE = 100
_REJECTED = (ValueError, TypeError, NotImplementedError, ImportError)
"""What TRL raises for options that it cannot use."""


def build(wrapper: Any) -> tuple[Any, TrainedModel]:
    """Load the model of a wrapper; return TRL's trainer for it, and the model that it trains."""
    settings = replace(wrapper.settings, output_dir=str(wrapper.output_dir))
    check_packages()
    check_launch()
    device = processes().device("cpu" if settings.trl.get("use_cpu") else choose_device())
    precision = choose_precision(settings.precision, device)
    config: Any = trl_config(settings, device=device, precision=precision)
    loaded = _load(wrapper, device, precision)
    if not isinstance(next(iter(wrapper.dataset))["prompt"], str):
        check_chat_template(loaded.tokenizer, settings.model_name)
    rows = wrapper.rows_for(loaded.tokenizer, window_of(loaded.model))
    check_length(settings, len(rows))
    lengths = row_lengths(islice(rows, _ROWS_TO_MEASURE), loaded.tokenizer, settings.trl.get("chat_template_kwargs"))
    warn_of_cut_rows(settings, lengths)
    if flash_attention(device, precision) and is_padding_free(settings, max(row_lengths(rows, loaded.tokenizer))):
        config.max_length, config.padding_free = None, True
    trainer = _trainer(wrapper, loaded, rows, config)
    check_rows_left(settings, len(rows), len(trainer.train_dataset))
    check_memory(trainer.model, optim=config.optim, device=device)
    return trainer, TrainedModel(trainer.model, loaded.tokenizer)


def check_packages() -> None:
    """Refuse to train without the packages of the extra."""
    for package in ("torch", "transformers", "peft", "accelerate", "datasets", "trl"):
        with needs_extra(package, extra="llm", feature="fine-tuning"):
            __import__(package)


# -- the config of TRL -------------------------------------------------------------------------------


def trl_config(settings: Settings, *, device: str, precision: str) -> "TrlConfig":
    """Return TRL's config for a run on `device` (`cpu`, `cuda`, `mps`), in `fp32`, `bf16` or `fp16`."""
    _check_generation(settings, device)
    path = settings.trl.get("chat_template_path")
    if path is not None and not Path(path).exists():  # TRL would look for it on the hub
        raise ConfigError(f"chat_template_path is {path!r}, which does not exist: use a Jinja file or a folder")
    try:
        config: TrlConfig = config_class(settings.algorithm)(
            **{**_common(settings, device, precision), **_of_algorithm(settings), **settings.trl}
        )
    except _REJECTED as error:
        raise ConfigError(f"TRL rejected these settings: {text_of(error)}") from error
    # What the environment adds is undone: other reporters, several GPUs in one process, another precision.
    config.report_to = []
    config._n_gpu = min(config.n_gpu, 1)
    config.mixed_precision = "bf16" if config.bf16 else "fp16" if config.fp16 else "no"
    return config


def _common(settings: Settings, device: str, precision: str) -> dict[str, Any]:
    recomputes = settings.gradient_checkpointing
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
        "gradient_checkpointing": device != "cpu" if recomputes is None else recomputes,
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


def _of_algorithm(settings: Settings) -> dict[str, Any]:
    if settings.algorithm != "grpo":
        return {"max_length": settings.max_length}
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
    # TRL still takes the second name, which is the older one.
    names = ("use_transformers_continuous_batching", "use_transformers_paged")
    if any(settings.trl.get(name) for name in names) and not device.startswith("cuda"):
        raise ConfigError(
            f"use_transformers_continuous_batching takes all memory of a machine without an NVIDIA GPU, and training "
            f"runs on {device}: omit it"
        )


def flash_attention(device: str, precision: str) -> str | None:
    """Return the name of flash attention for `attn_implementation`, where it is installed and can run."""
    if not device.startswith("cuda") or precision == "fp32":
        return None
    from transformers.utils.import_utils import is_flash_attn_2_available

    return "flash_attention_2" if is_flash_attn_2_available() else None


def is_padding_free(settings: Settings, longest_row: int) -> bool:
    """Return whether flash attention can take batches of SFT laid end to end, since no row has to be cut.

    It changes no number, only the work on padding. Packed rows are laid so by TRL itself.
    """
    if settings.algorithm != "sft" or settings.trl.get("packing") or "padding_free" in settings.trl:
        return False
    return settings.max_length is None or longest_row <= settings.max_length


# -- models ------------------------------------------------------------------------------------------


def _load(wrapper: Any, device: str, precision: Precision) -> LoadedModel:
    """Load weights in float32 where all of them train; a frozen base is held in the precision that it computes in."""
    settings: Settings = wrapper.settings
    is_adapter = wrapper.source.kind == "adapter"
    loaded = load_model(
        wrapper.source.path or settings.model_name,  # the program may have changed its working directory meanwhile
        precision=precision,
        device=device,
        dtype=precision if settings.use_lora else "fp32",
        is_trainable=is_adapter and settings.use_lora,
        merge=is_adapter and not settings.use_lora,
        allow_download=wrapper.allow_download,
        trust_remote_code=settings.trust_remote_code,
        attn_implementation=flash_attention(device, precision),
    )
    if loaded.source.kind == "adapter" and settings.use_lora:
        _check_continued(loaded, settings)
    elif loaded.source.kind == "adapter":
        # TRL makes the reference of GRPO from this place, and gets the merged weights afterwards.
        loaded.model.config._name_or_path = place_of(loaded.source)
    return loaded


def _check_continued(loaded: LoadedModel, settings: Settings) -> None:
    """An adapter is trained on as it is: another rank would be another adapter."""
    if settings.is_lora_given:
        differences = lora_differences(loaded.model.peft_config["default"].to_dict(), settings.lora)
        if differences:
            raise ConfigError(
                f"{settings.model_name!r} is an adapter, and training would continue it, but lora_config differs: "
                f"{'; '.join(differences)}. Omit lora_config, or merge the adapter into a full model first with "
                "sharpen.llm.merge_adapter(folder, path)"
            )
    log.info("continuing to train the adapter in %s", settings.model_name)


def _trainer(wrapper: Any, loaded: LoadedModel, rows: Any, config: Any) -> Any:
    from jinja2 import TemplateError
    from transformers import PrinterCallback

    from .trl import Bridge

    settings: Settings = wrapper.settings
    is_new_adapter = settings.use_lora and loaded.source.kind != "adapter"
    peft_config = lora_config_for(loaded.model, settings.lora) if is_new_adapter else None
    try:
        with model_lock(), _no_progress_bars():  # TRL may load the model once more, as a reference
            trainer = wrapper.make_trainer(
                model=loaded.model,
                args=config,
                train_dataset=rows,
                processing_class=loaded.tokenizer,
                peft_config=peft_config,
            )
    except _REJECTED as error:
        raise ConfigError(f"TRL rejected these settings: {text_of(error)}") from error
    except TemplateError as error:
        raise ModelError(
            f"the chat template of {settings.model_name!r} cannot render a row: {describe(error)}"
        ) from error
    trainer.watcher = wrapper
    trainer.remove_callback(PrinterCallback)  # the loggers say it
    trainer.add_callback(Bridge(wrapper))
    return trainer


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Turn off the progress bars of `datasets`, which would run across that of the training loop."""
    import datasets

    were_off = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            datasets.enable_progress_bars()
