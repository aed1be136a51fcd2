"""The rows of a decode step on a device that computes ahead of the host.

The newest token of a row that was computed before is on the device already: the host says where, not which. Rows that
go on are carried over as columns of numbers; only those that join are looked at one by one.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .noise import uniforms
from .rows import (
    ID,
    NUM_LINES,
    POSITION,
    SLOT,
    SOURCE,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    UNIFORM,
    Integers,
    mode_of,
)
from .sampler import Mode
from .sequence import Sequence

_STEPS_AHEAD = np.arange(15, -1, -1, dtype=np.uint64)


@dataclass(slots=True)
class DecodeBatch:
    """What the host tells the device before a step; rows beyond the sequences belong to nobody."""

    sequences: list[Sequence]
    table: Integers
    seeds: npt.NDArray[np.uint64]
    drawn: npt.NDArray[np.uint64]
    mode: Mode
    noise: list[npt.NDArray[np.float64]] = field(default_factory=list)
    """The numbers of the steps to come, the next one last: many are as quickly made as few."""

    @property
    def width(self) -> int:
        return int(self.table.shape[1])

    @property
    def max_position(self) -> int:
        return int(self.table[POSITION].max())

    def advance(self) -> None:
        """The same sequences, one token further."""
        count = len(self.sequences)
        self.table[SOURCE, :count] = np.arange(count)
        self.table[POSITION, :count] += 1
        self.drawn += np.uint64(1)
        if not self.noise:
            self.noise = list(uniforms(self.seeds, self.drawn + _STEPS_AHEAD[:, None]))
        self.table.view(np.float64)[UNIFORM, :count] = self.noise.pop()


def next_batch(before: DecodeBatch | None, sequences: list[Sequence], *, width: int, num_slots: int) -> DecodeBatch:
    """The step after `before`, in which some sequences may have left and others joined."""
    count = len(sequences)
    if before is not None and before.width == width and before.sequences == sequences:
        before.advance()
        return before
    table = _empty_table(width, num_slots)
    seeds, drawn = np.zeros(count, dtype=np.uint64), np.zeros(count, dtype=np.uint64)
    rows = np.fromiter((each.row for each in sequences), dtype=np.int64, count=count)
    stays = (rows >= 0) & (rows < num_slots) if before is not None else np.zeros(count, dtype=bool)
    places = np.flatnonzero(stays)
    if before is not None and len(places):
        table[:, places] = before.table[:, rows[places]]
        seeds[places], drawn[places] = before.seeds[rows[places]], before.drawn[rows[places]] + np.uint64(1)
        table[POSITION, places] += 1
    for place in np.flatnonzero(~stays):
        _fill(table, int(place), sequences[place])
        seeds[place] = sequences[place].seed
        drawn[place] = sequences[place].num_launched - sequences[place].num_prompt
    table[SOURCE, :count] = rows
    table.view(np.float64)[UNIFORM, :count] = uniforms(seeds, drawn)
    return DecodeBatch(list(sequences), table, seeds, drawn, mode_of(sequences))


def _empty_table(width: int, num_slots: int) -> Integers:
    table: Integers = np.zeros((NUM_LINES, width), dtype=np.int64)
    floats = table.view(np.float64)
    floats[TEMPERATURE], floats[TOP_P], floats[UNIFORM] = 1.0, 1.0, 0.5
    table[SOURCE], table[SLOT] = -1, num_slots
    return table


def _fill(table: Integers, place: int, sequence: Sequence) -> None:
    floats, params = table.view(np.float64), sequence.params
    table[ID, place] = sequence.tokens[-1]
    table[POSITION, place] = sequence.num_launched - 1
    table[SLOT, place] = -1 if sequence.slot is None else sequence.slot
    table[TOP_K, place] = params.top_k
    floats[TEMPERATURE, place], floats[TOP_P, place] = params.temperature, params.top_p
