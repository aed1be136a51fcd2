"""The critic on this machine: the body of a model, and one number for each token."""

import os
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor, nn

from .local_model import LocalModel
from .losses import Metrics, Totals
from .objective import value_objective
from .packing import SampleRows, TokenBatch
from .samples import TrainingSample
from .settings import LocalOptions, LocalSettings, LossSettings


class LocalCritic(LocalModel):
    """Says of each token what is to come from it on, before it is known.

    The value of token t is read from the tokens before it. The head on the body is in float32 and begins at 0, so a
    new critic says 0. The arguments are explained at `LocalSettings`; those of engine and reference have no effect.
    """

    kind = "critic"

    def __init__(self, model_name: str | os.PathLike[str], **options: Unpack[LocalOptions]) -> None:
        super().__init__(model_name, LocalSettings(**options))

    def values(
        self, sequences: Sequence[Sequence[int]], *, masks: Sequence[Sequence[bool]] | None = None
    ) -> list[Tensor]:
        """The value of each token, in float32 on the CPU, without gradient; 0 where a mask is False."""
        return self._scored(sequences, masks, [1.0] * len(sequences), self._value_N)

    def forward_backward(
        self, samples: Sequence[TrainingSample], loss: LossSettings, *, totals: Totals | None = None
    ) -> dict[str, float]:
        """Add up the gradients towards the samples' `returns`; `values` are what the critic said before."""

        def objective(batch: TokenBatch, rows: SampleRows, totals: Totals) -> tuple[Tensor, Metrics]:
            return value_objective(rows.spread(self._value_N(batch)), rows, loss, totals)

        return self._train(samples, loss.width, totals, objective)

    def _value_N(self, batch: TokenBatch) -> Tensor:
        return self._body.hidden(batch).float() @ self._head_H

    def _trained(self) -> dict[str, nn.Parameter]:
        embedding, output = self.model.get_input_embeddings(), self.model.get_output_embeddings()
        self._head_H = nn.Parameter(torch.zeros(embedding.weight.shape[1], device=self.device))
        weights = super()._trained()
        # The output layer has no part in a value, unless it is the embedding as well.
        if output is not None and output.weight is not embedding.weight:
            weights = {name: each for name, each in weights.items() if each is not output.weight}
        return {**weights, "value_head": self._head_H}
