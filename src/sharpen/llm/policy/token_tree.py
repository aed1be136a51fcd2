"""Sequences side by side in one row of tokens, in which what they share at their beginning stands once.

The samples of a group share their prompt, and the branches of a conversation its history. A token's hidden state
depends only on the tokens before it, so one row serves all sequences that agree up to there: the numbers are those of
separate sequences, to rounding.

Axis letters: R rows (tokens that are computed).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...errors import InvalidInputError
from .packing import pack
from .transfer import moved

Integers = npt.NDArray[np.int64]

# Shorter beginnings are computed again: gathering them would cost as much.
_LEAST_SHARED = 16


@dataclass(frozen=True, slots=True)
class Branch:
    """Rows `first` to `last` are the tokens from `start` on of one sequence; `path_T` are the rows of all of them."""

    first: int
    last: int
    start: int
    path_T: Integers

    @property
    def length(self) -> int:
        """Tokens from the beginning of the sequence to the last row."""
        return self.start + self.last - self.first


@dataclass(frozen=True, slots=True)
class TokenTree:
    """The rows of some sequences. Branches come in the order of their rows, which they cover without a gap."""

    input_ids_R: Tensor
    position_ids_R: Tensor
    branches: list[Branch]
    paths: list[Integers]
    """For each sequence, as given: the row of each of its tokens."""

    def __len__(self) -> int:
        return len(self.input_ids_R)

    @property
    def is_shared(self) -> bool:
        """Whether some branch begins in another."""
        return any(branch.start for branch in self.branches)


def token_tree(
    sequences: Sequence[Sequence[int]], *, shares: bool = True, device: torch.device | str | None = None
) -> TokenTree:
    """The tree of these sequences. Without `shares` each has rows of its own."""
    arrays = _arrays(sequences)
    order = _order(sequences) if shares else list(range(len(arrays)))
    paths: list[Integers] = [np.empty(0, np.int64)] * len(arrays)
    spans: list[tuple[int, int, int]] = []
    rows = 0
    for place, number in enumerate(order):
        shared = _num_shared(arrays[order[place - 1]], arrays[number]) if shares and place else 0
        end = rows + len(arrays[number]) - shared
        before = paths[order[place - 1]][:shared]
        paths[number] = np.concatenate((before, np.arange(rows, end)))
        if end > rows:
            spans.append((number, rows, shared))
        rows = end
    ids = np.concatenate([arrays[number][start:] for number, _, start in spans])
    positions = np.concatenate([np.arange(start, len(arrays[number])) for number, _, start in spans])
    branches = [
        Branch(first, first + len(arrays[number]) - start, start, paths[number]) for number, first, start in spans
    ]
    ids_R, positions_R = (moved(torch.from_numpy(each), device) for each in (ids, positions))
    return TokenTree(ids_R, positions_R, branches, paths)


def tree_batches(sequences: Sequence[Sequence[int]], *, token_budget: int) -> list[list[int]]:
    """The numbers of the sequences in each micro-batch, so that those with a common beginning stand together.

    The budget counts rows: what is shared within a batch counts once. A sequence longer than it goes alone.
    """
    arrays, order = _arrays(sequences), _order(sequences)
    parts: list[list[int]] = []
    sizes: list[int] = []
    for place, number in enumerate(order):
        length = len(arrays[number])
        shared = _num_shared(arrays[order[place - 1]], arrays[number]) if place else 0
        if shared and sizes[-1] + length - shared <= token_budget:
            parts[-1].append(number)
            sizes[-1] += length - shared
        else:
            parts.append([number])
            sizes.append(length)
    return [sorted(number for part in batch for number in parts[part]) for batch in pack(sizes, token_budget)]


def _arrays(sequences: Sequence[Sequence[int]]) -> list[Integers]:
    if not sequences:
        raise InvalidInputError("there are no sequences to compute: leave out empty batches")
    arrays = [np.asarray(each, dtype=np.int64) for each in sequences]
    for number, each in enumerate(arrays):
        if not len(each):
            raise InvalidInputError(f"sequence {number} has no tokens: leave out empty sequences")
    return arrays


def _order(sequences: Sequence[Sequence[int]]) -> list[int]:
    """Sorted by their tokens: whatever two sequences share, the one before shares at least as much."""
    keys = [tuple(each) for each in sequences]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _num_shared(before: Integers, after: Integers) -> int:
    """How many tokens at the beginning are the same, if it is worth to share them."""
    width = min(len(before), len(after))
    differs = before[:width] != after[:width]
    shared = int(differs.argmax()) if differs.any() else width
    return shared if shared >= min(_LEAST_SHARED, len(after)) else 0
