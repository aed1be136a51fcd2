"""Runs the steps of a known model over the paged cache, on exactly the rows and blocks that live: the CPU's way."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .attention import DecodeAttention, PrefillAttention, PrefillSpan, prefill_mask
from .block_tables import BlockTables
from .cache import PagedCache
from .decoder import Decoder
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

    def __init__(self, model: Any, sizes: Sizes) -> None:
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
        self._last_ids = torch.zeros(2 * sizes.max_batch, dtype=torch.int64, device=self._device)

    def refresh(self, *, have_moved: bool) -> None:
        """The weights are others now; modules may be too."""
        self._decoder.refresh()

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept by sequence: its blocks are the scheduler's."""

    def logits(self, ids: list[int]) -> Tensor:
        """The logits of one text from scratch, written to the block that belongs to nobody; to check the model."""
        rows = torch.tensor(ids, device=self._device)
        positions = torch.arange(len(ids), device=self._device)
        span = PrefillSpan(0, len(ids), 0, rows, None)
        attend = PrefillAttention(self.cache, torch.zeros_like(positions), [span])
        return self._decoder.logits(self._decoder.hidden(rows, positions, attend))

    def prefill(self, chunks: list[Chunk], tables: BlockTables) -> Ticket | None:
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
        drawn, packed = draw(logits.index_select(0, rows), settings_of(self._to_device(table)), mode)
        # Behind those of the decode step, where the next one finds them if it does not wait for the host.
        first = len(self._last_ids) // 2
        self._last_ids[first : first + len(drawn)] = drawn
        for number, sequence in enumerate(samples):
            sequence.row = first + number
        return Ticket(samples, packed, mode)

    def decode(self, sequences: list[Sequence], tables: BlockTables) -> Ticket:
        """Compute the newest token of each sequence and draw its next one."""
        sequences, spans = lay_out(sequences, self.cache.block_size)
        mode = mode_of(sequences)
        table = self._to_device(decode_table(sequences, tables, self.cache.block_size))
        num_blocks = max(span.num_blocks for span in spans)
        blocks = self._to_device(tables.array[np.array([each.slot for each in sequences]), :num_blocks])
        for row, sequence in enumerate(sequences):
            sequence.row = row
            sequence.in_flight += 1
        return Ticket(sequences, self._decode(table, blocks, list(spans), mode), mode)

    def _decode(self, table: Tensor, blocks: Tensor, spans: list[DecodeSpan], mode: Mode) -> Tensor:
        # The newest token is on the device already where the step before was not waited for.
        source = table[SOURCE]
        ids = torch.where(source >= 0, self._last_ids[source.clamp(min=0)], table[ID])
        attend = DecodeAttention(self.cache, table[PLACE], table[POSITION], blocks, spans)
        logits = self._decoder.logits(self._decoder.hidden(ids, table[POSITION], attend))
        drawn, packed = draw(logits, settings_of(table), mode)
        self._last_ids[: len(drawn)] = drawn
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

    def _to_device(self, values: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self._device)
