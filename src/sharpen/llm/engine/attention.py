"""Attention over the paged cache: of new tokens to all before them, and of one token a row to its row's past."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .cache import PagedCache
from .spans import DecodeSpan


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Rows `first` to `last` of a prefill are the tokens from `start` on of one sequence; `table` are its blocks."""

    first: int
    last: int
    start: int
    table: Tensor
    mask: Tensor | None


class PrefillAttention:
    """Each span attends to its own sequence, and to nothing behind the token itself."""

    def __init__(self, cache: PagedCache, places: Tensor, spans: list[PrefillSpan]) -> None:
        self._cache, self._places, self._spans = cache, places, spans

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._cache.write(layer, self._places, k, v)
        out = torch.empty_like(q)
        for span in self._spans:
            rows = slice(span.first, span.last)
            out[rows] = self._of_span(layer, span, q[rows], k[rows], v[rows])
        return out.flatten(1)

    def _of_span(self, layer: int, span: PrefillSpan, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        if span.mask is not None:
            keys, values = self._cache.read(layer, span.table)
            end, copies = span.start + len(q), q.shape[1] // len(k)
            # With a mask and fewer heads of keys than of queries, kernels fall back to one that holds all scores.
            k = keys[:, 0, :end].repeat_interleave(copies, dim=0)
            v = values[:, 0, :end].repeat_interleave(copies, dim=0)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1).unsqueeze(0),
            k.unsqueeze(0),
            v.unsqueeze(0),
            attn_mask=span.mask,
            is_causal=span.mask is None,
            enable_gqa=q.shape[1] != len(k),
        )
        return out[0].transpose(0, 1)


def prefill_mask(start: int, end: int, device: torch.device) -> Tensor | None:
    """Which of `end` tokens each of those from `start` on sees; None for the plain causal case."""
    if start == 0:
        return None
    places = torch.arange(end, device=device)
    return places.unsqueeze(0) <= places[start:].unsqueeze(1)


class DecodeAttention:
    """One query a row, over the blocks that the spans name."""

    def __init__(
        self, cache: PagedCache, places: Tensor, positions: Tensor, tables: Tensor, spans: list[DecodeSpan]
    ) -> None:
        self._cache, self._places, self._spans = cache, places, spans
        self._tables = [tables[span.first : span.last, span.num_shared : span.num_blocks] for span in spans]
        self._shared = [tables[span.first : span.last : span.group_size, : span.num_shared] for span in spans]
        self._seen = [self._seen_in(span, positions) for span in spans]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._cache.write(layer, self._places, k, v)
        # The queries that share a head of keys stand in for a text of that length: no key is repeated.
        rows, heads = len(q), k.shape[1]
        by_head = q.view(rows, heads, -1, q.shape[2]).transpose(0, 1)
        outs = [self._of_span(layer, number, by_head) for number in range(len(self._spans))]
        out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)
        return out.transpose(0, 1).reshape(rows, -1)

    def _of_span(self, layer: int, number: int, by_head: Tensor) -> Tensor:
        span, seen = self._spans[number], self._seen[number]
        q = by_head[:, span.first : span.last]
        keys, values = self._cache.read(layer, self._tables[number])
        if span.num_shared:
            return _attend_in_two(q, *self._cache.read(layer, self._shared[number]), keys, values, seen)
        # Rows first: kernels take a mask of each row, not of each row of each head.
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1), attn_mask=seen.unsqueeze(1)
        )
        return out.transpose(0, 1)

    def _seen_in(self, span: DecodeSpan, positions: Tensor) -> Tensor:
        """Which tokens of its own blocks each row sees."""
        first, last = span.num_shared * self._cache.block_size, span.num_blocks * self._cache.block_size
        places = torch.arange(first, last, device=positions.device)
        seen = places.unsqueeze(0) <= positions[span.first : span.last].unsqueeze(1)
        return seen.unsqueeze(1)


def _attend_in_two(
    q: Tensor, keys: Tensor, values: Tensor, own_keys: Tensor, own_values: Tensor, seen: Tensor
) -> Tensor:
    """Attention to a beginning that neighbouring rows share, and to what each row has of its own.

    `q` is (heads, rows, queries, size), `keys` (heads, groups, tokens, size), `own_keys` (heads, rows, tokens, size).
    """
    heads, rows, queries, size = q.shape
    groups, shared = keys.shape[1:3]
    q = q * size**-0.5
    # All queries of a group stand against the shared keys at once: one product instead of one a row.
    scores = torch.matmul(q.reshape(heads, groups, -1, size), keys.transpose(2, 3)).view(heads, rows, queries, shared)
    own = torch.matmul(q, own_keys.transpose(2, 3)).masked_fill_(~seen, -torch.inf)
    # Both parts are one distribution; the softmax is taken in float32 as the fused kernels do.
    weights = torch.cat((scores, own), dim=-1).softmax(-1, dtype=torch.float32).to(q.dtype)
    out = torch.matmul(weights[..., :shared].reshape(heads, groups, -1, shared), values)
    return out.view(heads, rows, queries, size) + torch.matmul(weights[..., shared:], own_values)
