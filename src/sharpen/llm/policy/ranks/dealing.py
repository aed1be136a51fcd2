"""Which rank computes which sequences: about the same number of tokens each, with common beginnings kept together."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

# Shorter beginnings are not shared by a rank either.
_LEAST_SHARED = 16


def deal(sequences: Sequence[Sequence[int]], num_ranks: int, *, shares: bool = True) -> list[list[int]]:
    """The numbers of the sequences of each rank, so that the rank with the most tokens has as few as can be.

    Ranks get parts of the sorted sequences. Within a part a token counts once where sequences begin alike, if `shares`.
    """
    order = sorted(range(len(sequences)), key=lambda number: tuple(sequences[number]))
    lengths = [len(sequences[number]) for number in order]
    costs = _costs([np.asarray(sequences[number]) for number in order]) if shares else lengths
    low, high = max(lengths, default=0), sum(costs)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_cut(lengths, costs, middle)) <= num_ranks else (middle + 1, high)
    parts = [sorted(order[place] for place in part) for part in _cut(lengths, costs, low)]
    return parts + [[] for _ in range(num_ranks - len(parts))]


def in_order(parts: Sequence[Sequence[int]], found: Sequence[Sequence[T]]) -> list[T]:
    """What ranks have found, in the order of the sequences. Ranks without a part, other than 0, have found nothing."""
    asked = [part for rank, part in enumerate(parts) if part or not rank]
    by_number = {n: each for part, own in zip(asked, found, strict=True) for n, each in zip(part, own, strict=True)}
    return [by_number[number] for number in range(len(by_number))]


def scored(
    sequences: Sequence[Sequence[int]], masks: Sequence[Sequence[bool]] | None, part: Sequence[int]
) -> list[Sequence[int]]:
    """The sequences of a part that a model must pass over: those with a token that is asked about."""
    return [sequences[n] for n in part if (len(sequences[n]) > 1 if masks is None else any(masks[n][1:]))]


def _costs(arrays: list[npt.NDArray[np.int64]]) -> list[int]:
    """The tokens of each sequence that the one before does not have."""
    costs = [len(arrays[0])] if arrays else []
    for before, after in pairwise(arrays):
        width = min(len(before), len(after))
        differs = before[:width] != after[:width]
        shared = int(differs.argmax()) if differs.any() else width
        costs.append(len(after) - (shared if shared >= _LEAST_SHARED else 0))
    return costs


def _cut(lengths: Sequence[int], costs: Sequence[int], most: int) -> list[list[int]]:
    """Parts in order, each as long as `most` tokens allow; the first sequence of a part shares nothing."""
    parts: list[list[int]] = []
    room = 0
    for place, (length, cost) in enumerate(zip(lengths, costs, strict=True)):
        if parts and cost <= room:
            parts[-1].append(place)
            room -= cost
        else:
            parts.append([place])
            room = most - length
    return parts
