"""The trained weights are cut into equal shares without a gap, whatever their sizes."""

from hypothesis import given, strategies as st

from sharpen.llm.policy.ranks.pieces import Piece, buckets, pieces_of

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
