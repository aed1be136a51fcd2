"""The policy as it was at the start: a second view of the model, in which only the trained weights are copies."""

import copy
from typing import Any

from torch import nn


def frozen_copy(model: Any) -> Any:
    """A model that stays as this one is now. Weights that are not trained are the same tensors, not copies."""
    shared: dict[int, Any] = {id(each): each for each in _fixed(model)}
    own = copy.deepcopy(model, shared).requires_grad_(False)
    for parameter in own.parameters():
        parameter.grad = None
    return own


def _fixed(model: nn.Module) -> list[Any]:
    return [each for each in model.parameters() if not each.requires_grad] + list(model.buffers())
