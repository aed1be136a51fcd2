"""The kernels in plain torch: what they compute, for devices without Triton and to hold the Triton ones against."""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..sampler import Mode, Settings, draw
from .kernels import DecodeRows, Heads, LayerHeads, PromptRows, Rotations


class TorchKernels:
    """Nothing here makes the host wait, so a step can be recorded."""

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

    def decode(self, qkv: Tensor, heads: Heads, layer: LayerHeads, turn: Rotations, rows: DecodeRows) -> Tensor:
        q = _turned_and_stored(qkv, heads, layer, turn, rows)
        return _attend(q, heads, layer, rows, rows.tables[rows.slots])

    def prefill(self, qkv: Tensor, heads: Heads, layer: LayerHeads, turn: Rotations, rows: PromptRows) -> Tensor:
        q = _turned_and_stored(qkv, heads, layer, turn, rows)
        # Each row by itself, as if it were the newest of its text.
        return _attend(q, heads, layer, rows, rows.tables[rows.slots])

    def draw(self, logits: Tensor, settings: Settings, mode: Mode) -> tuple[Tensor, Tensor]:
        return draw(logits.float(), settings, mode)


def _turned_and_stored(
    qkv: Tensor, heads: Heads, layer: LayerHeads, turn: Rotations, rows: DecodeRows | PromptRows
) -> Tensor:
    """Store keys and values where they belong; the queries (rows, heads, head size)."""
    size, count = heads.head_size, heads.num_kv_heads
    q, k, v = torch.split(qkv.view(len(qkv), -1, size), [heads.num_heads, count, count], dim=1)
    if layer.q_norm is not None:
        q = F.rms_norm(q, (size,), layer.q_norm, layer.eps)
    if layer.k_norm is not None:
        k = F.rms_norm(k, (size,), layer.k_norm, layer.eps)
    cos, sin = turn.cos[rows.positions].unsqueeze(1), turn.sin[rows.positions].unsqueeze(1)
    q = q * cos + torch.roll(q, size // 2, dims=-1) * sin
    k = k * cos + torch.roll(k, size // 2, dims=-1) * sin
    blocks = rows.tables[rows.slots, rows.positions // heads.block_size].long()
    places = blocks * heads.block_size + rows.positions % heads.block_size
    layer.keys.index_copy_(1, places, k.transpose(0, 1))
    layer.values.index_copy_(1, places, v.transpose(0, 1))
    return q


def _attend(q: Tensor, heads: Heads, layer: LayerHeads, rows: DecodeRows | PromptRows, tables: Tensor) -> Tensor:
    """Attention of each row to the blocks of its line of `tables`, up to its own position."""
    num_tokens = tables.shape[1] * heads.block_size
    offsets = torch.arange(heads.block_size, device=q.device)
    places = (tables.long().unsqueeze(-1) * heads.block_size + offsets).view(len(q), num_tokens)
    keys, values = layer.keys[:, places].transpose(0, 1), layer.values[:, places].transpose(0, 1)
    seen = torch.arange(num_tokens, device=q.device).unsqueeze(0) <= rows.positions.unsqueeze(1)
    by_head = q.view(len(q), heads.num_kv_heads, -1, heads.head_size)
    out = F.scaled_dot_product_attention(by_head, keys, values, attn_mask=seen[:, None, None, :])
    return out.reshape(len(q), -1)
