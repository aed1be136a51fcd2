"""The runner of supported models on a GPU: over the paged cache, in few launches and fixed shapes.

A decode step reads only fixed tensors, which the host fills before it, and its number of rows is rounded up, so it is
recorded once and replayed. Kernels read the lengths of the texts on the device. The newest tokens stay on the device:
those of the last decode step by their row, those of the last prefill after them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import PagedCache
from .batch import (
    ID,
    NUM_LINES,
    POSITION,
    SLOT,
    SOURCE,
    DecodeBatch,
    Integers,
    LaunchedStep,
    mode_of,
    next_batch,
    prompt_rows,
    sampling_lines,
    settings_of,
    tiles_of,
)
from .decoder import rotations, shape_of
from .graphs import StepGraphs, StepKey, bucket
from .kernels import DecodeRows, Heads, Kernels, LayerHeads, PromptRows, Rotations, kernels_for
from .request import Sequence
from .sampler import Mode
from .scheduler import BlockTables, Chunk
from .sizes import Sizes
from .weights import JoinedLinear, LinearFunction, linear_function

_MAX_RECORDED_ROWS = 2_048  # a larger prefill keeps the device busy for longer than its launches take
_MAX_SPLITS = 16
_SPLIT_TOKENS = 256  # fewer are not worth a separate program


class FusedRunner:
    """Computes prefills and decode steps of a model of a supported family."""

    shares_prefixes = True

    def __init__(self, model: Any, sizes: Sizes, *, use_graphs: bool, kernels: Kernels | None = None) -> None:
        self._device, self._num_slots = sizes.device, sizes.max_batch
        self._kernels = kernels or kernels_for(sizes.device)
        self._decoder = FusedDecoder(model, self._kernels, max_length=sizes.max_length, block_size=sizes.block_size)
        self._dtype = model.get_input_embeddings().weight.dtype
        self.cache = self._new_cache(sizes.num_blocks)
        self._graphs = StepGraphs(self._device, is_enabled=use_graphs)
        self._table = torch.zeros((NUM_LINES, self._num_slots), dtype=torch.int64, device=self._device)
        # The line after the last slot holds block 0, for rows that only pad a batch.
        shape = (self._num_slots + 1, sizes.max_blocks)
        self._tables = torch.zeros(shape, dtype=torch.int32, device=self._device)
        self._prompt_lines = torch.zeros((3, _MAX_RECORDED_ROWS), dtype=torch.int64, device=self._device)
        self._prompt_tiles = torch.zeros((_MAX_RECORDED_ROWS, 4), dtype=torch.int32, device=self._device)
        self._last_ids = torch.zeros(2 * self._num_slots, dtype=torch.int64, device=self._device)
        self._batch: DecodeBatch | None = None
        self._full_programs = _programs_of(self._device)

    def refresh(self, *, have_moved: bool) -> None:
        """Use changed weights; `have_moved` says whether they are also elsewhere in memory."""
        if have_moved:
            self._decoder.refresh()
            self._graphs.clear()

    def release(self, sequence: Sequence) -> None:
        """Do nothing: the blocks of a sequence are the scheduler's."""

    def logits(self, ids: list[int]) -> Tensor:
        """Return the logits of one text, computed in a separate cache; used to check the forward pass."""
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

    def prefill(self, chunks: list[Chunk], tables: BlockTables) -> LaunchedStep | None:
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
        return LaunchedStep(samples, packed, mode)

    def decode(self, sequences: list[Sequence], tables: BlockTables) -> LaunchedStep:
        """Compute the newest token of each sequence and draw the next one."""
        self._put_tables(tables)
        (width,) = self._graphs.shape("decode", (bucket(len(sequences), most=self._num_slots),))
        batch = next_batch(self._batch, sequences, width=width, num_slots=self._num_slots)
        self._batch = batch
        # One fixed tensor for each width, because graphs read a fixed address.
        table = self._table.view(-1)[: batch.table.size].view(batch.table.shape)
        table.copy_(self._pinned(batch.table), non_blocking=True)
        for row, sequence in enumerate(sequences):
            sequence.row = row
            sequence.in_flight += 1
        splits = self._num_splits(width, batch.max_position)
        mode = _reduced(batch.mode)
        key = StepKey("decode", (width,), (splits, mode))
        packed = self._graphs.run(key, lambda: self._decode(table, splits, mode), changes=[self._last_ids])
        return LaunchedStep(batch.sequences, packed, batch.mode)

    def _decode(self, table: Tensor, num_splits: int, mode: Mode) -> Tensor:
        rows = DecodeRows(table[SLOT], table[POSITION], self._tables, num_splits)
        hidden = self._decoder.hidden(table[ID], self.cache, rows, sources=table[SOURCE], last_ids=self._last_ids)
        drawn, packed = self._kernels.draw(self._decoder.logits(hidden), settings_of(table), mode)
        self._last_ids[: len(drawn)] = drawn
        return packed

    def _prefilled(self, chunks: list[Chunk]) -> Tensor:
        """Return the last hidden states of the chunks' tokens, followed by padding rows."""
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
        """Return how many programs read one text, so that few rows fill the device too (a power of two: few graphs)."""
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
        """Return a copy from which a GPU can read without making the host wait."""
        tensor = torch.from_numpy(values)
        return tensor.pin_memory() if self._device.type == "cuda" else tensor.clone()


