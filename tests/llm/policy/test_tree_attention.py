"""Attention within a tree: as of each sequence alone."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.llm.internals import FlashLayout, TokenTree, TreeAttention, token_tree

from .scenes import random_samples

SEQUENCES = [each.token_ids for each in random_samples(0, count=9)]


def queries_keys_values(tree: TokenTree) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(len(tree), heads, 8, generator=generator) for heads in (4, 2, 2))
    return q, k, v


def alone(q: Tensor, k: Tensor, v: Tensor, path: Tensor) -> Tensor:
    """The attention of one sequence, by its rows."""
    q, k, v = (each[path].transpose(0, 1)[None] for each in (q, k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1).flatten(1)


@pytest.mark.parametrize("shares", [True, False])
def test_each_row_sees_its_own_sequence_and_nothing_behind_it(shares: bool) -> None:
    tree = token_tree(SEQUENCES, shares=shares)
    assert tree.is_shared == shares
    q, k, v = queries_keys_values(tree)
    out = TreeAttention(tree)(q, k, v)
    for path in map(torch.from_numpy, tree.paths):
        torch.testing.assert_close(out[path], alone(q, k, v, path))


@pytest.mark.parametrize("shares", [True, False])
def test_lengths_say_the_same_as_masks(shares: bool) -> None:
    """What the flash kernel is given, computed by hand: causal, with the ends of queries and keys lined up."""
    tree = token_tree(SEQUENCES, shares=shares)
    q, k, v = queries_keys_values(tree)
    wanted = TreeAttention(tree)(q, k, v)
    layout = FlashLayout(tree)
    outs = []
    keys, values = layout.gathered(k), layout.gathered(v)
    lengths_q, lengths_k = layout.ends_q.diff().tolist(), layout.ends_k.diff().tolist()
    parts = zip(q.split(lengths_q), keys.split(lengths_k), values.split(lengths_k), strict=True)
    for part_q, part_k, part_v in parts:
        mask = torch.ones(len(part_q), len(part_k)).tril(len(part_k) - len(part_q)).bool()
        heads_first = (each.transpose(0, 1)[None] for each in (part_q, part_k, part_v))
        out = scaled_dot_product_attention(*heads_first, attn_mask=mask, enable_gqa=True)
        outs.append(out[0].transpose(0, 1))
    torch.testing.assert_close(torch.cat(outs).flatten(1), wanted)
    assert (layout.max_q, layout.max_k) == (max(lengths_q), max(lengths_k))
