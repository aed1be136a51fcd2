"""Runs the steps of a known model over the paged cache.

With static shapes a decode step reads only fixed tensors, which the host fills before it, and its rows and blocks are
rounded up: it can be recorded. Without, the same code runs on the host's own tensors and on exactly the rows and blocks
that live.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .attention import DecodeAttention, PrefillAttention, PrefillSpan, prefill_mask
from .cache import PagedCache
from .decoder import Decoder
from .graphs import StepGraphs, bucket
from .rows import (
    ID,
    NUM_LINES,
    PLACE,
    POSITION,
    SOURCE,
    Integers,
    Ticket,
    decode_table,
    mode_of,
    sampling_lines,
    settings_of,
)
from .sampler import Mode, draw
from .scheduler import Chunk
from .sequence import Sequence
from .sizes import Sizes
from .spans import DecodeSpan, lay_out


class PagedRunner:
    """Computes prefills and decode steps; it knows nothing of queues."""

    shares_prefixes = True

    def __init__(self, model: Any, sizes: Sizes, *, is_static: bool, use_graphs: bool) -> None:
        self._decoder = Decoder(model, max_length=sizes.max_length)
        self._device = sizes.device
        shape = self._decoder.shape
        self.cache = PagedCache(
            num_layers=shape.num_layers,
            num_blocks=sizes.num_blocks,
            block_size=sizes.block_size,
            num_heads=shape.num_kv_heads,
            head_size=shape.head_size,
            dtype=model.get_input_embeddings().weight.dtype,
            device=self._device,
        )
        self._is_static = is_static
        self._max_batch, self._max_blocks = sizes.max_batch, sizes.max_blocks
        self._graphs = StepGraphs(self._device, is_enabled=use_graphs and is_static)
        self._table = torch.zeros((NUM_LINES, self._max_batch), dtype=torch.int64, device=self._device)
        self._block_tables: dict[int, Tensor] = {}
        self._last_ids = torch.zeros(self._max_batch, dtype=torch.int64, device=self._device)
        self._next_ids = torch.zeros_like(self._last_ids)

    def refresh(self, *, have_moved: bool) -> None:
        """The weights are others now; `have_moved` if they also lie elsewhere in memory."""
        self._decoder.refresh()
        if have_moved:
            self._graphs.clear()

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept by sequence: its blocks are the scheduler's."""

    def logits(self, ids: list[int]) -> Tensor:
        """The logits of one text from scratch, written to the block that belongs to nobody; to check the model."""
        rows = torch.tensor(ids, device=self._device)
        positions = torch.arange(len(ids), device=self._device)
        span = PrefillSpan(0, len(ids), 0, rows, None)
        attend = PrefillAttention(self.cache, torch.zeros_like(positions), [span])
        return self._decoder.logits(self._decoder.hidden(rows, positions, attend))

    def prefill(self, chunks: list[Chunk]) -> Ticket | None:
        """Compute these chunks, copy what their followers need, and draw a token for each of their samples."""
        hidden = self._prefilled(chunks)
        self.cache.copy([pair for chunk in chunks for pair in chunk.copies])
        ends = np.cumsum([chunk.end - chunk.start for chunk in chunks]) - 1
        last = [int(end) for end, chunk in zip(ends, chunks, strict=True) if chunk.samples]
        samples = [sequence for chunk in chunks for sequence in chunk.samples]
        if not samples:
            return None
        logits = self._decoder.logits(hidden[self._to_device(np.array(last))])
        counts = [len(chunk.samples) for chunk in chunks if chunk.samples]
        rows = self._to_device(np.repeat(np.arange(len(last)), counts))
        table: Integers = np.zeros((NUM_LINES, len(samples)), dtype=np.int64)
        sampling_lines(table, samples)
        mode = mode_of(samples)
        _, packed = draw(logits.index_select(0, rows), settings_of(self._to_device(table)), mode)
        return Ticket(samples, packed, mode)

    def decode(self, sequences: list[Sequence], tables: npt.NDArray[np.int32]) -> Ticket:
        """Compute the newest token of each sequence and draw its next one."""
        sequences, spans, width = self._layout(sequences)
        mode = mode_of(sequences)
        table = self._put_table(decode_table(sequences, tables, self.cache.block_size, width))
        num_blocks = max(span.num_blocks for span in spans)
        blocks = self._put_blocks(sequences, tables, num_blocks, width)
        for row, sequence in enumerate(sequences):
            sequence.row = row
            sequence.in_flight += 1
        packed = self._graphs.run((spans, mode), lambda: self._decode(table, blocks, list(spans), mode))
        # Outside the recorded step, which may run several times with the ids of the step before.
        self._last_ids.copy_(self._next_ids)
        return Ticket(sequences, packed, mode)

    def _decode(self, table: Tensor, blocks: Tensor, spans: list[DecodeSpan], mode: Mode) -> Tensor:
        # The newest token is on the device already where the step before was not waited for.
        source = table[SOURCE]
        ids = torch.where(source >= 0, self._last_ids[source.clamp(min=0)], table[ID])
        attend = DecodeAttention(self.cache, table[PLACE], table[POSITION], blocks, spans)
        logits = self._decoder.logits(self._decoder.hidden(ids, table[POSITION], attend))
        drawn, packed = draw(logits, settings_of(table), mode)
        self._next_ids[: len(drawn)] = drawn
        return packed

    def _prefilled(self, chunks: list[Chunk]) -> Tensor:
        block_size = self.cache.block_size
        ids = [token for chunk in chunks for token in chunk.sequence.tokens[chunk.start : chunk.end]]
        positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
        places, spans, first = [], [], 0
        for chunk in chunks:
            own = np.arange(chunk.start, chunk.end)
            blocks = np.array(chunk.sequence.blocks)
            places.append(blocks[own // block_size] * block_size + own % block_size)
            table = self._to_device(blocks[: -(-chunk.end // block_size)]).unsqueeze(0)
            mask = prefill_mask(chunk.start, chunk.end, self._device)
            spans.append(PrefillSpan(first, first + len(own), chunk.start, table, mask))
            first += len(own)
        attend = PrefillAttention(self.cache, self._to_device(np.concatenate(places)), spans)
        return self._decoder.hidden(self._to_device(np.array(ids)), self._to_device(positions), attend)

    def _layout(self, sequences: list[Sequence]) -> tuple[list[Sequence], tuple[DecodeSpan, ...], int]:
        """The sequences in the order of their rows, the spans of these rows, and how many rows there are."""
        if not self._is_static:
            rows, spans = lay_out(sequences, self.cache.block_size)
            return rows, spans, len(rows)
        # Recorded steps have few shapes: one span, its rows and blocks rounded up.
        width = bucket(len(sequences), most=self._max_batch)
        num_blocks = bucket(max(len(each.blocks) for each in sequences), most=self._max_blocks)
        return sequences, (DecodeSpan(0, width, num_blocks),), width

    def _put_table(self, table: Integers) -> Tensor:
        if not self._is_static:
            return self._to_device(table)
        # One fixed tensor for each width: graphs read it where it lies.
        fixed = self._table.view(-1)[: table.size].view(table.shape)
        return fixed.copy_(self._pinned(table), non_blocking=True)

    def _put_blocks(
        self, sequences: list[Sequence], tables: npt.NDArray[np.int32], num_blocks: int, width: int
    ) -> Tensor:
        chosen = np.zeros((width, num_blocks), dtype=np.int32)
        chosen[: len(sequences)] = tables[np.array([each.slot for each in sequences]), :num_blocks]
        if not self._is_static:
            return self._to_device(chosen)
        if num_blocks not in self._block_tables:
            shape = (self._max_batch, num_blocks)
            self._block_tables[num_blocks] = torch.zeros(shape, dtype=torch.int32, device=self._device)
        return self._block_tables[num_blocks][:width].copy_(self._pinned(chosen), non_blocking=True)

    def _to_device(self, values: npt.NDArray[Any]) -> Tensor:
        return self._pinned(values).to(self._device, non_blocking=True)

    def _pinned(self, values: npt.NDArray[Any]) -> Tensor:
        """A tensor from which a GPU copies without making the host wait."""
        tensor = torch.from_numpy(values)
        return tensor.pin_memory() if self._device.type == "cuda" else tensor
