"""Attention over the paged cache in plain torch, on exactly the rows and blocks in use: how the CPU does it."""

from collections import defaultdict
from collections.abc import Sequence as Many
from dataclasses import dataclass
from itertools import takewhile

import torch
import torch.nn.functional as F
from torch import Tensor

from .request import Sequence

# Reading a shared beginning separately costs about fifteen small operations a layer; below this it is not worth it.
MIN_SAVED_TOKENS = 512


class PagedCache:
    """The keys and values of all tokens: one tensor of each per layer, (heads, blocks x tokens of a block, head size).

    For each head a block is contiguous in memory, and blocks are gathered head by head: products over them need no
    copy. Blocks are numbered from 1; block 0 takes the rows that only pad a batch.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size, self.num_heads, self.head_size = block_size, num_heads, head_size
        shape = (num_layers, num_heads, (num_blocks + 1) * block_size, head_size)
        # Zeros, not empty memory: what lies after the live part is masked, but a NaN there would spread.
        self._all = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)]
        self.keys, self.values = (list(each.unbind()) for each in self._all)

    def write(self, layer: int, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write keys and values (tokens, heads, head size) to these places (block x block size + offset)."""
        self.keys[layer].index_copy_(1, places, keys.transpose(0, 1))
        self.values[layer].index_copy_(1, places, values.transpose(0, 1))

    def read(self, layer: int, tables_B_N: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of the blocks in each row of the tables: (heads, rows, tokens, head size)."""
        rows, num_blocks = tables_B_N.shape
        shape = (self.num_heads, rows, num_blocks * self.block_size, self.head_size)
        chosen = tables_B_N.reshape(-1)
        keys = self._blocks(self.keys[layer]).index_select(1, chosen).view(shape)
        values = self._blocks(self.values[layer]).index_select(1, chosen).view(shape)
        return keys, values

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        """Copy whole blocks, given as (from, to)."""
        if not pairs:
            return
        sources, targets = torch.tensor(pairs).to(self.keys[0].device, non_blocking=True).unbind(1)
        for layers in self._all:
            blocks = layers.view(-1, layers.shape[2] // self.block_size, self.block_size * self.head_size)
            blocks.index_copy_(1, targets, blocks.index_select(1, sources))

    def _blocks(self, tensor: Tensor) -> Tensor:
        return tensor.view(self.num_heads, -1, self.block_size * self.head_size)


# -- prefill ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Rows `first` to `last` of a prefill are the tokens of one sequence from `start` on; `table` holds its blocks."""

    first: int
    last: int
    start: int
    table: Tensor
    mask: Tensor | None


class PrefillAttention:
    """Attention in a prefill: each token attends to its own sequence up to itself."""

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
            # With a mask and fewer key heads than query heads, torch falls back to a kernel that stores all scores.
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
    """Return which of `end` tokens each token from `start` on attends to; None for the plain causal case."""
    if start == 0:
        return None
    places = torch.arange(end, device=device)
    return places.unsqueeze(0) <= places[start:].unsqueeze(1)


# -- decode -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DecodeSpan:
    """Rows `first` to `last` read the blocks of their tables up to `num_blocks`.

    If `num_shared` is not 0, each `group_size` adjacent rows have that many first blocks in common.
    """

    first: int
    last: int
    num_blocks: int
    num_shared: int = 0
    group_size: int = 1


def arrange_rows(sequences: Many[Sequence], block_size: int) -> tuple[list[Sequence], tuple[DecodeSpan, ...]]:
    """Return the sequences in the order of their rows, and the spans of these rows.

    The order makes attention read as little of the cache as possible: rows whose texts begin with the same blocks are
    adjacent, and those blocks are read once for all of them. The others are sorted by length, so that a long text does
    not make the short ones read more.
    """
    groups, rest = _groups(sequences, block_size)
    classes: dict[tuple[int, int], list[list[Sequence]]] = defaultdict(list)
    for group, num_shared in groups:
        classes[len(group), num_shared].append(group)
    rows: list[Sequence] = []
    spans: list[DecodeSpan] = []
    for (size, num_shared), members in sorted(classes.items(), key=lambda each: each[0]):
        first = len(rows)
        rows.extend(sequence for group in members for sequence in group)
        num_blocks = max(len(each.blocks) for each in rows[first:])
        spans.append(DecodeSpan(first, len(rows), num_blocks, num_shared, size))
    rest = sorted(rest, key=lambda each: len(each.blocks))
    spans.extend(_spans_by_length([len(each.blocks) for each in rest], first=len(rows)))
    return [*rows, *rest], tuple(spans)


class DecodeAttention:
    """Attention in a decode step: one query for each row, over the blocks of its span."""

    def __init__(
        self, cache: PagedCache, places: Tensor, positions: Tensor, tables: Tensor, spans: list[DecodeSpan]
    ) -> None:
        self._cache, self._places, self._spans = cache, places, spans
        self._tables = [tables[span.first : span.last, span.num_shared : span.num_blocks] for span in spans]
        self._shared = [tables[span.first : span.last : span.group_size, : span.num_shared] for span in spans]
        self._seen = [self._seen_in(span, positions) for span in spans]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self._cache.write(layer, self._places, k, v)
        # The queries that share a key head are treated as a text of that length: no key is repeated.
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
            return _attend_in_two_parts(q, *self._cache.read(layer, self._shared[number]), keys, values, seen)
        # Rows first: kernels take a mask for each row, not for each row of each head.
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1), attn_mask=seen.unsqueeze(1)
        )
        return out.transpose(0, 1)

    def _seen_in(self, span: DecodeSpan, positions: Tensor) -> Tensor:
        """Return which tokens of its own blocks each row attends to."""
        first, last = span.num_shared * self._cache.block_size, span.num_blocks * self._cache.block_size
        places = torch.arange(first, last, device=positions.device)
        seen = places.unsqueeze(0) <= positions[span.first : span.last].unsqueeze(1)
        return seen.unsqueeze(1)


