"""Linear layers of a model, as functions that read the model's own parameters at each call.

Nothing is copied: a trainer that changes a weight in place changes what the next call computes. LoRA layers of PEFT are
applied beside their base layer, without their dropout.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ModelError

LinearFunction = Callable[[Tensor], Tensor]

# Between these numbers of rows MKL multiplies faster with the weight on the left (measured at float32 on one core of a
# Xeon: 1.3 x for the layers of a 135 M model at 8 rows, 1.7 x for its output layer).
_LEFT_FROM, _LEFT_TO = 5, 48


def linear_function(module: nn.Module, name: str) -> LinearFunction:
    """What computes this layer; `name` is for the error when it cannot be computed exactly."""
    if type(module) is nn.Linear:
        return _plain(module)
    if is_lora(module):
        return _lora(module, name)
    if any(isinstance(each, nn.Dropout) and each.p > 0 for each in module.modules()):
        raise ModelError(
            f"the layer {name} is a {type(module).__name__} with dropout, which the engine cannot leave out: "
            "merge the adapter into the model (merge_and_unload) or set its dropout to 0"
        )
    return module


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias, in the faster order."""
    if weight.device.type != "cpu" or not _LEFT_FROM <= x.shape[0] <= _LEFT_TO:
        return F.linear(x, weight, bias)
    # Left as it lies in memory: what follows is mostly elementwise, and the next product wants it so.
    product = torch.mm(weight, x.t()).t()
    return product if bias is None else product.add_(bias)


def _plain(module: nn.Linear) -> LinearFunction:
    def apply(x: Tensor) -> Tensor:
        return multiply(x, module.weight, module.bias)

    return apply


def is_lora(module: nn.Module) -> bool:
    return all(hasattr(module, name) for name in ("base_layer", "lora_A", "lora_B", "scaling", "active_adapters"))


def base_of(module: Any) -> Any:
    """The layer under its adapters."""
    return base_of(module.base_layer) if is_lora(module) else module


def add_lora(module: Any, x: Tensor, y: Tensor) -> None:
    """Add to `y` in place what the active adapters of a layer make of `x`."""
    if module.merged or module.disable_adapters:
        return
    for adapter in module.active_adapters:
        if adapter not in module.lora_A:
            continue
        down, up = module.lora_A[adapter], module.lora_B[adapter]
        inner = F.linear(x.to(down.weight.dtype), down.weight, down.bias)
        y.add_(F.linear(inner, up.weight, up.bias), alpha=module.scaling[adapter])


def _lora(module: Any, name: str) -> LinearFunction:
    base = linear_function(module.base_layer, name)
    if getattr(module, "lora_variant", None) or any(getattr(module, "use_dora", {}).values()):
        raise ModelError(
            f"the layer {name} has a variant of LoRA (such as DoRA) that the engine does not apply: "
            "merge the adapter into the model (merge_and_unload)"
        )

    def apply(x: Tensor) -> Tensor:
        y = base(x)
        add_lora(module, x, y)
        return y

    return apply
