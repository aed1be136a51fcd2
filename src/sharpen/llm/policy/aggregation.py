"""How losses per token become one number.

A mini-batch is too large for memory, so it is computed in micro-batches. Each divides by the totals of the whole
mini-batch, never by its own: the losses, and so the gradients, of the micro-batches add up to those of the whole,
however it is split.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self, get_args

import torch
from torch import Tensor

from ...errors import ConfigError, InvalidInputError
from .loss_settings import Aggregation
from .shapes import check_rows, only_masked

Metrics = dict[str, Tensor]
"""Numbers of a micro-batch by name, without gradient. They add up to those of the mini-batch; those whose name ends in
`_max` take the greatest (see `merge_metrics`)."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What a whole mini-batch holds, over all of its micro-batches.

    With several processes whose gradients are averaged, it is the mini-batch of all of them, and each loss is
    multiplied by their number.
    """

    tokens: int
    """Trained tokens."""
    sequences: int
    """Sequences with at least one."""
    width: int
    """What `seq-mean-token-sum-norm` divides by: a bound for the length, such as max_response_length."""

    def __post_init__(self) -> None:
        if self.tokens < 0 or self.sequences < 0 or self.width < 0:
            raise InvalidInputError(f"{self} has a negative count: use the counts of the whole mini-batch")

    @classmethod
    def of(cls, mask_BT: Tensor) -> Self:
        """Those of a mini-batch that is all here; its width is that of the mask."""
        mask_BT = mask_BT.bool()
        return cls(int(mask_BT.sum()), int(mask_BT.any(dim=1).sum()), mask_BT.shape[1])


def aggregate(
    losses_BT: Tensor, mask_BT: Tensor, *, aggregation: Aggregation = "token-mean", totals: Totals | None = None
) -> Tensor:
    """One number from a loss (or an entropy) per token. Without totals, the rows are the whole mini-batch."""
    check_rows(mask_BT, losses_BT=losses_BT)
    totals = totals or Totals.of(mask_BT)
    sum_B = only_masked(losses_BT, mask_BT).sum(dim=1)
    # A mini-batch without a trained token has the loss 0, not 0 / 0.
    tokens, sequences, width = max(totals.tokens, 1), max(totals.sequences, 1), max(totals.width, 1)
    match aggregation:
        case "token-mean":
            return sum_B.sum() / tokens
        case "seq-mean-token-sum":
            return sum_B.sum() / sequences
        case "seq-mean-token-mean":
            return (sum_B / mask_BT.bool().sum(dim=1).clamp(min=1)).sum() / sequences
        case "seq-mean-token-sum-norm":
            return sum_B.sum() / width / sequences
        case _:
            raise ConfigError(f"aggregation is {aggregation!r}: use {', '.join(map(repr, get_args(Aggregation)))}")


def token_share(values_BT: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """This micro-batch's part of a mean over all trained tokens, for a metric."""
    return only_masked(values_BT.detach(), mask_BT).sum() / max(totals.tokens, 1)


def sequence_share(values_B: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """This micro-batch's part of a mean over all sequences with a trained token, for a metric."""
    has_token_B = mask_BT.bool().any(dim=1)
    return torch.where(has_token_B, values_B.detach(), 0.0).sum() / max(totals.sequences, 1)


def merge_metrics(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """The metrics of a mini-batch from those of its micro-batches. The only place that waits for the device."""
    values: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(value)
    return {
        name: float(torch.stack(each).max() if name.endswith("_max") else torch.stack(each).sum())
        for name, each in values.items()
    }
