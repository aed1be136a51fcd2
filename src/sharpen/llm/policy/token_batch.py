"""What is asked of a model in one pass: sequences, and which of their tokens to score.

Axis letters: N tokens that are asked about, in the order of the sequences and of their places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidInputError
from .token_tree import Integers
from .transfer import moved


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Each asked-about token is predicted by the one before it, so the last one of a sequence need not be read."""

    inputs: list[Sequence[int]]
    """What is read of each sequence: up to the token before the last one that is asked about."""
    places: list[Integers]
    """Where the tokens stand that are asked about; never at 0."""
    targets_N: Tensor
    """Their ids."""
    temperature_N: Tensor
    shares: bool
    """Whether what the sequences have in common is computed once."""

    def __len__(self) -> int:
        return len(self.targets_N)


def token_batch(
    sequences: Sequence[Sequence[int]],
    places: Sequence[Integers],
    temperatures: Sequence[float],
    *,
    shares: bool = True,
    device: torch.device | str | None = None,
) -> TokenBatch:
    """The batch of these sequences, each with at least one place."""
    targets = np.concatenate([np.asarray(ids)[at] for ids, at in zip(sequences, places, strict=True)])
    temperature_N = np.repeat(np.asarray(temperatures, np.float32), [len(at) for at in places])
    return TokenBatch(
        inputs=[ids[: int(at[-1])] for ids, at in zip(sequences, places, strict=True)],
        places=list(places),
        targets_N=moved(torch.from_numpy(targets), device),
        temperature_N=moved(torch.from_numpy(temperature_N), device),
        shares=shares,
    )


def places_of(mask: Sequence[bool]) -> Integers:
    """Where a mask is True, without the first token: it follows nothing."""
    return np.fromiter(compress(range(1, len(mask)), mask[1:]), np.int64)


def check_ids(sequences: Sequence[Sequence[int]], vocab_size: int) -> None:
    """All tokens are the model's."""
    for number, ids in enumerate(sequences):
        if not len(ids):
            raise InvalidInputError(f"sequence {number} has no tokens: leave out empty sequences")
        if min(ids) < 0 or max(ids) >= vocab_size:
            wrong = next(each for each in ids if not 0 <= each < vocab_size)
            raise InvalidInputError(
                f"sequence {number} contains the token id {wrong}, but the model has ids 0 to {vocab_size - 1}"
            )
