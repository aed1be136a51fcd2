"""The trained weights are cut into equal shares without a gap, whatever their sizes."""

import torch
from hypothesis import given, strategies as st

from tests.llm.internals import Piece, buckets, pieces_of, row_pieces

SIZES = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 50), min_size=1)


@given(SIZES, st.integers(1, 5))
def test_shares_are_equal_and_leave_nothing_out(sizes: dict[str, int], num_ranks: int) -> None:
    pieces = pieces_of(sizes, num_ranks)
    found = [(name, each) for name, start, end, _ in pieces for each in range(start, end)]
    assert found == [(name, each) for name, size in sizes.items() for each in range(size)]
    shares = [sum(piece.size for piece in pieces if piece.owner == rank) for rank in range(num_ranks)]
    assert max(shares) - min(shares) <= 1
    assert len({(piece.name, piece.owner) for piece in pieces}) == len(pieces)


@given(SIZES, st.integers(1, 5), st.integers(1, 20))
def test_buckets_hold_everything_once_and_are_not_too_large(sizes: dict[str, int], num_ranks: int, most: int) -> None:
    pieces = pieces_of(sizes, num_ranks)
    found: list[Piece] = []
    for owner, bucket in buckets(pieces, lambda name: name in "abc", most=most):
        assert sum(piece.size for piece in bucket) <= most
        assert {piece.owner for piece in bucket} == {owner}
        assert len({piece.name in "abc" for piece in bucket}) == 1
        found += bucket
    assert sorted((name, each, owner) for name, start, end, owner in found for each in range(start, end)) == sorted(
        (name, each, owner) for name, start, end, owner in pieces for each in range(start, end)
    )


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(1, 7), min_size=1, max_size=3)), st.integers(1, 5))
def test_rows_are_cut_as_torch_cuts_them(shapes: dict[str, list[int]], num_ranks: int) -> None:
    pieces = row_pieces(shapes, num_ranks)
    for name, shape in shapes.items():
        whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
        for rank, chunk in enumerate(torch.chunk(whole, num_ranks)):
            (own,) = [each for each in pieces if (each.name, each.owner) == (name, rank)]
            assert chunk.flatten().tolist() == list(range(own.start, own.end))
    assert sum(each.size for each in pieces) == sum(torch.Size(shape).numel() for shape in shapes.values())
