"""LoRA: small matrices beside the weights of a model; only these are trained.

A config is a plain dict until the model is known; `lora_config_for` turns it into PEFT's own, checked against the
modules that the model has.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...checks import check_int, check_names, check_number, needs_extra
from ...errors import ConfigError
from ..errors import ModelError

if TYPE_CHECKING:
    from peft import LoraConfig

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TARGETS: dict[str, list[str]] = {
    "minimal": ["q_proj", "v_proj"],
    "recommended": [*ATTENTION],
    "full": [*ATTENTION, "gate_proj", "up_proj", "down_proj"],
}
ALL_LINEAR = "all-linear"

_REASONS = {
    "task_type": "the trainers train causal language models",
    "inference_mode": "training sets it",
    "base_model_name_or_path": "it is the model that is trained",
    "peft_type": "it is LORA",
    "auto_mapping": "PEFT sets it",
    "peft_version": "PEFT sets it",
    "runtime_config": "it is not saved with the adapter",
    "megatron_config": "Megatron is not supported",
    "megatron_core": "Megatron is not supported",
}
_TASK = "CAUSAL_LM"
_WAYS_TO_START = (True, False, "gaussian", "orthogonal")


def create_lora_config(
    r: int = 16,
    lora_alpha: float = 32,
    lora_dropout: float = 0.05,
    target_modules: str | Sequence[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the settings of LoRA as a plain dict, for the trainers' `lora_config`.

    `target_modules` takes names of modules, `minimal` (q_proj and v_proj, the default), `recommended` (all of
    attention), `full` (attention and MLP) or `all-linear`. Further options are those of `peft.LoraConfig`.
    """
    config = {"r": r, "lora_alpha": lora_alpha, "lora_dropout": lora_dropout, **options}
    _check_numbers(config)
    if options:
        _check_options(options)
    return {**config, "target_modules": _targets(target_modules)}


def lora_config_for(model: Any, config: "Mapping[str, Any] | LoraConfig | None") -> "LoraConfig":
    """Return PEFT's config for this model. None means the default one; unknown module names raise a ConfigError."""
    peft = _peft()
    if hasattr(model, "peft_config"):
        raise ConfigError("the model already has an adapter: train that one, or merge it first")
    if isinstance(config, peft.LoraConfig):
        options = {field.name: getattr(config, field.name) for field in fields(config)}
        if options["task_type"] not in (None, _TASK):
            raise ConfigError(f"lora_config has task_type {options['task_type']!r}, but {_REASONS['task_type']}")
        options = {name: value for name, value in options.items() if name not in _REASONS}
        _check_numbers(options)
        _check_start(options)
    elif config is None or isinstance(config, Mapping):
        options = create_lora_config(**{str(name): value for name, value in (config or {}).items()})
    else:
        raise ConfigError(
            f"lora_config is a {type(config).__name__}: pass a dict (see create_lora_config) or a peft.LoraConfig"
        )
    options["target_modules"] = _checked_targets(model, options.get("target_modules"))
    whole = options.get("modules_to_save") or []
    _check_names("modules_to_save", whole, [name for name, _ in model.named_modules() if name])
    try:
        made: LoraConfig = peft.LoraConfig(task_type=_TASK, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"lora_config cannot be used: {error}") from error
    return made


def lora_differences(folder_config: Mapping[str, Any], wanted: "Mapping[str, Any] | LoraConfig | None") -> list[str]:
    """Describe how an adapter differs from what is wanted; empty if it does not."""
    if wanted is None:
        return []
    if not isinstance(wanted, Mapping):
        wanted = {field.name: getattr(wanted, field.name) for field in fields(wanted) if field.name in folder_config}
    if "target_modules" in wanted:
        wanted = {**wanted, "target_modules": _targets(_listed(wanted["target_modules"]))}
    return [
        f"{name} is {_readable(folder_config.get(name))} in the adapter, but {_readable(value)} is wanted"
        for name, value in wanted.items()
        if name not in _REASONS and not _is_same(name, folder_config.get(name), value)
    ]


