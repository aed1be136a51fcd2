"""Training samples as tensors: a row per sample that holds its trained tokens alone, padded at the end."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...errors import InvalidInputError
from .aggregation import Totals
from .token_batch import places_of
from .token_tree import Integers
from .training_sample import TrainingSample
from .transfer import moved


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
