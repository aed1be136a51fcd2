"""Which sequences are computed together, and how: side by side in one row, with what they share computed once.

The samples of a group share their prompt, and the branches of a conversation its history. A token's hidden state
depends only on the tokens before it, so one row serves all sequences that agree up to there (`TokenTree`): the numbers
are those of separate sequences, to rounding. `TokenBatch` is what is asked of a model in one pass, `SampleRows` what a
loss needs beside it.

Axis letters: R rows (tokens that are computed), N tokens that are asked about, in the order of the sequences and of
their places.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...errors import ConfigError, InvalidInputError
from .losses import Totals
from .samples import TrainingSample

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


# -- small tensors on their way to a device -----------------------------------------------------------


def moved(tensor: Tensor, device: torch.device | str | None) -> Tensor:
    """The tensor on the device. A GPU fetches it when it comes to it: the next batch is made while one is computed."""
    if device is None or torch.device(device).type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


# -- common beginnings computed once ------------------------------------------------------------------


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


# -- what is asked of a model in one pass -------------------------------------------------------------


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


# -- training samples as tensors ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SampleRows:
    """Axis letters: B samples, T the most trained tokens of one."""

    samples: Sequence[TrainingSample]
    numbers: Sequence[int]
    """Which of the caller's samples they are, for errors."""
    places: list[Integers]
    """Where the trained tokens of each sample stand."""
    mask_BT: Tensor
    index_N: Tensor
    """Where the trained tokens stand in the flattened mask."""

    def values(self, name: str) -> Tensor:
        """A field of the samples at their trained tokens, in float32; an error where one lacks it."""
        rows = np.zeros(self.mask_BT.shape, np.float32)
        for row, (sample, places) in enumerate(zip(self.samples, self.places, strict=True)):
            rows[row, : len(places)] = _finite(name, self.numbers[row], getattr(sample, name), places)
        return moved(torch.from_numpy(rows), self.mask_BT.device)

    def has(self, name: str) -> bool:
        """Whether all samples have this field."""
        return all(getattr(each, name) is not None for each in self.samples)

    def spread(self, values_N: Tensor) -> Tensor:
        """Numbers of all trained tokens, one after the other, as rows. Keeps gradients."""
        flat = values_N.new_zeros(self.mask_BT.numel()).scatter(0, self.index_N, values_N)
        return flat.view(self.mask_BT.shape)


def sample_rows(
    all_samples: Sequence[TrainingSample], numbers: Sequence[int], *, device: torch.device | str | None = None
) -> SampleRows:
    """The rows of some of these samples, which all have a trained token."""
    samples = [all_samples[number] for number in numbers]
    places = [places_of(each.loss_mask) for each in samples]
    lengths = torch.tensor([len(each) for each in places])
    mask_BT = torch.arange(int(lengths.max()))[None, :] < lengths[:, None]
    index_N = mask_BT.flatten().nonzero()[:, 0]
    return SampleRows(samples, numbers, places, moved(mask_BT, device), moved(index_N, device))


def totals_of(samples: Sequence[TrainingSample], width: int) -> Totals:
    """Those of a whole mini-batch."""
    counts = [each.num_trained for each in samples]
    return Totals(sum(counts), sum(map(bool, counts)), width)


def _finite(name: str, number: int, values: Sequence[float] | None, places: Integers) -> npt.NDArray[np.float32]:
    if values is None:
        raise InvalidInputError(f"sample {number} has no {name}, which this loss needs: pass one for each token")
    chosen = np.asarray(values, np.float32)[places]
    is_bad = ~np.isfinite(chosen)
    if is_bad.any():
        place = int(places[is_bad.argmax()])
        raise InvalidInputError(f"{name}[{place}] of sample {number} is {values[place]!r}: use finite numbers")
    return chosen
