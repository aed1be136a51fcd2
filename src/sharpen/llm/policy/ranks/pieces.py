"""Which rank looks after which part of the trained weights: each after the same number of elements."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

BUCKET_ELEMENTS = 1 << 26
"""Elements that travel together: few enough for the memory, many enough for the speed."""


class Piece(NamedTuple):
    """The elements `start` to `end` of a flattened weight, and the rank that steps them."""

    name: str
    start: int
    end: int
    owner: int

    @property
    def size(self) -> int:
        return self.end - self.start


def pieces_of(sizes: Mapping[str, int], num_ranks: int) -> list[Piece]:
    """All weights one after the other, cut into as many equal parts as there are ranks."""
    total = sum(sizes.values())
    ends = [total * (rank + 1) // num_ranks for rank in range(num_ranks)]
    pieces: list[Piece] = []
    begin = owner = 0
    for name, size in sizes.items():
        start = 0
        while start < size:
            while ends[owner] <= begin + start:
                owner += 1
            end = min(size, ends[owner] - begin)
            pieces.append(Piece(name, start, end, owner))
            start = end
        begin += size
    return pieces


def row_pieces(shapes: Mapping[str, Sequence[int]], num_ranks: int) -> list[Piece]:
    """Each weight cut by its rows, as `fully_shard` does it: every rank has as many, the last ones what is left."""
    pieces: list[Piece] = []
    for name, shape in shapes.items():
        rows, row_size = shape[0], math.prod(shape[1:])
        count = -(-rows // num_ranks)
        for rank in range(num_ranks):
            start, end = min(rank * count, rows), min((rank + 1) * count, rows)
            if end > start:
                pieces.append(Piece(name, start * row_size, end * row_size, rank))
    return pieces


def buckets(
    pieces: Iterable[Piece], kind: Callable[[str], Any], *, most: int | None = None
) -> Iterator[tuple[int, list[Piece]]]:
    """Pieces that travel together, with their owner: of one kind of weights, and not too many elements."""
    most = most or BUCKET_ELEMENTS

    def destination(piece: Piece) -> tuple[int, str]:
        return piece.owner, str(kind(piece.name))

    for (owner, _), group in groupby(sorted(pieces, key=destination), key=destination):
        bucket: list[Piece] = []
        room = most
        for piece in _cut(list(group), most):
            if piece.size > room and bucket:
                yield owner, bucket
                bucket, room = [], most
            bucket.append(piece)
            room -= piece.size
        yield owner, bucket


def _cut(pieces: Sequence[Piece], most: int) -> Iterator[Piece]:
    for piece in pieces:
        for start in range(piece.start, piece.end, most):
            yield piece._replace(start=start, end=min(start + most, piece.end))
