"""A search for rollouts in Redis, with a bound of effort.

Where few rollouts come into question, all of them are read and searched as rows in memory are. Otherwise they are
read in windows, in the order wanted, until the page is full or the time is over.
"""

import time
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

from ...types import RolloutPage
from ..base import MAX_INT
from ..search import (
    COUNT_SECONDS,
    MAX_COUNT,
    SEARCH_SECONDS,
    Found,
    Position,
    RolloutSearch,
    RowScan,
    body_text,
    find_page,
    make_test,
    position_of,
)
from ..tables import RolloutRow
from ..task_json import TASK
from ..transitions import FINISHED, PHASES, phases_of
from .records import Record

if TYPE_CHECKING:
    from .rollouts import RolloutTables

FEW = 2000  # rollouts that are worth reading at once
FIRST_SIZE, LARGEST_SIZE = 100, 1000


class _View:
    """A rollout whose input and metadata are decoded only where a condition asks for them."""

    __slots__ = ("_row", "_tables")

    def __init__(self, tables: "RolloutTables", row: Record) -> None:
        self._tables, self._row = tables, row

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._row, name)
        if name not in ("input", "metadata"):
            return value
        return self._tables.unpack(value, TASK if name == "input" else name)

    @property
    def record(self) -> Record:
        return self._row


class RedisSearch:
    """One search."""

    def __init__(self, tables: "RolloutTables", search: RolloutSearch, same_input_as: RolloutRow | None) -> None:
        self._tables, self._search = tables, search
        self._input = None if same_input_as is None else body_text(tables.unpack(same_input_as.input, TASK))
        self._is_wanted = make_test(search, self._input)
        self._totals = tables.totals()

    def page(self) -> RolloutPage:
        few = self._few()
        if few is None:
            return self._walk()
        scan = RowScan(self._search, few, self._see, self._input, total=self._total())
        return find_page(scan, self._search, lambda found: self._tables.public(found.row.record))

    def _see(self, row: Record) -> Found:
        worker_id = None if row.latest is None else row.latest.worker_id
        return Found(_View(self._tables, row), row.number, row.finish, worker_id)

    def _total(self) -> int | None:
        """How many match, where that is known."""
        wanted = PHASES.keys() if self._search.status_in is None else self._search.status_in
        return sum(self._totals.get(status, 0) for status in wanted) if self._search.is_plain else None

    def _few(self) -> list[Record] | None:
        """All rollouts that come into question, by their numbers, unless these are many."""
        phases = phases_of(PHASES if self._search.status_in is None else self._search.status_in)
        count = sum(self._totals.get(status, 0) for status, phase in PHASES.items() if phase in phases)
        if count > FEW:
            return None
        rows = {row.rollout_id: row for phase in phases for row in self._tables.walk(phase)}
        return sorted(rows.values(), key=lambda row: row.number)

    # -- windows -------------------------------------------------------------------------------------

    def _walk(self) -> RolloutPage:
        began, after, size = time.monotonic(), self._search.after, FIRST_SIZE
        found, examined, is_end, limit = list[Record](), 0, False, self._search.limit
        while len(found) <= limit and (after == self._search.after or time.monotonic() < began + SEARCH_SECONDS):
            window, after = self._window(after, size)
            if after is None:
                is_end = True
                break
            found += self._matching(window, after)
            examined, size = examined + len(window), min(size * 2, LARGEST_SIZE)
        total, is_exact = self._count(len(found), after, end=began + COUNT_SECONDS)
        items = found[:limit]
        if len(found) > limit:
            is_end, after = False, self._position(items[-1])
        return RolloutPage(
            [self._tables.public(row) for row in items],
            None if is_end or after is None else after.cursor(),
            total,
            is_exact,
            examined,
            is_complete=is_end or len(items) >= limit,
        )

    def _matching(self, window: list[Record], after: Position) -> list[Record]:
        """The rows that are wanted, of those in the part of the order that is walked: its rest, or not."""
        rows = (row for row in window if self._position(row).is_rest == after.is_rest)
        return [row for row in rows if self._is_wanted(self._see(row))]

    def _count(self, known: int, after: Position | None, *, end: float) -> tuple[int | None, bool]:
        """All that match, up to a bound of number and time; those before `after` are known."""
        total = self._total()
        if total is not None:
            return total, True
        if self._search.after is not None or (after is not None and known <= self._search.limit):
            return None, False
        while after is not None:
            if known >= MAX_COUNT:
                return MAX_COUNT, False
            if time.monotonic() > end:
                return None, False
            window, after = self._window(after, LARGEST_SIZE)
            known += len(self._matching(window, after)) if after is not None else 0
        return known, True

    def _position(self, row: Record) -> Position:
        return position_of(self._search.order, row.number, row.reward, row.finish)

    def _window(self, after: Position | None, size: int) -> tuple[list[Record], Position | None]:
        """The next rollouts in the order, and where they end: None at the end of all."""
        order = self._search.order
        if order in ("newest", "oldest"):
            rows = self._by_number(after, size)
            return rows, self._position(rows[-1]) if rows else None
        if after is None or not after.is_rest:
            rows = self._by_finish(after, size) if order == "finished" else self._by_reward(after, size)
            if rows:
                return rows, self._position(rows[-1])
            return [], Position(order, is_rest=True, value=0.0, number=MAX_INT)
        rows = self._by_number(after, size)
        return rows, Position(order, is_rest=True, value=0.0, number=rows[-1].number) if rows else None

    def _by_number(self, after: Position | None, size: int) -> list[Record]:
        if self._search.order == "oldest":
            return self._tables.by_score("numbers", "-inf" if after is None else f"({after.number}", "+inf", size)
        high = "+inf" if after is None else f"({after.number}"
        return self._tables.by_score("numbers", "-inf", high, size, reverse=True)

    def _by_finish(self, after: Position | None, size: int) -> list[Record]:
        high = "+inf" if after is None else f"({after.value:.0f}"
        wanted = FINISHED if self._search.status_in is None else FINISHED & self._search.status_in
        rows = [row for phase in wanted for row in self._tables.by_score(phase, "-inf", high, size, reverse=True)]
        return sorted(rows, key=lambda row: -row.finish)[:size]

    def _by_reward(self, after: Position | None, size: int) -> list[Record]:
        is_high = self._search.order == "reward_high"
        if after is None:
            return self._tables.page("rewards", 0, size, reverse=is_high)
        rank = self._reward_rank(after, is_high=is_high)
        if not is_high:
            return self._tables.page("rewards", rank, size)
        return self._tables.page("rewards", max(rank - size, 0), min(size, rank))[::-1]

    def _reward_rank(self, after: Position, *, is_high: bool) -> int:
        """Where in the order of rewards the position is, also when its rollout has moved since."""
        connection, key = self._tables.connection, self._tables.connection.key("rewards")
        value, member = repr(after.value), b"%015d" % after.number
        low, high = connection.at_once(("ZCOUNT", key, "-inf", f"({value}"), ("ZCOUNT", key, "-inf", value))
        find = bisect_left if is_high else bisect_right
        ranks = range(low, high)
        return int(low) + find(ranks, member, key=lambda rank: connection.at_once(("ZRANGE", key, rank, rank))[0][0])
