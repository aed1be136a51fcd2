"""Which sequences are computed together, and lists of different lengths as one tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...errors import ConfigError, InvalidInputError

# -- micro-batches -----------------------------------------------------------------------------------


def pack(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """The numbers of the sequences in each pack, none above the budget: first fit, by decreasing length.

    A sequence longer than the budget goes alone. It cannot be cut, and to leave it out would teach the policy from
    short answers only; so the budget is a target, and the longest sequence must fit into memory by itself. The fullest
    packs tend to come first, so memory that does not suffice shows early. The same lengths give the same packs.
    """
    _check_lengths(lengths)
    _check_positive("token_budget", token_budget)
    packs: list[list[int]] = []
    room: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        place = next((each for each, left in enumerate(room) if lengths[number] <= left), None)
        if place is None:
            packs.append([])
            room.append(token_budget)
            place = len(packs) - 1
        packs[place].append(number)
        room[place] -= lengths[number]
    return [sorted(each) for each in packs]


def micro_batches(
    lengths: Sequence[int], *, token_budget: int | None = None, size: int | None = None
) -> list[list[int]]:
    """The numbers of the sequences in each micro-batch: packed by a token budget, or so many at a time, in order."""
    if (token_budget is None) == (size is None):
        raise ConfigError(f"token_budget is {token_budget} and size is {size}: set exactly one of them")
    if token_budget is not None:
        return pack(lengths, token_budget)
    assert size is not None
    _check_lengths(lengths)
    _check_positive("size", size)
    return [list(range(start, min(start + size, len(lengths)))) for start in range(0, len(lengths), size)]


def _check_lengths(lengths: Sequence[int]) -> None:
    for number, length in enumerate(lengths):
        if length < 1:
            raise InvalidInputError(f"sequence {number} has the length {length}: leave out empty sequences")


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is {value}: use 1 or more")


# -- tensors -----------------------------------------------------------------------------------------


def padded(
    rows: Sequence[Sequence[float]],
    *,
    fill: float = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Lists of different lengths (masks, log-probabilities, turn numbers) as one tensor (B, T), filled at the end."""
    width = max(map(len, rows), default=0)
    filled = [[*row, *[fill] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=dtype, device=device).reshape(len(rows), width)
