"""One rank of a policy: the whole model on one device, with a share of the optimiser."""

import os
from typing import Unpack

from torch import Tensor, nn

from ..checkpoint import ModelState, fingerprint
from ..policy import LocalPolicy
from ..settings import LocalOptions
from .group import Group
from .messages import Score, Train
from .sharded_optimiser import ShardedOptimiser


class RankPolicy(LocalPolicy):
    """Computes by itself. What changes or gathers weights (`_step`, `_state`, `_take`) is done by all ranks at once."""

    _sharded: ShardedOptimiser
    _optimiser_kind: type[ShardedOptimiser] = ShardedOptimiser

    def __init__(self, model_name: str | os.PathLike[str], group: Group, **options: Unpack[LocalOptions]) -> None:
        self.group = group
        super().__init__(model_name, **options)

    def meet(self) -> None:
        """Wait for the other ranks, and begin with the same weights."""
        self.group.join()
        self._sharded.spread()

    def train_part(self, order: Train) -> dict[str, float]:
        """Add up the gradients of this rank's part of a mini-batch."""
        return LocalPolicy.forward_backward(self, order.samples, order.loss, totals=order.totals)

    def score_part(self, order: Score) -> list[Tensor]:
        """The log-probabilities of this rank's part."""
        return LocalPolicy.logprobs(
            self, order.sequences, masks=order.masks, temperature=order.temperatures, reference=order.reference
        )

    @property
    def fingerprint_at_start(self) -> str:
        """That of the model as it was loaded."""
        return self._fingerprint

    @property
    def fingerprint_now(self) -> str:
        """What tells these weights from others."""
        return fingerprint(self.model)

    def outline(self) -> ModelState:
        """What a state of this policy looks like."""
        return ModelState(self._fingerprint, self.trainable.name, self.num_updates, self._sharded.outline())

    def _made_optimiser(self, weights: dict[str, nn.Parameter]) -> ShardedOptimiser:
        settings = self.settings
        self._sharded = self._optimiser_kind(
            weights,
            settings.schedule,
            self.group,
            weight_decay=settings.weight_decay,
            betas=settings.betas,
            grad_clip=settings.grad_clip,
        )
        return self._sharded
