"""Where the exchanges of a record stand, by request, and who has used which of them."""

from collections import OrderedDict
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


class Reader:
    """Takes exchanges from a shelf, each once."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._left: dict[str, list[int]] = {}
        self._partners: OrderedDict[Attempt, Attempt] = OrderedDict()

    def take(self, key: str, attempt: Attempt | None) -> int | None:
        """The next one with this key: the attempt's own, else of the attempt it was answered from, else the first."""
        if key not in self._left:
            self._left[key] = list(self._shelf.with_key(key))
        left = self._left[key]
        if not left:
            return None
        index = self._choose(left, attempt)
        left.remove(index)
        if attempt is not None:
            self._remember(attempt, self._shelf.attempt_of(index))
        return index

    def _choose(self, left: list[int], attempt: Attempt | None) -> int:
        if attempt is None:
            return left[0]
        for wanted in (attempt, self._partners.get(attempt)):
            for index in left:
                if self._shelf.attempt_of(index) == wanted:
                    return index
        return left[0]

    def _remember(self, attempt: Attempt, partner: Attempt) -> None:
        self._partners[attempt] = partner
        self._partners.move_to_end(attempt)
        if len(self._partners) > MAX_PARTNERS:
            self._partners.popitem(last=False)