def merge_adapter(adapter_folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Merge an adapter into its base and write the result to a separate folder, in the base's dtype."""
    from .loading import load_model
    from .saving import save_model
    from .source import find_model

    source = find_model(adapter_folder)
    if source.kind != "adapter" or source.path is None:
        raise ModelError(f"{source.name!r} is not an adapter, so there is nothing to merge")
    if Path(path).expanduser().resolve() == source.path:
        raise ModelError(f"the merged model cannot be written to {os.fspath(path)!r}, which holds the adapter itself")
    loaded = load_model(adapter_folder, device="cpu", dtype="stored", merge=True)
    return save_model(loaded.model, loaded.tokenizer, path)


# -- checks ------------------------------------------------------------------------------------------


def _check_numbers(config: Mapping[str, Any]) -> None:
    check_int("r", config["r"], at_least=1)
    check_number("lora_alpha", config["lora_alpha"], above=0)
    check_number("lora_dropout", config["lora_dropout"], at_least=0, below=1)


def _check_options(options: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(_peft().LoraConfig)]
    for name in options:
        if name in _REASONS:
            raise ConfigError(f"lora_config has {name!r}, which cannot be set: {_REASONS[name]}")
    check_names(options, known, owner="peft.LoraConfig")
    _check_start(options)


def _check_start(options: Mapping[str, Any]) -> None:
    start = options.get("init_lora_weights", True)
    if start not in _WAYS_TO_START:
        raise ConfigError(
            f"init_lora_weights is {start!r}, which changes the base's weights, so the saved adapter would not fit the "
            f"original base: use one of {', '.join(map(repr, _WAYS_TO_START))}"
        )


def _targets(target_modules: str | Sequence[str] | None) -> list[str] | str:
    """Return names of modules, `all-linear`, or another string: a pattern for whole names, as PEFT takes it."""
    if target_modules is None:
        return [*TARGETS["minimal"]]
    if isinstance(target_modules, str):
        if not target_modules:
            raise ConfigError("target_modules is empty: name the modules, or use minimal, recommended or full")
        return [*TARGETS[target_modules]] if target_modules in TARGETS else target_modules
    names = list(target_modules) if isinstance(target_modules, Sequence | set) else []
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"target_modules is {target_modules!r}: pass names such as ['q_proj', 'v_proj'], "
            f"or one of {', '.join(TARGETS)}, {ALL_LINEAR}"
        )
    return list(dict.fromkeys(names))


# -- modules -----------------------------------------------------------------------------------------


def _checked_targets(model: Any, target_modules: str | Sequence[str] | None) -> list[str] | str:
    """Return the targets; each must exist in the model."""
    targets = _targets(_listed(target_modules))
    if targets == ALL_LINEAR:
        return targets
    modules = _adaptable(model)
    if isinstance(targets, list):
        _check_names("target_modules", targets, modules)
        return targets
    try:
        matches = [name for name in modules if re.fullmatch(targets, name)]
    except re.error as error:
        raise ConfigError(f"target_modules is {targets!r}, which is not a valid pattern: {error}") from error
    if not matches:
        _check_names("target_modules", [targets], modules)
    return targets


def _check_names(setting: str, names: Sequence[str], modules: Sequence[str]) -> None:
    missing = [each for each in names if not any(f".{name}".endswith(f".{each}") for name in modules)]
    if missing:
        has = sorted({name.rpartition(".")[2] for name in modules} - {str(layer) for layer in range(1000)})
        raise ConfigError(
            f"{setting} names {', '.join(map(repr, missing))}, which this model does not have; it has: {', '.join(has)}"
        )


def _adaptable(model: Any) -> list[str]:
    """Return the full names of the modules that LoRA can adapt."""
    import torch
    from transformers.pytorch_utils import Conv1D

    kinds = (torch.nn.Linear, torch.nn.Embedding, Conv1D)
    return [name for name, module in model.named_modules() if isinstance(module, kinds)]


def _is_same(name: str, has: Any, wanted: Any) -> bool:
    if name != "target_modules" or isinstance(has, str) or has is None:
        return bool(has == wanted)
    return set(TARGETS["full"]) <= set(has) if wanted == ALL_LINEAR else set(wanted) == set(has)


def _listed(targets: Any) -> Any:
    return sorted(targets) if isinstance(targets, set) else targets  # PEFT keeps names as a set.


def _readable(value: Any) -> str:
    return repr(_listed(value))


def _peft() -> Any:
    with needs_extra("peft", extra="llm", feature="LoRA"):
        return import_module("peft")
