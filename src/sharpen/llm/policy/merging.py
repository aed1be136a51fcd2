"""A model with its adapter merged in, beside the one that goes on training."""

import copy
from typing import Any

from torch import nn


def merged_copy(model: Any) -> Any:
    """The merged model, on the CPU, in the type of the base. The given one stays as it is."""
    # Copied straight to the CPU: a GPU need not hold the model twice.
    moved: dict[int, Any] = {
        **{id(each): nn.Parameter(each.detach().to("cpu", copy=True), False) for each in model.parameters()},
        **{id(each): each.detach().to("cpu", copy=True) for each in model.buffers()},
    }
    return copy.deepcopy(model, moved).merge_and_unload()
