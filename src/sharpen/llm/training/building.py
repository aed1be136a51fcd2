"""From a wrapper's settings to a trainer of TRL: model loaded, adapter made or continued, memory checked."""

import logging
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ...errors import ConfigError, MissingExtraError, describe, text_of
from ..errors import ModelError
from ..generation import window_of
from ..models.loading import (
    LoadedModel,
    Precision,
    choose_device,
    choose_precision,
    load_model,
    model_lock,
    place_of,
)
from ..models.lora import lora_config_for, lora_differences
from ..models.templates import check_chat_template
from .preflight import check_memory
from .processes import check_launch, processes
from .progress_bars import without_progress_bars
from .prompts import row_lengths
from .settings import Settings
from .trl_options import flash_attention, trl_config

log = logging.getLogger(__name__)

_ROWS_TO_MEASURE = 100


@dataclass(frozen=True)
class Built:
    """A trainer that is ready to run, and what it trains."""

    trainer: Any
    model: Any
    tokenizer: Any


def build(wrapper: Any) -> Built:
    """Load the model of a wrapper and make TRL's trainer for it."""
    settings: Settings = wrapper.settings
    check_packages()
    check_launch()
    device = processes().device(choose_device())
    precision = choose_precision(settings.precision, device)
    loaded = _load(wrapper, device, precision)
    if _has_messages(wrapper.dataset):
        check_chat_template(loaded.tokenizer, settings.model_name)
    rows = wrapper.rows_for(loaded.tokenizer, window_of(loaded.model))
    lengths = row_lengths(islice(rows, _ROWS_TO_MEASURE), loaded.tokenizer, settings.trl.get("chat_template_kwargs"))
    _warn_of_cut_rows(settings, lengths)
    trainer = _trainer(wrapper, loaded, rows, device, precision)
    _check_rows_left(settings, len(rows), len(trainer.train_dataset))
    check_memory(trainer.model, optim=trainer.args.optim, device=device)
    return Built(trainer, trainer.model, loaded.tokenizer)


def check_packages() -> None:
    """The packages that train are there."""
    for package in ("torch", "transformers", "peft", "accelerate", "datasets", "trl"):
        try:
            __import__(package)
        except ImportError as error:
            raise MissingExtraError.of(package, extra="llm", feature="fine-tuning") from error


# -- models ------------------------------------------------------------------------------------------


def _load(wrapper: Any, device: str, precision: Precision) -> LoadedModel:
    """Full training keeps its weights in float32 and computes in less; a frozen base is held in what it computes in."""
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


def _trainer(wrapper: Any, loaded: LoadedModel, rows: Any, device: str, precision: Precision) -> Any:
    from jinja2 import TemplateError
    from transformers import PrinterCallback

    from .trl_trainers import Bridge

    settings: Settings = wrapper.settings
    is_new_adapter = settings.use_lora and loaded.source.kind != "adapter"
    peft_config = lora_config_for(loaded.model, settings.lora) if is_new_adapter else None
    is_flash = flash_attention(device, precision) is not None
    config = trl_config(
        replace(settings, output_dir=str(wrapper.output_dir)),
        device=device,
        precision=precision,
        num_rows=len(rows),
        longest_row=max(row_lengths(rows, loaded.tokenizer)) if is_flash else None,
    )
    try:
        with model_lock(), without_progress_bars():  # TRL may load the model once more, as a reference
            trainer = wrapper.make_trainer(
                model=loaded.model,
                args=config,
                train_dataset=rows,
                processing_class=loaded.tokenizer,
                peft_config=peft_config,
            )
    except (ValueError, TypeError, NotImplementedError, ImportError) as error:
        raise ConfigError(f"TRL rejected these settings: {text_of(error)}") from error
    except TemplateError as error:
        raise ModelError(
            f"the chat template of {settings.model_name!r} cannot render a row: {describe(error)}"
        ) from error
    trainer.watcher = wrapper
    trainer.remove_callback(PrinterCallback)  # the loggers say it
    trainer.add_callback(Bridge(wrapper))
    return trainer


# -- rows --------------------------------------------------------------------------------------------


def _has_messages(dataset: Any) -> bool:
    return not isinstance(next(iter(dataset))["prompt"], str)


def _warn_of_cut_rows(settings: Settings, lengths: list[int]) -> None:
    limit = settings.max_length
    if limit is None or settings.algorithm == "grpo":
        return
    longer = sum(length > limit for length in lengths)
    if longer:
        log.warning(
            "%d of the first %d rows are longer than max_length (%d tokens; the longest has %d): they are truncated, "
            "and the ends of their answers are not learned",
            longer,
            len(lengths),
            limit,
            max(lengths),
        )


def _check_rows_left(settings: Settings, given: int, left: int) -> None:
    """TRL drops rows of which nothing is left to learn once they are cut; packed, several rows become one."""
    limit = settings.max_length
    if left == 0:
        raise ConfigError(
            f"max_length is {limit}, but every prompt alone is longer, so there are no answer tokens to learn: raise it"
        )
    if left < given and not settings.trl.get("packing"):
        log.warning(
            "skipping %d of %d rows: their prompts alone are longer than max_length (%s)",
            given - left,
            given,
            limit,
        )
