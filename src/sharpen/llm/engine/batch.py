"""What the host sends to the device before a step (one column of numbers for each row) and reads after it."""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .request import Sequence, TopLogprobs
from .sampler import Mode, Settings, uniforms
from .scheduler import BlockTables, Chunk

Integers = npt.NDArray[np.int64]

# The lines of the table that is sent to the device; floats are sent as their bits, so that one transfer carries all.
ID, SOURCE, POSITION, PLACE, SLOT, TOP_K, TEMPERATURE, TOP_P, UNIFORM = range(9)
NUM_LINES = 9

_STEPS_AHEAD = np.arange(15, -1, -1, dtype=np.uint64)


class LaunchedStep:
    """A step that was launched. `read` waits for it: the only place where the host waits for the device."""

    def __init__(self, sequences: list[Sequence], packed: Tensor, mode: Mode) -> None:
        self.sequences, self._mode = sequences, mode
        self._event: torch.cuda.Event | None = None
        if packed.device.type == "cuda":
            self._host = torch.empty(packed.shape, dtype=packed.dtype, pin_memory=True)
            self._host.copy_(packed, non_blocking=True)
            # The host thread sleeps until then and leaves its core to other threads and processes.
            self._event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = packed

    def read(self) -> "StepResult":
        if self._event is not None:
            self._event.synchronize()
        lines = self._host[:, : len(self.sequences)].contiguous().numpy()
        floats = lines.view(np.float32)
        numbers = lines[0].tolist(), floats[1].tolist(), floats[2].tolist()
        return StepResult(*numbers, self._tops(lines, floats), bool(np.isnan(floats[2]).any()))

    def _tops(self, lines: npt.NDArray[np.int32], floats: npt.NDArray[np.float32]) -> list[TopLogprobs]:
        count = self._mode.num_top
        if not count:
            return [()] * len(self.sequences)
        ids, values = lines[3 : 3 + count].T.tolist(), floats[3 + count :].T.tolist()
        return [
            tuple(zip(ids[row], values[row], strict=True))[: each.params.logprobs]
            for row, each in enumerate(self.sequences)
        ]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step sampled, row by row."""

    ids: list[int]
    logprobs: list[float]
    model_logprobs: list[float]
    tops: list[TopLogprobs]
    has_nan: bool
    """Whether some log-probability is NaN."""


def mode_of(sequences: Many[Sequence]) -> Mode:
    """Return the sampler mode that these sequences need."""
    # Most sequences of a batch share their settings: each object is checked once.
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
    """Return all lines of a decode step: each sequence's newest token, and where its keys go."""
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
    """Return the sampler's lines of a table on its device."""
    floats = table.view(torch.float64)
    return Settings(temperature=floats[TEMPERATURE], top_p=floats[TOP_P], top_k=table[TOP_K], uniform=floats[UNIFORM])


# -- batches of fixed shapes ------------------------------------------------------------------------


@dataclass(slots=True)
class DecodeBatch:
    """The table of a decode step on a device that computes ahead of the host.

    The newest token of a row that was computed before is on the device already: the host sends where it is, not which
    one it is. Rows that continue are carried over as columns; only those that join are filled one by one. Rows
    after the sequences are padding.
    """

    sequences: list[Sequence]
    table: Integers
    seeds: npt.NDArray[np.uint64]
    drawn: npt.NDArray[np.uint64]
    mode: Mode
    noise: list[npt.NDArray[np.float64]] = field(default_factory=list)
    """The uniform numbers of the next steps, the nearest last: many are computed as quickly as one."""

    @property
    def width(self) -> int:
        return int(self.table.shape[1])

    @property
    def max_position(self) -> int:
        return int(self.table[POSITION].max())

    def advance(self) -> None:
        """Move the same sequences one token further."""
        count = len(self.sequences)
        self.table[SOURCE, :count] = np.arange(count)
        self.table[POSITION, :count] += 1
        self.drawn += np.uint64(1)
        if not self.noise:
            self.noise = list(uniforms(self.seeds, self.drawn + _STEPS_AHEAD[:, None]))
        self.table.view(np.float64)[UNIFORM, :count] = self.noise.pop()


def next_batch(before: DecodeBatch | None, sequences: list[Sequence], *, width: int, num_slots: int) -> DecodeBatch:
    """Return the batch after `before`; some sequences may have left and others joined."""
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


def prompt_rows(chunks: Many[Chunk], tile_rows: int) -> tuple[Integers, npt.NDArray[np.int32]]:
    """Return the ids, positions and slots of the chunks' tokens, one line each, and the tiles.

    A tile is a run of adjacent rows of one text, for which one program attends.
    """
    ids = [token for chunk in chunks for token in chunk.sequence.tokens[chunk.start : chunk.end]]
    positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
    parts = [(chunk.start, chunk.end, chunk.sequence.slot or 0) for chunk in chunks]
    slots = np.repeat([slot for _, _, slot in parts], [end - start for start, end, _ in parts])
    return np.array([ids, positions, slots], dtype=np.int64), tiles_of(parts, tile_rows)


def tiles_of(parts: Many[tuple[int, int, int]], tile_rows: int) -> npt.NDArray[np.int32]:
    """Return tiles as (first row, rows, position of the first row, slot); a part is (start, end, slot) of one text."""
    tiles: list[tuple[int, int, int, int]] = []
    row = 0
    for start, end, slot in parts:
        begins = range(start, end, tile_rows)
        tiles += [(row + begin - start, min(tile_rows, end - begin), begin, slot) for begin in begins]
        row += end - start
    # The last tiles of a long text read the most, so they start first.
    tiles.sort(key=lambda tile: -tile[2])
    return np.array(tiles, dtype=np.int32)
