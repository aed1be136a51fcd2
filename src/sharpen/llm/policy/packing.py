"""Sequences side by side in one row, without padding, and back.

A row is the concatenation of its sequences: T tokens in all. Positions start again at 0 with each sequence, and no
token attends to another sequence: by the cumulative lengths where the attention takes them, else by an exact mask. The
logits of token t - 1 predict token t; at the seam they predict the first token of the next sequence, which is never
trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...errors import ConfigError, InvalidInputError

# -- which sequences go together ---------------------------------------------------------------------


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
        raise ConfigError(f"token_budget is {token_budget} and size is {size}: give one of them")
    if token_budget is not None:
        return pack(lengths, token_budget)
    assert size is not None
    _check_lengths(lengths)
    _check_positive("size", size)
    return [list(range(start, min(start + size, len(lengths)))) for start in range(0, len(lengths), size)]


def _check_lengths(lengths: Sequence[int]) -> None:
    for number, length in enumerate(lengths):
        if length < 1:
            raise InvalidInputError(f"sequence {number} has the length {length}: leave empty ones out")


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} is {value}: use 1 or more")


# -- the row -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PackedRow:
    """The inputs of a model for several sequences in one row; add the batch axis with `[None]`."""

    input_ids_T: Tensor
    position_ids_T: Tensor
    sequence_T: Tensor
    """Which sequence each token is of, from 0."""
    cu_seqlens: Tensor
    """int32, one more than the sequences: where each begins, and where the last one ends."""
    max_length: int

    @property
    def num_sequences(self) -> int:
        return len(self.cu_seqlens) - 1

    def attention_mask(self) -> Tensor:
        """(1, 1, T, T), True where a query (third axis) attends to a key: earlier or itself, of its own sequence."""
        return block_causal_mask(self.sequence_T)


def packed_row(token_ids: Sequence[Sequence[int]], *, device: torch.device | str | None = None) -> PackedRow:
    """The row of these sequences, in this order."""
    if not token_ids:
        raise InvalidInputError("there is no sequence to pack: leave the empty micro-batch out")
    lengths = [len(each) for each in token_ids]
    _check_lengths(lengths)
    length_B = torch.tensor(lengths)
    end_B = length_B.cumsum(0)
    sequence_T = torch.repeat_interleave(torch.arange(len(lengths)), length_B)
    position_T = torch.arange(len(sequence_T)) - (end_B - length_B)[sequence_T]
    input_ids_T = torch.tensor([token for each in token_ids for token in each], dtype=torch.long)
    return PackedRow(
        input_ids_T=input_ids_T.to(device),
        position_ids_T=position_T.to(device),
        sequence_T=sequence_T.to(device),
        cu_seqlens=torch.nn.functional.pad(end_B, (1, 0)).to(device, torch.int32),
        max_length=max(lengths),
    )


def block_causal_mask(sequence_T: Tensor) -> Tensor:
    """(1, 1, T, T) for scaled_dot_product_attention: causal within each sequence, nothing between them."""
    same_TT = sequence_T[:, None] == sequence_T[None, :]
    return same_TT.tril()[None, None]


# -- rows of their own -------------------------------------------------------------------------------


def unpack(values_T: Tensor, row: PackedRow) -> Tensor:
    """A value (or vector) per token as a padded row per sequence (B, T, ...), with 0 after its end. Keeps gradients."""
    if values_T.shape[:1] != row.sequence_T.shape:
        raise InvalidInputError(
            f"the values have the shape {tuple(values_T.shape)}, but the row has {len(row.sequence_T)} tokens"
        )
    padded_BT = values_T.new_zeros(row.num_sequences, row.max_length, *values_T.shape[1:])
    return padded_BT.index_put((row.sequence_T, row.position_ids_T), values_T)


def padded(
    rows: Sequence[Sequence[float]],
    *,
    fill: float = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Lists of different lengths (masks, log-probabilities, turn numbers) as one tensor (B, T), filled at the end.

    The rows line up with those of `unpack` for the same sequences.
    """
    width = max(map(len, rows), default=0)
    filled = [[*row, *[fill] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=dtype, device=device).reshape(len(rows), width)
