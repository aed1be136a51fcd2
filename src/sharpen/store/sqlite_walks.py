"""Ways through the rollouts of a SQLite file in the order of a search, one window of rows at a time.

A window is a condition that an index or the row number serves, so that it costs what it spans and no more. A walk
keeps no state: the next window follows from the position reached, and may be asked for again in a smaller size.
"""

import sys
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from .base import MAX_INT, RolloutOrder
from .search import Position

ALL = MAX_INT
LIST_SIZE = 400  # rows that are fetched one by one, by their numbers


class Window(msgspec.Struct, frozen=True):
    """Some rows that follow each other in the order, and the position that is reached after them."""

    source: str
    """What to select from: the table, and the index to use."""
    where: str
    values: Sequence[Any]
    order: str
    end: Position
    size: int
    is_whole: bool = False
    """Whether it cannot be had in smaller parts."""


class Walk(Protocol):
    """One way; `after` is a position on it, None at its beginning."""

    def next(self, after: Position | None, size: int) -> Window | None: ...


class NumberWalk:
    """By the number of the row, up or down; `where` may leave rows out."""

    def __init__(
        self, order: RolloutOrder, bounds: tuple[int, int], *, is_rest: bool = False, where: str = "1"
    ) -> None:
        self._order, self._is_rest, self._where = order, is_rest, where
        self._low, self._high = bounds

    def next(self, after: Position | None, size: int) -> Window | None:
        if self._order == "oldest":
            first = self._low if after is None else max(after.number + 1, self._low)
            last = min(first + size - 1, self._high)
        else:
            last = self._high if after is None else min(after.number - 1, self._high)
            first = max(last - size + 1, self._low)
        if first > last:
            return None
        is_up = self._order == "oldest"
        return Window(
            "rollouts NOT INDEXED",
            f"number BETWEEN ? AND ? AND {self._where}",
            (first, last),
            f"number {'ASC' if is_up else 'DESC'}",
            Position(self._order, self._is_rest, 0.0, last if is_up else first),
            last - first + 1,
        )


class FinishWalk:
    """By the order of finishing, the last first, over the given phases."""

    def __init__(self, phases: Sequence[str], finished: int) -> None:
        self._phases, self._finished = phases, finished

    def next(self, after: Position | None, size: int) -> Window | None:
        last = self._finished if after is None else min(int(after.value) - 1, self._finished)
        if last < 1 or not self._phases:
            return None
        first = max(last - size + 1, 1)
        marks = ",".join("?" for _ in self._phases)
        return Window(
            "rollouts INDEXED BY rollouts_place",
            f"phase IN ({marks}) AND place BETWEEN ? AND ?",
            (*self._phases, first, last),
            "place DESC",
            Position("finished", is_rest=False, value=float(first), number=0),
            last - first + 1,
        )


class RewardWalk:
    """By reward, over its index. Many rollouts may share a reward: those are taken by their numbers."""

    SOURCE = "rollouts INDEXED BY rollouts_reward"

    def __init__(self, sql: Any, order: RolloutOrder) -> None:
        self._sql, self._order = sql, order
        is_up = order == "reward_low"
        self._way, self._beyond, self._best = ("ASC", ">", "min") if is_up else ("DESC", "<", "max")
        self._back = "<=" if is_up else ">="
        self._first, self._last = (0, ALL) if is_up else (ALL, 0)

    def next(self, after: Position | None, size: int) -> Window | None:
        if after is not None and after.number != self._last:
            return self._same_reward(after, size)
        return self._other_rewards(None if after is None else after.value, size)

    def _same_reward(self, after: Position, size: int) -> Window:
        """What is left of the rollouts with this reward, or the next of them."""
        where, values = f"reward = ? AND number {self._beyond} ?", (after.value, after.number)
        bound = self._bound(where, values, size)
        if bound is None:
            return self._window(where, values, Position(self._order, False, after.value, self._last), size)
        where = f"{where} AND number {self._back} ?"
        return self._window(where, (*values, bound[1]), Position(self._order, False, after.value, bound[1]), size)

    def _other_rewards(self, reward: float | None, size: int) -> Window | None:
        where, values = "reward IS NOT NULL", tuple[Any, ...]()
        if reward is not None:
            where, values = f"reward {self._beyond} ?", (reward,)
        (best,) = self._sql(f"SELECT {self._best}(reward) FROM {self.SOURCE} WHERE {where}", values).fetchone()
        if best is None:
            return None
        bound = self._bound(where, values, size)
        if bound is None:
            (worst,) = self._sql(
                f"SELECT {'max' if self._best == 'min' else 'min'}(reward) FROM {self.SOURCE} WHERE {where}", values
            ).fetchone()
            return self._window(where, values, Position(self._order, False, worst, self._last), size)
        if bound[0] == best:
            return self._same_reward(Position(self._order, False, best, self._first), size)
        where = f"{where} AND reward {'<' if self._beyond == '>' else '>'} ?"
        return self._window(where, (*values, bound[0]), Position(self._order, False, bound[0], self._first), size)

    def _bound(self, where: str, values: Sequence[Any], size: int) -> tuple[float, int] | None:
        """The last of the next `size` rollouts, None where there are fewer."""
        found: tuple[float, int] | None = self._sql(
            f"SELECT reward, number FROM {self.SOURCE} WHERE {where} "
            f"ORDER BY reward {self._way}, number {self._way} LIMIT 1 OFFSET ?",
            (*values, size - 1),
        ).fetchone()
        return found

    def _window(self, where: str, values: Sequence[Any], end: Position, size: int) -> Window:
        return Window(self.SOURCE, where, values, f"reward {self._way}, number {self._way}", end, size)


class SortedWalk:
    """By reward where the file has no index for it: all rows at once, sorted."""

    def __init__(self, order: RolloutOrder, count: int) -> None:
        self._order, self._count = order, count

    def next(self, after: Position | None, size: int) -> Window | None:
        is_up = self._order == "reward_low"
        way, beyond, last = ("ASC", ">", ALL) if is_up else ("DESC", "<", 0)
        where, values = "reward IS NOT NULL", tuple[Any, ...]()
        if after is not None:
            if after.number == last:
                return None
            where, values = f"(reward, number) {beyond} (?, ?)", (after.value, after.number)
        end = Position(self._order, False, sys.float_info.max if is_up else -sys.float_info.max, last)
        order = f"reward {way}, number {way}"
        return Window("rollouts NOT INDEXED", where, values, order, end, self._count, is_whole=True)


class ListWalk:
    """Over a few rollouts that are known by their positions."""

    def __init__(self, positions: Sequence[Position]) -> None:
        self._positions = sorted(positions, key=lambda position: position.sort_key)

    def next(self, after: Position | None, size: int) -> Window | None:
        start = 0
        if after is not None:
            start = bisect_right(self._positions, after.sort_key, key=lambda position: position.sort_key)
        part = self._positions[start : start + min(size, LIST_SIZE)]
        if not part:
            return None
        numbers = [position.number for position in part]
        where = f"number IN ({','.join('?' for _ in numbers)})"
        return Window("rollouts NOT INDEXED", where, numbers, "number", part[-1], len(part))


class Legs:
    """A walk, and after it the rest of the rollouts."""

    def __init__(self, first: Walk, rest: Walk | None) -> None:
        self._first, self._rest = first, rest

    def next(self, after: Position | None, size: int) -> Window | None:
        if after is None or not after.is_rest:
            window = self._first.next(after, size)
            if window is not None or self._rest is None:
                return window
            after = None
        return None if self._rest is None else self._rest.next(after, size)
