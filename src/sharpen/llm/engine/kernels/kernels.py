"""The operations of a step other than matrix products, twice: in plain torch, which defines the results, and in Triton.

Rows are tokens of many texts side by side. Their keys and values are in blocks of the cache; `tables` lists the blocks
of each text in order, and the slot of a row is its text's line in `tables`.
"""

import importlib.util
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..sampler import MIN_TEMPERATURE, Mode, Settings, draw

_TILE_ROWS = 128  # queries times the heads that share keys, in one tile of a prefill


@dataclass(frozen=True, slots=True)
class Heads:
    """The sizes of attention."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int

    @property
    def width(self) -> int:
        """Numbers in a row of queries, keys and values side by side."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_size

    @property
    def tile_rows(self) -> int:
        """How many rows of one text a tile of a prefill holds."""
        group = self.num_heads // self.num_kv_heads
        return max(16, _TILE_ROWS >> (group - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Rotations:
    """Cosines and signed sines of every position (positions, head size)."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True)
class LayerHeads:
    """What belongs to one layer: its cache (heads, places, head size), and its head norms if it has them."""

    keys: Tensor
    values: Tensor
    q_norm: Tensor | None
    k_norm: Tensor | None
    eps: float


@dataclass(frozen=True, slots=True)
class DecodeRows:
    """One row a text: its newest token, whose keys are not in the cache yet. `num_splits` programs read each text."""

    slots: Tensor
    positions: Tensor
    tables: Tensor
    num_splits: int


@dataclass(frozen=True, slots=True)
class PromptRows:
    """Many rows a text. A tile (first row, rows, position of its first row, slot) holds adjacent rows of one text."""

    slots: Tensor
    positions: Tensor
    tables: Tensor
    tiles: Tensor


class Kernels(Protocol):
    """`x` is the residual stream, which `add_norm` changes in place."""

    def embed(
        self, ids: Tensor, sources: Tensor | None, last_ids: Tensor, table: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return the embeddings of these ids and their norm; a source of 0 or more means the id last_ids[source]."""
        ...

    def add_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Add `delta` to `x` and return the norm of the sum."""
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """Return silu of the first half of each row times the second half."""
        ...

    def decode(self, qkv: Tensor, heads: Heads, layer: LayerHeads, rotations: Rotations, rows: DecodeRows) -> Tensor:
        """Rotate queries and keys, store keys and values, attend to all tokens of each row's text up to itself."""
        ...

    def prefill(self, qkv: Tensor, heads: Heads, layer: LayerHeads, rotations: Rotations, rows: PromptRows) -> Tensor:
        """Do the same for rows of which many belong to one text."""
        ...

    def draw(self, logits: Tensor, settings: Settings, mode: Mode) -> tuple[Tensor, Tensor]:
        """Return what `sampler.draw` returns."""
        ...


def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def kernels_for(device: torch.device) -> Kernels:
    """Return the fastest kernels that run on this device."""
    return TritonKernels() if device.type == "cuda" and has_triton() else TorchKernels()


# -- plain torch -------------------------------------------------------------------------------------


class TorchKernels:
    """The reference. No operation makes the host wait for the device, so a step can be recorded as a CUDA graph."""

    def embed(
        self, ids: Tensor, sources: Tensor | None, last_ids: Tensor, table: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        if sources is not None:
            ids = torch.where(sources >= 0, last_ids[sources.clamp(min=0)], ids)
        x = F.embedding(ids, table)
        return x, F.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x.add_(delta), (x.shape[-1],), weight, eps)

    def gate(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    def decode(self, qkv: Tensor, heads: Heads, layer: LayerHeads, rotations: Rotations, rows: DecodeRows) -> Tensor:
        q = _rotate_and_store(qkv, heads, layer, rotations, rows)
        return _attend(q, heads, layer, rows, rows.tables[rows.slots])

    def prefill(self, qkv: Tensor, heads: Heads, layer: LayerHeads, rotations: Rotations, rows: PromptRows) -> Tensor:
        q = _rotate_and_store(qkv, heads, layer, rotations, rows)
        # Each row by itself, as if it were the newest of its text.
        return _attend(q, heads, layer, rows, rows.tables[rows.slots])

    def draw(self, logits: Tensor, settings: Settings, mode: Mode) -> tuple[Tensor, Tensor]:
        return draw(logits.float(), settings, mode)


def _rotate_and_store(
    qkv: Tensor, heads: Heads, layer: LayerHeads, rotations: Rotations, rows: DecodeRows | PromptRows
) -> Tensor:
    """Store keys and values in the cache; return the rotated queries (rows, heads, head size)."""
    size, count = heads.head_size, heads.num_kv_heads
    q, k, v = torch.split(qkv.view(len(qkv), -1, size), [heads.num_heads, count, count], dim=1)
    if layer.q_norm is not None:
        q = F.rms_norm(q, (size,), layer.q_norm, layer.eps)
    if layer.k_norm is not None:
        k = F.rms_norm(k, (size,), layer.k_norm, layer.eps)
    cos, sin = rotations.cos[rows.positions].unsqueeze(1), rotations.sin[rows.positions].unsqueeze(1)
    q = q * cos + torch.roll(q, size // 2, dims=-1) * sin
    k = k * cos + torch.roll(k, size // 2, dims=-1) * sin
    blocks = rows.tables[rows.slots, rows.positions // heads.block_size].long()
    places = blocks * heads.block_size + rows.positions % heads.block_size
    layer.keys.index_copy_(1, places, k.transpose(0, 1))
    layer.values.index_copy_(1, places, v.transpose(0, 1))
    return q


def _attend(q: Tensor, heads: Heads, layer: LayerHeads, rows: DecodeRows | PromptRows, tables: Tensor) -> Tensor:
    """Attend from each row to the blocks of its line of `tables`, up to its own position."""
    num_tokens = tables.shape[1] * heads.block_size
    offsets = torch.arange(heads.block_size, device=q.device)
    places = (tables.long().unsqueeze(-1) * heads.block_size + offsets).view(len(q), num_tokens)
    keys, values = layer.keys[:, places].transpose(0, 1), layer.values[:, places].transpose(0, 1)
    seen = torch.arange(num_tokens, device=q.device).unsqueeze(0) <= rows.positions.unsqueeze(1)
    by_head = q.view(len(q), heads.num_kv_heads, -1, heads.head_size)
    out = F.scaled_dot_product_attention(by_head, keys, values, attn_mask=seen[:, None, None, :])
    return out.reshape(len(q), -1)


# -- Triton ------------------------------------------------------------------------------------------

# The sizes of tiles were chosen by measurement on an H200 (benchmarks/NOTES.md).
_DECODE_TILE, _DECODE_STAGES = 64, 2
_MANY_PROGRAMS = 1024  # from here on a program of attention needs only two warps to keep the device busy
_PREFILL_TILE = 64
_CHUNK = 2048  # logits that one program of the sampler reads
_GATE_WIDTH = 1024


class TritonKernels:
    """Each method is one or two launches."""

    def __init__(self) -> None:
        from . import triton_attention, triton_norms, triton_sampling

        self._attention, self._norms, self._sampling = triton_attention, triton_norms, triton_sampling

    def embed(
        self, ids: Tensor, sources: Tensor | None, last_ids: Tensor, table: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        size = table.shape[1]
        x = torch.empty((len(ids), size), dtype=table.dtype, device=table.device)
        h = torch.empty_like(x)
        given = ids if sources is None else sources
        self._norms.embed_norm[(len(ids),)](
            ids, given, last_ids, table, weight, x, h, size, eps,
            HAS_SOURCES=sources is not None, WIDTH=power_of_two(size), num_warps=warps_for_row(size),
        )  # fmt: skip
        return x, h

    def add_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        size = x.shape[1]
        h = torch.empty_like(x)
        self._norms.add_norm[(len(x),)](
            x, delta.contiguous(), weight, h, size, eps, WIDTH=power_of_two(size), num_warps=warps_for_row(size)
        )
        return h

    def gate(self, gate_up: Tensor) -> Tensor:
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
        width = min(_GATE_WIDTH, power_of_two(size))
        self._norms.gate[(rows, -(-size // width))](gate_up, out, size, WIDTH=width, num_warps=4)
        return out

    def decode(self, qkv: Tensor, heads: Heads, layer: LayerHeads, rotations: Rotations, rows: DecodeRows) -> Tensor:
        count, size, splits = len(qkv), heads.head_size, rows.num_splits
        group = heads.num_heads // heads.num_kv_heads
        out = torch.empty((count, heads.num_heads * size), dtype=qkv.dtype, device=qkv.device)
        parts = tops = totals = out
        if splits > 1:
            parts = torch.empty((count, heads.num_heads, splits, size), dtype=torch.float32, device=qkv.device)
            tops, totals = torch.empty((2, count, heads.num_heads, splits), dtype=torch.float32, device=qkv.device)
        self._attention.decode[(count, heads.num_kv_heads, splits)](
            qkv, layer.keys, layer.values, rotations.cos, rotations.sin, rows.tables, rows.slots, rows.positions,
            layer.q_norm, layer.k_norm, out, parts, tops, totals,
            qkv.stride(0), rows.tables.stride(0), layer.keys.shape[1], size**-0.5, layer.eps,
            KV_HEADS=heads.num_kv_heads, GROUP=group, SIZE=size, BLOCK=heads.block_size, SPLITS=splits,
            GROUP_PAD=max(16, power_of_two(group)), SIZE_PAD=max(16, power_of_two(size)), TILE=_DECODE_TILE,
            HAS_NORM=layer.q_norm is not None, PRECISION=_precision(qkv),
            num_warps=2 if count * heads.num_kv_heads * splits >= _MANY_PROGRAMS else 4, num_stages=_DECODE_STAGES,
        )  # fmt: skip
        if splits > 1:
            self._attention.join[(count * heads.num_heads,)](
                parts, tops, totals, out, SIZE=size, SIZE_PAD=power_of_two(size), SPLITS=splits, num_warps=1
            )
        return out

    def prefill(self, qkv: Tensor, heads: Heads, layer: LayerHeads, rotations: Rotations, rows: PromptRows) -> Tensor:
        size, tables, num_places = heads.head_size, rows.tables, layer.keys.shape[1]
        group = heads.num_heads // heads.num_kv_heads
        # Zeros, for rows that are in no tile: they become keys of the padding block, which must not hold a NaN.
        out = torch.zeros((len(qkv), heads.num_heads * size), dtype=qkv.dtype, device=qkv.device)
        self._attention.rotate_and_store[(len(qkv),)](
            qkv, layer.keys, layer.values, rotations.cos, rotations.sin, tables, rows.slots, rows.positions,
            layer.q_norm, layer.k_norm, qkv.stride(0), tables.stride(0), num_places, layer.eps,
            HEADS=heads.num_heads, KV_HEADS=heads.num_kv_heads, SIZE=size, BLOCK=heads.block_size,
            HEADS_PAD=power_of_two(heads.num_heads), KV_PAD=power_of_two(heads.num_kv_heads),
            SIZE_PAD=power_of_two(size), HAS_NORM=layer.q_norm is not None, num_warps=4,
        )  # fmt: skip
        self._attention.prefill[(len(rows.tiles), heads.num_kv_heads)](
            qkv, layer.keys, layer.values, tables, rows.tiles, out,
            qkv.stride(0), tables.stride(0), num_places, size**-0.5,
            HEADS=heads.num_heads, GROUP=group, SIZE=size, BLOCK=heads.block_size,
            GROUP_PAD=power_of_two(group), SIZE_PAD=max(16, power_of_two(size)),
            QUERIES=heads.tile_rows, TILE=_PREFILL_TILE,
            PRECISION=_precision(qkv), num_warps=4, num_stages=2,
        )  # fmt: skip
        return out

    def draw(self, logits: Tensor, settings: Settings, mode: Mode) -> tuple[Tensor, Tensor]:
        if mode.has_filter or mode.num_top:
            return draw(logits.float(), settings, mode)
        logits = logits.contiguous()
        rows, vocab = logits.shape
        num_chunks = -(-vocab // _CHUNK)
        floats = torch.empty((3, rows, num_chunks), dtype=torch.float32, device=logits.device)
        places = torch.empty((rows, num_chunks), dtype=torch.int32, device=logits.device)
        ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
        packed = torch.empty((3, rows), dtype=torch.int32, device=logits.device)
        chunks = (floats[0], places, floats[1], floats[2])
        self._sampling.summarise[(rows, num_chunks)](
            logits, settings.temperature, *chunks, vocab, num_chunks,
            CHUNK=_CHUNK, MIN_TEMPERATURE=MIN_TEMPERATURE, num_warps=4,
        )  # fmt: skip
        self._sampling.invert[(rows,)](
            logits, settings.temperature, settings.uniform, *chunks, ids, packed, vocab, num_chunks, rows,
            CHUNK=_CHUNK, CHUNKS_PAD=power_of_two(num_chunks), MIN_TEMPERATURE=MIN_TEMPERATURE, num_warps=4,
        )  # fmt: skip
        return ids, packed


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is not below `size`."""
    return 1 << (size - 1).bit_length()


def warps_for_row(size: int) -> int:
    return min(8, max(1, power_of_two(size) // 512))


def _precision(like: Tensor) -> str:
    # Triton's default for float32 rounds the factors to ten bits.
    return "ieee" if like.dtype == torch.float32 else "tf32"
