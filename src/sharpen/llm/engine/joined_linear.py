"""Linear layers of one input as one product.

Their weights are laid side by side in one piece of memory, and the layers' own parameters become parts of it: nothing
is held twice, and a trainer that changes a parameter in place changes what the next product computes.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .linear import add_lora, base_of, is_lora, linear_function


class JoinedLinear:
    """The outputs of several layers side by side; `name` is for the error when one cannot be computed exactly."""

    def __init__(self, modules: Sequence[nn.Module], name: str) -> None:
        self._functions = [linear_function(module, name) for module in modules]
        bases = [base_of(module) for module in modules]
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None
        if _can_join(bases):
            self._weight = joined([base.weight for base in bases])
            self._bias = None if bases[0].bias is None else joined([base.bias for base in bases])
        self._loras: list[tuple[Any, int, int]] = []
        end = 0
        for module, base in zip(modules, bases, strict=True):
            begin, end = end, end + getattr(base, "out_features", 0)
            if is_lora(module):
                self._loras.append((module, begin, end))

    def __call__(self, x: Tensor) -> Tensor:
        if self._weight is None:
            return torch.cat([function(x) for function in self._functions], dim=-1)
        y = F.linear(x, self._weight, self._bias)
        for module, begin, end in self._loras:
            add_lora(module, x, y[:, begin:end])
        return y


def joined(parameters: Sequence[nn.Parameter]) -> Tensor:
    """The parameters one below the other, as one tensor that is their memory from now on."""
    first = parameters[0]
    count = sum(len(each) for each in parameters)
    if _are_adjacent(parameters):
        return first.data.as_strided((count, *first.shape[1:]), first.stride())
    whole = torch.cat([each.data for each in parameters])
    begin = 0
    for each in parameters:
        each.data = whole[begin : begin + len(each)]
        begin += len(each)
    return whole


def _are_adjacent(parameters: Sequence[nn.Parameter]) -> bool:
    first = parameters[0]
    storage = first.untyped_storage().data_ptr()
    place = first.data_ptr()
    for each in parameters:
        if not each.is_contiguous() or each.untyped_storage().data_ptr() != storage or each.data_ptr() != place:
            return False
        place += each.numel() * each.element_size()
    return True


def _can_join(modules: Sequence[Any]) -> bool:
    if not all(type(module) is nn.Linear for module in modules):
        return False
    if len({id(module.weight) for module in modules}) < len(modules):
        return False
    weights = {(module.weight.dtype, module.weight.device, module.bias is None) for module in modules}
    return len(weights) == 1
