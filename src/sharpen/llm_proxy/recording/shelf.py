"""Where the exchanges of a record stand, by request, and who has used which of them."""

from collections import OrderedDict, deque
from collections.abc import Sequence

from .exchanges import Exchange

Attempt = tuple[str | None, str | None]
MAX_PARTNERS = 10_000


class Shelf:
    """The exchanges of a record, or of one rollout in it, in the order in which they were asked for."""

    def __init__(self, record: Sequence[Exchange], rollout_id: str | None = None) -> None:
        found: list[tuple[float, int]] = []
        self._attempts: dict[int, Attempt] = {}
        keys: dict[int, str] = {}
        for index, exchange in enumerate(record):
            if rollout_id is None or exchange.rollout_id == rollout_id:
                found.append((exchange.time, index))
                keys[index] = exchange.key
                self._attempts[index] = exchange.rollout_id, exchange.attempt_id
        self.order = [index for _, index in sorted(found)]
        self._by_key: dict[str, list[int]] = {}
        for index in self.order:
            self._by_key.setdefault(keys[index], []).append(index)

    def __len__(self) -> int:
        return len(self.order)

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def with_key(self, key: str) -> list[int]:
        return self._by_key.get(key, [])

    def attempt_of(self, index: int) -> Attempt:
        return self._attempts[index]


class _Pile:
    """The exchanges of one request, by the attempt that made them and all together; each is taken once.

    One that was taken from a line is left in the other, and passed over when it comes to its front.
    """

    def __init__(self, shelf: Shelf, key: str) -> None:
        self._all = deque(shelf.with_key(key))
        self._by_attempt: dict[Attempt, deque[int]] = {}
        for index in self._all:
            self._by_attempt.setdefault(shelf.attempt_of(index), deque()).append(index)
        self._taken: set[int] = set()

    def take(self, wanted: Sequence[Attempt]) -> int | None:
        """Of the first of these attempts that has one left; else the first of all."""
        for line in (*(self._by_attempt.get(each) for each in wanted), self._all):
            while line:
                index = line.popleft()
                if index not in self._taken:
                    self._taken.add(index)
                    return index
                self._taken.discard(index)  # it stood in two lines, and has now left both
        return None


class Reader:
    """Takes exchanges from a shelf, each once, at a cost that does not grow with their number."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._piles: dict[str, _Pile] = {}
        self._partners: OrderedDict[Attempt, Attempt] = OrderedDict()

    def take(self, key: str, attempt: Attempt | None) -> int | None:
        """The next one with this key: the attempt's own, else of the attempt it was answered from, else the first."""
        if key not in self._piles:
            self._piles[key] = _Pile(self._shelf, key)
        wanted = [] if attempt is None else [attempt, self._partners.get(attempt, attempt)]
        index = self._piles[key].take(wanted)
        if attempt is not None and index is not None:
            self._remember(attempt, self._shelf.attempt_of(index))
        return index

    def _remember(self, attempt: Attempt, partner: Attempt) -> None:
        self._partners[attempt] = partner
        self._partners.move_to_end(attempt)
        if len(self._partners) > MAX_PARTNERS:
            self._partners.popitem(last=False)
