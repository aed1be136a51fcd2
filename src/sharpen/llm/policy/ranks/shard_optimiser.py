"""AdamW over the parts of weights that ranks have: each steps its own, and nothing is given around but a norm."""

from collections.abc import Collection, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from .pieces import Piece, row_pieces
from .sharded_optimiser import ShardedOptimiser


class ShardOptimiser(ShardedOptimiser):
    """Its parameters are parts of the weights; their gradients are sums over ranks already.

    The state is that of `ShardedOptimiser`: rank 0 gathers it whole, and deals one out.
    """

    def _divided(self) -> list[Piece]:
        return row_pieces({name: tuple(each.shape) for name, each in self._parameters.items()}, self._group.size)

    def _weight(self, piece: Piece) -> Tensor:
        return self._within(_local(self._parameters[piece.name]), piece)

    def _gradient(self, name: str) -> Tensor | None:
        gradient = self._parameters[name].grad
        return None if gradient is None else _local(gradient)

    def _sum_gradients(self, names: Collection[str]) -> None:
        self._keep_in_place()
        for name in self._own:
            self._masters[name].grad = self._gradient(name) if name in names else None

    def own_weights(self) -> dict[str, Tensor]:
        """A copy of what this rank has."""
        return {name: each.detach().clone() for name, each in self._masters.items()}

    @torch.no_grad()
    def exchange(self, weights: Mapping[str, Tensor]) -> None:
        """Take such a copy for what this rank has, which is then in its place."""
        self._keep_in_place()
        for name, each in weights.items():
            now = self._masters[name].detach().clone()
            self._masters[name].copy_(each)
            each.copy_(now)

    def spread(self, names: Collection[str] | None = None) -> None:
        """Nobody else has the same part."""


def _local(tensor: Tensor) -> Tensor:
    """What this rank has of a weight, flat; memory is shared."""
    return cast(Tensor, cast(Any, tensor.detach()).to_local()).view(-1)