def _attend_in_two_parts(
    q: Tensor, keys: Tensor, values: Tensor, own_keys: Tensor, own_values: Tensor, seen: Tensor
) -> Tensor:
    """Attend to a beginning that adjacent rows share, and to the rest of each row.

    `q` is (heads, rows, queries, size), `keys` (heads, groups, tokens, size), `own_keys` (heads, rows, tokens, size).
    """
    heads, rows, queries, size = q.shape
    groups, shared = keys.shape[1:3]
    q = q * size**-0.5
    # All queries of a group meet the shared keys at once: one product instead of one for each row.
    scores = torch.matmul(q.reshape(heads, groups, -1, size), keys.transpose(2, 3)).view(heads, rows, queries, shared)
    own = torch.matmul(q, own_keys.transpose(2, 3)).masked_fill_(~seen, -torch.inf)
    # Both parts are one distribution; the softmax is taken in float32 as the fused kernels do.
    weights = torch.cat((scores, own), dim=-1).softmax(-1, dtype=torch.float32).to(q.dtype)
    out = torch.matmul(weights[..., :shared].reshape(heads, groups, -1, shared), values)
    return out.view(heads, rows, queries, size) + torch.matmul(weights[..., shared:], own_values)


def _spans_by_length(lengths: list[int], *, first: int) -> list[DecodeSpan]:
    spans: list[DecodeSpan] = []
    begin = 0
    for end in range(1, len(lengths) + 1):
        # A span ends where the next row would make its first one read more than twice as much and eight blocks more.
        if end == len(lengths) or lengths[end] > 2 * lengths[begin] + 8:
            spans.append(DecodeSpan(first + begin, first + end, lengths[end - 1]))
            begin = end
    return spans


def _groups(sequences: Many[Sequence], block_size: int) -> tuple[list[tuple[list[Sequence], int]], list[Sequence]]:
    """Return groups with a common beginning and its number of blocks, and the sequences without a group."""
    ordered = sorted(sequences, key=lambda each: each.blocks)
    groups: list[tuple[list[Sequence], int]] = []
    for sequence in ordered:
        if groups:
            group, shared = groups[-1]
            common = _num_common(group[0], sequence, at_most=shared)
            # Another row is worth it if the group then still saves as much as without it.
            if common and len(group) * common >= (len(group) - 1) * shared:
                group.append(sequence)
                groups[-1] = (group, common)
                continue
        groups.append(([sequence], len(sequence.blocks)))
    saved = sum((len(group) - 1) * shared for group, shared in groups) * block_size
    if saved < MIN_SAVED_TOKENS:
        return [], ordered
    alone = [group[0] for group, _ in groups if len(group) == 1]
    return [each for each in groups if len(each[0]) > 1], alone


def _num_common(one: Sequence, other: Sequence, *, at_most: int) -> int:
    pairs = zip(one.blocks[:at_most], other.blocks, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
