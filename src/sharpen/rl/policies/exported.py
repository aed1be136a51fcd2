"""A perceptron run by NumPy, for acting.

A batch of a few observations costs torch ten times more in calls than in arithmetic. The arrays here are views of the
module's own parameters, so they follow every update without a copy, and the results agree to rounding.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from ..trees import Array
from .networks import MLP, Head

Layer = tuple[Array, Array] | Callable[[Array], Array]


def _relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


class Exported:
    """The function of a `Head` on an `MLP`, in NumPy."""

    def __init__(self, head: Head, layers: list[Layer]) -> None:
        self._head = head
        self._layers = layers

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy must look at the parameters of the copied module, not at old ones.
        return Exported.of, (self._head,)

    @classmethod
    def of(cls, head: Head) -> "Exported | None":
        """None where the network is not a plain perceptron on the CPU."""
        network = head.network
        if type(network) is not MLP or not isinstance(network.obs_space, spaces.Box):
            return None
        layers = [_layer(module) for module in [*network.layers, head.out]]
        known = [layer for layer in layers if layer is not None]
        return cls(head, known) if len(known) == len(layers) else None

    def __call__(self, obs_N: Array) -> Array:
        out = np.asarray(obs_N, dtype=np.float32).reshape(len(obs_N), -1)
        for layer in self._layers:
            out = out @ layer[0] + layer[1] if isinstance(layer, tuple) else layer(out)
        return out


def _layer(module: nn.Module) -> Layer | None:
    if isinstance(module, nn.Tanh):
        return np.tanh
    if isinstance(module, nn.ReLU):
        return _relu
    if isinstance(module, nn.Linear) and module.weight.device.type == "cpu" and module.weight.dtype == torch.float32:
        return module.weight.detach().numpy().T, module.bias.detach().numpy()
    return None
