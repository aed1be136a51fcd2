"""A whole model beside the one that is divided: for an engine, or for a file."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def outline_of(model: Any) -> Any:
    """A copy of the model without its weights: they have shapes and types, and no memory. Buffers are copied."""
    empty: dict[int, Any] = {
        id(each): nn.Parameter(torch.empty_like(each, device="meta"), requires_grad=False)
        for each in model.parameters()
    }
    return copy.deepcopy(model, empty)


def filled(outline: Any, device: str, units: Iterable[Mapping[str, Tensor]]) -> Any:
    """A copy of an outline on a device, with weights."""
    fresh: dict[int, Any] = {
        id(each): nn.Parameter(torch.empty_like(each, device=device), requires_grad=False)
        for each in outline.parameters()
    }
    buffers = {id(each): each.to(device, copy=True) for each in outline.buffers()}
    made = copy.deepcopy(outline, {**fresh, **buffers})
    fill(made, units)
    return made


@torch.no_grad()
def fill(model: Any, units: Iterable[Mapping[str, Tensor]]) -> None:
    """Take over weights, as many at a time as there are in a unit."""
    for unit in units:
        for name, weight in unit.items():
            model.get_parameter(name).copy_(weight)
