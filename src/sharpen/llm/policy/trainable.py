"""Which weights of a model are trained: all, the top layers, or a LoRA adapter."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ...errors import ConfigError
from ..engine.weights import unwrapped
from ..errors import ModelError
from ..models.lora import lora_config_for, lora_differences
from ..models.source import ModelSource, read_adapter_config

_TOP = re.compile(r"top:(\d+)")


class Trainable(NamedTuple):
    """`kind` is `all`, `top` or `lora`; `layers` counts those of `top`."""

    kind: str
    layers: int = 0

    @property
    def name(self) -> str:
        return f"top:{self.layers}" if self.kind == "top" else self.kind


def read_trainable(wanted: str | None, *, lora_rank: int, source: ModelSource) -> Trainable:
    """What to train. None is `lora` where a rank is given or the model is an adapter, else `all`."""
    if lora_rank < 0:
        raise ConfigError(f"lora_rank is {lora_rank}: use 0 for no LoRA, or a rank such as 8, 16 or 32")
    if wanted is None:
        wanted = "lora" if lora_rank or source.kind == "adapter" else "all"
    match = _TOP.fullmatch(wanted)
    if wanted not in {"all", "lora"} and (match is None or int(match[1]) < 1):
        raise ConfigError(f"trainable is {wanted!r}: use 'all', 'lora', or 'top:N' for the last N layers")
    if lora_rank and wanted != "lora":
        raise ConfigError(f"lora_rank is {lora_rank}, but trainable is {wanted!r}: use 'lora', or lora_rank 0")
    if wanted == "lora" and not lora_rank and source.kind != "adapter":
        raise ConfigError("trainable is 'lora', but lora_rank is 0: set a rank, such as 8, 16 or 32")
    return Trainable("top", int(match[1])) if match else Trainable(wanted)


def apply_trainable(
    model: Any,
    trainable: Trainable,
    source: ModelSource,
    *,
    lora_rank: int,
    lora_alpha: float,
    target_modules: str | Sequence[str],
    seed: int,
) -> Any:
    """The model (with an adapter where LoRA is trained), all else frozen."""
    if trainable.kind == "lora":
        options = {"r": lora_rank, "lora_alpha": lora_alpha, "target_modules": target_modules}
        if source.kind != "adapter":
            return _with_adapter(model, options, seed)
        _check_adapter(source, options)
        return model
    model.requires_grad_(trainable.kind == "all")
    if trainable.kind == "top":
        layers = _layers(model)
        if trainable.layers > len(layers):
            raise ConfigError(f"trainable is {trainable.name!r}, but the model has {len(layers)} layers")
        layers[-trainable.layers :].requires_grad_(True)
    return model


def trained_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """By name; a weight with two names has its first."""
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def _layers(model: Any) -> nn.ModuleList:
    layers = getattr(getattr(unwrapped(model), "model", None), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ModelError(
            f"{type(model).__name__} has no model.layers, so its last layers cannot be selected: use 'lora'"
        )
    return layers


def _with_adapter(model: Any, options: dict[str, Any], seed: int) -> Any:
    import peft

    # Without dropout: the policy that is trained is the one that sampled.
    config = lora_config_for(model, {**options, "lora_dropout": 0.0})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(model, config).eval()


def _check_adapter(source: ModelSource, options: dict[str, Any]) -> None:
    """An adapter is trained as it is; a rank that asks for another one is refused."""
    if not options["r"] or source.path is None:
        return
    differences = lora_differences(read_adapter_config(source.path), {"r": options["r"]})
    if differences:
        raise ConfigError(f"the model {source.name!r} is already an adapter and keeps its settings: {differences[0]}")
