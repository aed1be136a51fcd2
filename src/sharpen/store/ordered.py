"""A sorted set of integers with cheap changes at both ends, for paging through rollouts of one status."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

CHUNK = 1024


class OrderedNumbers:
    """Numbers in ascending order, kept in chunks so that no change moves more than one of them."""

    def __init__(self) -> None:
        self._chunks: list[list[int]] = []
        self._firsts: list[int] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, number: int) -> None:
        """Add a number that is not there yet."""
        self._size += 1
        if not self._chunks:
            self._chunks.append([number])
            self._firsts.append(number)
            return
        place = max(bisect_right(self._firsts, number) - 1, 0)
        chunk = self._chunks[place]
        if number > chunk[-1]:
            chunk.append(number)
        else:
            insort(chunk, number)
            self._firsts[place] = chunk[0]
        if len(chunk) > CHUNK:
            half = chunk[CHUNK // 2 :]
            del chunk[CHUNK // 2 :]
            self._chunks.insert(place + 1, half)
            self._firsts.insert(place + 1, half[0])

    def remove(self, number: int) -> None:
        """Remove a number that is there."""
        place = bisect_right(self._firsts, number) - 1
        chunk = self._chunks[place]
        index = bisect_left(chunk, number)
        if chunk[index] != number:
            raise KeyError(number)
        del chunk[index]
        self._size -= 1
        if not chunk:
            del self._chunks[place], self._firsts[place]
        elif index == 0:
            self._firsts[place] = chunk[0]

    def __iter__(self) -> Iterator[int]:
        for chunk in self._chunks:
            yield from chunk

    def __reversed__(self) -> Iterator[int]:
        for chunk in reversed(self._chunks):
            yield from reversed(chunk)

    def skip(self, count: int, *, reverse: bool = False) -> Iterator[int]:
        """The numbers after the first `count`, passing over whole chunks."""
        for chunk in reversed(self._chunks) if reverse else self._chunks:
            if count >= len(chunk):
                count -= len(chunk)
                continue
            yield from chunk[::-1][count:] if reverse else chunk[count:]
            count = 0