def _reduced(mode: Mode) -> Mode:
    """Return the mode without what does not change the computation; otherwise each mixture would record a graph."""
    return Mode(True, True, True, mode.has_filter, mode.num_top)


def _programs_of(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return 4 * torch.cuda.get_device_properties(device).multi_processor_count


# -- the forward pass -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: JoinedLinear
    o: LinearFunction
    mlp_norm: Any
    gate_up: JoinedLinear
    activation: Callable[[Tensor], Tensor] | None  # None: silu, which a kernel computes
    down: LinearFunction
    next_norm: Any
    q_norm: Any
    k_norm: Any


class FusedDecoder:
    """The forward pass in few launches: products of joined weights, and the kernels between them.

    It computes rows of tokens of many texts side by side, over the cache that each call passes.
    """

    def __init__(self, model: Any, kernels: Kernels, *, max_length: int, block_size: int) -> None:
        self.shape = shape_of(model)
        self._model, self._inner, self._kernels = model, model.model, kernels
        self.heads = Heads(self.shape.num_heads, self.shape.num_kv_heads, self.shape.head_size, block_size)
        # Computed once: they depend on the config alone, and recorded steps read them at a fixed address.
        self._rotations = Rotations(*rotations(model, max_length))
        self.refresh()

    def refresh(self) -> None:
        """Read the model's modules again; call it after weights moved or an adapter was added."""
        inner = self._inner
        norms = [*(each.input_layernorm for each in inner.layers), inner.norm]
        self._layers = [_layer(each, norms[number + 1], number) for number, each in enumerate(inner.layers)]
        self._head = linear_function(self._model.get_output_embeddings(), "lm_head")

    def hidden(
        self,
        ids: Tensor,
        cache: PagedCache,
        rows: DecodeRows | PromptRows,
        *,
        sources: Tensor | None = None,
        last_ids: Tensor | None = None,
    ) -> Tensor:
        """Return the last hidden states of these rows after their norm."""
        kernels = self._kernels
        first = self._inner.layers[0].input_layernorm
        table = self._inner.embed_tokens.weight
        last_ids = ids if last_ids is None else last_ids
        x, h = kernels.embed(ids, sources, last_ids, table, first.weight, first.variance_epsilon)
        for number, layer in enumerate(self._layers):
            delta = layer.o(self._attend(layer, number, layer.qkv(h), cache, rows))
            h = kernels.add_norm(x, delta, layer.mlp_norm.weight, layer.mlp_norm.variance_epsilon)
            delta = layer.down(self._gated(layer, layer.gate_up(h)))
            h = kernels.add_norm(x, delta, layer.next_norm.weight, layer.next_norm.variance_epsilon)
        return h

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of these rows, in the model's dtype."""
        return self._head(hidden)

    def _attend(
        self, layer: _Layer, number: int, qkv: Tensor, cache: PagedCache, rows: DecodeRows | PromptRows
    ) -> Tensor:
        q_norm, k_norm = layer.q_norm, layer.k_norm
        own = LayerHeads(
            keys=cache.keys[number],
            values=cache.values[number],
            q_norm=None if q_norm is None else q_norm.weight,
            k_norm=None if k_norm is None else k_norm.weight,
            eps=0.0 if q_norm is None else q_norm.variance_epsilon,
        )
        if isinstance(rows, DecodeRows):
            return self._kernels.decode(qkv, self.heads, own, self._rotations, rows)
        return self._kernels.prefill(qkv, self.heads, own, self._rotations, rows)

    def _gated(self, layer: _Layer, gate_up: Tensor) -> Tensor:
        if layer.activation is None:
            return self._kernels.gate(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return layer.activation(gate) * up


def _layer(layer: Any, next_norm: Any, number: int) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    queries = (attention.q_proj, attention.k_proj, attention.v_proj)
    return _Layer(
        qkv=JoinedLinear(queries, f"q_proj, k_proj or v_proj of layer {number}"),
        o=linear_function(attention.o_proj, f"o_proj of layer {number}"),
        mlp_norm=layer.post_attention_layernorm,
        gate_up=JoinedLinear((mlp.gate_proj, mlp.up_proj), f"gate_proj or up_proj of layer {number}"),
        activation=None if _is_silu(mlp.act_fn) else mlp.act_fn,
        down=linear_function(mlp.down_proj, f"down_proj of layer {number}"),
        next_norm=next_norm,
        q_norm=getattr(attention, "q_norm", None),
        k_norm=getattr(attention, "k_norm", None),
    )


def _is_silu(activation: Any) -> bool:
    return isinstance(activation, nn.SiLU) or activation is F.silu or type(activation).__name__ == "SiLUActivation"
