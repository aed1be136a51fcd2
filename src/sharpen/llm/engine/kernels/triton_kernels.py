"""The kernels in Triton. The sizes of tiles were chosen by measurement on an H200 (benchmarks/NOTES.md)."""

import torch
from torch import Tensor

from .. import sampler
from ..sampler import Mode, Settings
from . import triton_decode, triton_norms, triton_prefill, triton_sampling
from .kernels import DecodeRows, Heads, LayerHeads, PromptRows, Rotations

_DECODE_TILE, _DECODE_STAGES = 64, 2
_MANY_PROGRAMS = 1024  # from here on a program of attention needs no more than two warps to keep the device busy
_PREFILL_TILE = 64
_CHUNK = 2048  # logits that one program of the sampler looks at
_GATE_WIDTH = 1024


class TritonKernels:
    """Each method is one or two launches."""

    def embed(
        self, ids: Tensor, sources: Tensor | None, last_ids: Tensor, table: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        size = table.shape[1]
        x = torch.empty((len(ids), size), dtype=table.dtype, device=table.device)
        h = torch.empty_like(x)
        given = ids if sources is None else sources
        triton_norms.embed_norm[(len(ids),)](
            ids, given, last_ids, table, weight, x, h, size, eps,
            HAS_SOURCES=sources is not None, WIDTH=_power(size), num_warps=_row_warps(size),
        )  # fmt: skip
        return x, h

    def add_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        size = x.shape[1]
        h = torch.empty_like(x)
        triton_norms.add_norm[(len(x),)](
            x, delta.contiguous(), weight, h, size, eps, WIDTH=_power(size), num_warps=_row_warps(size)
        )
        return h

    def gate(self, gate_up: Tensor) -> Tensor:
        rows, size = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device)
        width = min(_GATE_WIDTH, _power(size))
        triton_norms.gate[(rows, -(-size // width))](gate_up, out, size, WIDTH=width, num_warps=4)
        return out

    def decode(self, qkv: Tensor, heads: Heads, layer: LayerHeads, turn: Rotations, rows: DecodeRows) -> Tensor:
        count, size, splits = len(qkv), heads.head_size, rows.num_splits
        group = heads.num_heads // heads.num_kv_heads
        out = torch.empty((count, heads.num_heads * size), dtype=qkv.dtype, device=qkv.device)
        parts = tops = totals = out
        if splits > 1:
            parts = torch.empty((count, heads.num_heads, splits, size), dtype=torch.float32, device=qkv.device)
            tops, totals = torch.empty((2, count, heads.num_heads, splits), dtype=torch.float32, device=qkv.device)
        triton_decode.decode[(count, heads.num_kv_heads, splits)](
            qkv, layer.keys, layer.values, turn.cos, turn.sin, rows.tables, rows.slots, rows.positions,
            layer.q_norm, layer.k_norm, out, parts, tops, totals,
            qkv.stride(0), rows.tables.stride(0), layer.keys.shape[1], size**-0.5, layer.eps,
            KV_HEADS=heads.num_kv_heads, GROUP=group, SIZE=size, BLOCK=heads.block_size, SPLITS=splits,
            GROUP_PAD=max(16, _power(group)), SIZE_PAD=max(16, _power(size)), TILE=_DECODE_TILE,
            HAS_NORM=layer.q_norm is not None, PRECISION=_precision(qkv),
            num_warps=2 if count * heads.num_kv_heads * splits >= _MANY_PROGRAMS else 4, num_stages=_DECODE_STAGES,
        )  # fmt: skip
        if splits > 1:
            triton_decode.join[(count * heads.num_heads,)](
                parts, tops, totals, out, SIZE=size, SIZE_PAD=_power(size), SPLITS=splits, num_warps=1
            )
        return out

    def prefill(self, qkv: Tensor, heads: Heads, layer: LayerHeads, turn: Rotations, rows: PromptRows) -> Tensor:
        size, tables, num_places = heads.head_size, rows.tables, layer.keys.shape[1]
        group = heads.num_heads // heads.num_kv_heads
        # Zeros, for rows that are in no tile: they go on to be keys of the block of nobody, where no NaN may be.
        out = torch.zeros((len(qkv), heads.num_heads * size), dtype=qkv.dtype, device=qkv.device)
        triton_prefill.turn_and_store[(len(qkv),)](
            qkv, layer.keys, layer.values, turn.cos, turn.sin, tables, rows.slots, rows.positions,
            layer.q_norm, layer.k_norm, qkv.stride(0), tables.stride(0), num_places, layer.eps,
            HEADS=heads.num_heads, KV_HEADS=heads.num_kv_heads, SIZE=size, BLOCK=heads.block_size,
            HEADS_PAD=_power(heads.num_heads), KV_PAD=_power(heads.num_kv_heads), SIZE_PAD=_power(size),
            HAS_NORM=layer.q_norm is not None, num_warps=4,
        )  # fmt: skip
        triton_prefill.prefill[(len(rows.tiles), heads.num_kv_heads)](
            qkv, layer.keys, layer.values, tables, rows.tiles, out,
            qkv.stride(0), tables.stride(0), num_places, size**-0.5,
            HEADS=heads.num_heads, GROUP=group, SIZE=size, BLOCK=heads.block_size,
            GROUP_PAD=_power(group), SIZE_PAD=max(16, _power(size)), QUERIES=heads.tile_rows, TILE=_PREFILL_TILE,
            PRECISION=_precision(qkv), num_warps=4, num_stages=2,
        )  # fmt: skip
        return out

    def draw(self, logits: Tensor, settings: Settings, mode: Mode) -> tuple[Tensor, Tensor]:
        if mode.has_filter or mode.num_top:
            return sampler.draw(logits.float(), settings, mode)
        logits = logits.contiguous()
        rows, vocab = logits.shape
        num_chunks = -(-vocab // _CHUNK)
        floats = torch.empty((3, rows, num_chunks), dtype=torch.float32, device=logits.device)
        places = torch.empty((rows, num_chunks), dtype=torch.int32, device=logits.device)
        ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
        packed = torch.empty((3, rows), dtype=torch.int32, device=logits.device)
        chunks = (floats[0], places, floats[1], floats[2])
        triton_sampling.summarise[(rows, num_chunks)](
            logits, settings.temperature, *chunks, vocab, num_chunks,
            CHUNK=_CHUNK, MIN_TEMPERATURE=sampler.MIN_TEMPERATURE, num_warps=4,
        )  # fmt: skip
        triton_sampling.invert[(rows,)](
            logits, settings.temperature, settings.uniform, *chunks, ids, packed, vocab, num_chunks, rows,
            CHUNK=_CHUNK, CHUNKS_PAD=_power(num_chunks), MIN_TEMPERATURE=sampler.MIN_TEMPERATURE, num_warps=4,
        )  # fmt: skip
        return ids, packed


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _row_warps(size: int) -> int:
    return min(8, max(1, _power(size) // 512))


def _precision(like: Tensor) -> str:
    # Triton's default for float32 rounds the factors to ten bits.
    return "ieee" if like.dtype == torch.float32 else "tf32"
