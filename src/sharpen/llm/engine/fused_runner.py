"""Runs the steps of a known model over the paged cache, in few launches and fixed shapes.

A decode step reads only fixed tensors, which the host fills before it, and its number of rows is rounded up: it is
recorded once and replayed. How long the texts are, kernels read on the device. The newest tokens stay on the device:
those of the last decode step by their row, those of the last prefill behind them.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .block_tables import BlockTables
from .cache import PagedCache
from .decode_batch import DecodeBatch, next_batch
from .fused_decoder import FusedDecoder
from .graphs import StepGraphs, StepKey, bucket
from .kernels import DecodeRows, Kernels, PromptRows, kernels_for
from .prompt_rows import prompt_rows, tiles_of
from .rows import ID, NUM_LINES, POSITION, SLOT, SOURCE, Integers, Ticket, mode_of, sampling_lines, settings_of
from .sampler import Mode
from .scheduler import Chunk
from .sequence import Sequence
from .sizes import Sizes

_MAX_RECORDED_ROWS = 2_048  # a larger prefill keeps the device busy for longer than its launches take
_MAX_SPLITS = 16
_SPLIT_TOKENS = 256  # fewer are not worth a program of their own


class FusedRunner:
    """Computes prefills and decode steps; it knows nothing of queues."""

    shares_prefixes = True

    def __init__(self, model: Any, sizes: Sizes, *, use_graphs: bool, kernels: Kernels | None = None) -> None:
        self._device, self._num_slots = sizes.device, sizes.max_batch
        self._kernels = kernels or kernels_for(sizes.device)
        self._decoder = FusedDecoder(model, self._kernels, max_length=sizes.max_length, block_size=sizes.block_size)
        self._dtype = model.get_input_embeddings().weight.dtype
        self.cache = self._new_cache(sizes.num_blocks)
        self._graphs = StepGraphs(self._device, is_enabled=use_graphs)
        self._table = torch.zeros((NUM_LINES, self._num_slots), dtype=torch.int64, device=self._device)
        # The line behind the last slot names the block of nobody: rows that only fill up a batch use it.
        shape = (self._num_slots + 1, sizes.max_blocks)
        self._tables = torch.zeros(shape, dtype=torch.int32, device=self._device)
        self._prompt_lines = torch.zeros((3, _MAX_RECORDED_ROWS), dtype=torch.int64, device=self._device)
        self._prompt_tiles = torch.zeros((_MAX_RECORDED_ROWS, 4), dtype=torch.int32, device=self._device)
        self._last_ids = torch.zeros(2 * self._num_slots, dtype=torch.int64, device=self._device)
        self._batch: DecodeBatch | None = None
        self._full_programs = _programs_of(self._device)

    def refresh(self, *, have_moved: bool) -> None:
        """The weights are others now; `have_moved` if they also lie elsewhere in memory."""
        if have_moved:
            self._decoder.refresh()
            self._graphs.clear()

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept by sequence: its blocks are the scheduler's."""

    def logits(self, ids: list[int]) -> Tensor:
        """The logits of one text from scratch, in a cache of its own; to check the model."""
        num_blocks = -(-len(ids) // self.cache.block_size)
        positions = np.arange(len(ids))
        rows = PromptRows(
            slots=self._to_device(np.zeros(len(ids), dtype=np.int64)),
            positions=self._to_device(positions),
            tables=self._to_device(np.arange(1, num_blocks + 1, dtype=np.int32)).unsqueeze(0),
            tiles=self._to_device(tiles_of([(0, len(ids), 0)], self._decoder.heads.tile_rows)),
        )
        hidden = self._decoder.hidden(self._to_device(np.array(ids)), self._new_cache(num_blocks), rows)
        return self._decoder.logits(hidden).float()

    def prefill(self, chunks: list[Chunk], tables: BlockTables) -> Ticket | None:
        """Compute these chunks, copy what their followers need, and draw a token for each of their samples."""
        self._put_tables(tables)
        hidden = self._prefilled(chunks)
        self.cache.copy([pair for chunk in chunks for pair in chunk.copies])
        samples = [sequence for chunk in chunks for sequence in chunk.samples]
        if not samples:
            return None
        ends = np.cumsum([chunk.end - chunk.start for chunk in chunks]) - 1
        counts = [len(chunk.samples) for chunk in chunks]
        last = self._to_device(np.repeat(ends, counts))
        table: Integers = np.zeros((NUM_LINES, len(samples)), dtype=np.int64)
        sampling_lines(table, samples)
        mode = mode_of(samples)
        logits = self._decoder.logits(hidden.index_select(0, last))
        drawn, packed = self._kernels.draw(logits, settings_of(self._to_device(table)), mode)
        self._last_ids[self._num_slots : self._num_slots + len(drawn)] = drawn
        for number, sequence in enumerate(samples):
            sequence.row = self._num_slots + number
        return Ticket(samples, packed, mode)

    def decode(self, sequences: list[Sequence], tables: BlockTables) -> Ticket:
        """Compute the newest token of each sequence and draw its next one."""
        self._put_tables(tables)
        (width,) = self._graphs.shape("decode", (bucket(len(sequences), most=self._num_slots),))
        batch = next_batch(self._batch, sequences, width=width, num_slots=self._num_slots)
        self._batch = batch
        # One fixed tensor for each width: graphs read it where it lies.
        table = self._table.view(-1)[: batch.table.size].view(batch.table.shape)
        table.copy_(self._pinned(batch.table), non_blocking=True)
        for row, sequence in enumerate(sequences):
            sequence.row = row
            sequence.in_flight += 1
        splits = self._num_splits(width, batch.max_position)
        mode = _reduced(batch.mode)
        key = StepKey("decode", (width,), (splits, mode))
        packed = self._graphs.run(key, lambda: self._decode(table, splits, mode), changes=[self._last_ids])
        return Ticket(batch.sequences, packed, batch.mode)

    def _decode(self, table: Tensor, num_splits: int, mode: Mode) -> Tensor:
        rows = DecodeRows(table[SLOT], table[POSITION], self._tables, num_splits)
        hidden = self._decoder.hidden(table[ID], self.cache, rows, sources=table[SOURCE], last_ids=self._last_ids)
        drawn, packed = self._kernels.draw(self._decoder.logits(hidden), settings_of(table), mode)
        self._last_ids[: len(drawn)] = drawn
        return packed

    def _prefilled(self, chunks: list[Chunk]) -> Tensor:
        """The last hidden states of the chunks' tokens; rows behind them belong to nobody."""
        table, tiles = prompt_rows(chunks, self._decoder.heads.tile_rows)
        if table.shape[1] > _MAX_RECORDED_ROWS:
            return self._hidden_of_prompts(self._to_device(table), self._to_device(tiles))
        wanted = (bucket(table.shape[1], most=_MAX_RECORDED_ROWS), bucket(len(tiles), most=_MAX_RECORDED_ROWS))
        width, num_tiles = shape = self._graphs.shape("prefill", wanted)
        table = np.pad(table, ((0, 0), (0, width - table.shape[1])))
        table[2, sum(chunk.end - chunk.start for chunk in chunks) :] = self._num_slots
        fixed = self._prompt_lines.view(-1)[: table.size].view(table.shape)
        fixed.copy_(self._pinned(table), non_blocking=True)
        fixed_tiles = self._prompt_tiles[:num_tiles]
        tiles = np.pad(tiles, ((0, num_tiles - len(tiles)), (0, 0)))
        fixed_tiles.copy_(self._pinned(tiles), non_blocking=True)
        return self._graphs.run(
            StepKey("prefill", shape), lambda: self._hidden_of_prompts(fixed, fixed_tiles), free_uses=2
        )

    def _hidden_of_prompts(self, lines: Tensor, tiles: Tensor) -> Tensor:
        ids, positions, slots = lines.unbind()
        return self._decoder.hidden(ids, self.cache, PromptRows(slots, positions, self._tables, tiles))

    def _num_splits(self, width: int, max_position: int) -> int:
        """How many programs read one text, so that few rows fill the device too; a power of two, for few graphs."""
        programs = width * self._decoder.heads.num_kv_heads
        splits = 1
        while splits < _MAX_SPLITS and programs * splits < self._full_programs:
            if max_position // splits < 2 * _SPLIT_TOKENS:
                break
            splits *= 2
        return splits

    def _put_tables(self, tables: BlockTables) -> None:
        slots, num_blocks = tables.take_changes()
        if slots:
            chosen = self._to_device(tables.array[slots, :num_blocks])
            self._tables[:, :num_blocks].index_copy_(0, self._to_device(np.array(slots)), chosen)

    def _new_cache(self, num_blocks: int) -> PagedCache:
        heads = self._decoder.heads
        return PagedCache(
            num_layers=self._decoder.shape.num_layers,
            num_blocks=num_blocks,
            block_size=heads.block_size,
            num_heads=heads.num_kv_heads,
            head_size=heads.head_size,
            dtype=self._dtype,
            device=self._device,
        )

    def _to_device(self, values: npt.NDArray[Any]) -> Tensor:
        return self._pinned(values).to(self._device, non_blocking=True)

    def _pinned(self, values: npt.NDArray[Any]) -> Tensor:
        """A tensor from which a GPU copies without making the host wait; a copy, which the host does not change."""
        tensor = torch.from_numpy(values)
        return tensor.pin_memory() if self._device.type == "cuda" else tensor.clone()


def _reduced(mode: Mode) -> Mode:
    """The mode as far as it decides what is computed; else every mixture of settings were a graph of its own."""
    return Mode(True, True, True, mode.has_filter, mode.num_top)


def _programs_of(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return 4 * torch.cuda.get_device_properties(device).multi_processor_count
