"""What the host tells the device before a step: one column of numbers for each row of the batch."""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .block_tables import BlockTables
from .noise import uniforms
from .outputs import TopLogprobs
from .sampler import Mode, Settings
from .sequence import Sequence

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

# The lines of the table that travels to the device; floats go as their bits, so that one transfer carries all.
ID, SOURCE, POSITION, PLACE, SLOT, TOP_K, TEMPERATURE, TOP_P, UNIFORM = range(9)
NUM_LINES = 9


def mode_of(sequences: Many[Sequence]) -> Mode:
    """What these sequences need of the sampler."""
    # Most sequences of a batch have the same settings: each object is looked at once.
    params = {id(each.params): each.params for each in sequences}.values()
    return Mode(
        has_greedy=any(each.is_greedy for each in params),
        has_sampled=any(not each.is_greedy for each in params),
        has_temperature=any(each.temperature not in {0.0, 1.0} for each in params),
        has_filter=any(each.is_filtered for each in params),
        num_top=max((each.logprobs for each in params), default=0),
    )


def sampling_lines(table: Integers, sequences: Many[Sequence]) -> None:
    """Fill the lines of the table that the sampler reads."""
    count = len(sequences)
    seeds = np.fromiter((each.seed for each in sequences), dtype=np.uint64, count=count)
    drawn = np.fromiter((each.num_launched - each.num_prompt for each in sequences), dtype=np.uint64, count=count)
    floats = table.view(np.float64)
    floats[TEMPERATURE] = [each.params.temperature for each in sequences]
    floats[TOP_P] = [each.params.top_p for each in sequences]
    floats[UNIFORM] = uniforms(seeds, drawn)
    table[TOP_K] = [each.params.top_k for each in sequences]


def decode_table(sequences: Many[Sequence], tables: BlockTables, block_size: int) -> Integers:
    """All lines of a decode step: each sequence's newest token, and where its keys go."""
    count = len(sequences)
    table: Integers = np.zeros((NUM_LINES, count), dtype=np.int64)
    positions = np.fromiter((each.num_launched - 1 for each in sequences), dtype=np.int64, count=count)
    slots = np.fromiter((each.slot for each in sequences), dtype=np.int64, count=count)
    table[ID] = [each.tokens[-1] for each in sequences]
    table[SOURCE] = [each.row if each.in_flight else -1 for each in sequences]
    table[POSITION], table[SLOT] = positions, slots
    blocks = tables.array[slots, positions // block_size].astype(np.int64)
    table[PLACE] = blocks * block_size + positions % block_size
    sampling_lines(table, sequences)
    return table


def settings_of(table: Tensor) -> Settings:
    """The sampler's lines of a table on its device."""
    floats = table.view(torch.float64)
    return Settings(temperature=floats[TEMPERATURE], top_p=floats[TOP_P], top_k=table[TOP_K], uniform=floats[UNIFORM])


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step sampled, row by row."""

    ids: list[int]
    logprobs: list[float]
    model_logprobs: list[float]
    tops: list[TopLogprobs]
    is_broken: bool
    """Whether some log-probability is not a number."""


class Ticket:
    """A step that was launched; `read` waits for it. This is the one place where the host waits for the device."""

    def __init__(self, sequences: list[Sequence], packed: Tensor, mode: Mode) -> None:
        self.sequences, self._mode = sequences, mode
        self._event: torch.cuda.Event | None = None
        if packed.device.type == "cuda":
            self._host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
            # The host sleeps until then: other threads and processes have its core meanwhile.
            self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = packed

    def read(self) -> Drawn:
        if self._event is not None:
            self._event.synchronize()
        lines = self._host[:, : len(self.sequences)].contiguous().numpy()
        floats = lines.view(np.float32)
        numbers = lines[0].tolist(), floats[1].tolist(), floats[2].tolist()
        return Drawn(*numbers, self._tops(lines, floats), bool(np.isnan(floats[2]).any()))

    def _tops(self, lines: npt.NDArray[np.int32], floats: npt.NDArray[np.float32]) -> list[TopLogprobs]:
        count = self._mode.num_top
        if not count:
            return [()] * len(self.sequences)
        ids, values = lines[3 : 3 + count].T.tolist(), floats[3 + count :].T.tolist()
        return [
            tuple(zip(ids[row], values[row], strict=True))[: each.params.logprobs]
            for row, each in enumerate(self.sequences)
        ]
