"""The search for rollouts in an SQL database, as a scan whose every part is bounded.

Where an index leads to few rollouts, their positions are collected and sorted; otherwise rows are read in the order of
the search. A part is a window: a condition that an index or the row number serves, so that it costs what it spans and
no more. One that takes too long is broken off and asked for again in a smaller size.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ..base import MAX_INT, RolloutOrder
from ..search import FIRST_SIZE, LARGEST_SIZE, Position, RolloutSearch, ScanPage, position_of
from ..tables import RolloutRow
from ..transitions import FINISHED, PHASES, phases_of
from .rows import NUMBER_AT, REWARD_AT, Condition, Row, findable, joined, marks

if TYPE_CHECKING:
    from .tables import SQLTables

FEW = 30_000  # rollouts that are worth sorting
FEW_BY_NUMBER = 10_000  # where they need not be: among more of them, reading on finds a page as soon
WINDOW_SECONDS = 0.05
LIST_SIZE = 400  # rows that are fetched one by one, by their numbers


class Source(msgspec.Struct, frozen=True):
    """Rollouts that an index leads to: what to select from, and the condition that the index serves."""

    table: str
    where: str
    values: Sequence[Any] = ()


class Window(msgspec.Struct, frozen=True):
    """Rollouts that follow each other in the order of a search, and the position after them."""

    source: Source
    order: str
    """What to sort by; a list of numbers is sorted when it has been read."""
    end: Position
    size: int


class Way(Protocol):
    """Rollouts in the order of a search, as one index has them: those with what the order goes by, or the rest."""

    is_rest: bool

    def next(self, after: Position | None, size: int) -> Window | None:
        """The next window after a position on this way, None for its beginning."""
        ...


class SQLScan:
    """The rollouts of a database in the order of one search; see `RolloutScan`."""

    def __init__(self, tables: "SQLTables", search: RolloutSearch, same_input_as: RolloutRow | None) -> None:
        self._tables, self._search = tables, search
        tables.begin_search()
        self._wanted = joined(_conditions(tables, search, same_input_as))
        self._ways = list(self._choose_ways())

    def next(self, after: Position | None, size: int, limit: int) -> ScanPage[Row] | None:
        window = self._window(after, size)
        if window is None:
            return ScanPage[Row]([], None, 0)
        is_sorted = bool(window.order)
        order = f" ORDER BY {window.order} LIMIT {limit}" if is_sorted else ""
        found = self._select(self._tables.columns, window, order, None if window.size <= 1 else WINDOW_SECONDS)
        if found is None:
            return None
        if not is_sorted:
            found.sort(key=lambda values: self.position(values).sort_key)
        return ScanPage(found[:limit], window.end, window.size)

    def position(self, row: Row) -> Position:
        return position_of(self._search.order, row[NUMBER_AT], row[REWARD_AT], self._tables.finish_of(row))

    def total(self) -> int | None:
        if not self._search.is_plain:
            return None
        statuses = self._search.status_in
        totals = self._tables.totals_in_time(statuses or PHASES)
        if totals is None:
            return None
        return sum(count for status, count in totals.items() if statuses is None or status in statuses)

    def count(self, most: int, seconds: float) -> int | None:
        found, after, size, end = 0, None, FIRST_SIZE, time.monotonic() + seconds
        while found < most and (window := self._window(after, size)) is not None:
            left = end - time.monotonic()
            counted = self._select("count(*)", window, "", left) if left > 0 else None
            if counted is None:
                return None
            found, after, size = found + counted[0][0], window.end, min(size * 4, LARGEST_SIZE // 4)
        return found

    def _window(self, after: Position | None, size: int) -> Window | None:
        """The next window on the way that the position is on, or on the one behind it."""
        for way in self._ways:
            if after is None or after.is_rest <= way.is_rest:
                is_begun = after is not None and after.is_rest == way.is_rest
                window = way.next(after if is_begun else None, size)
                if window is not None:
                    return window
        return None

    def _select(self, columns: str, window: Window, order: str, seconds: float | None) -> list[Row] | None:
        """The rows of the window that match; None if that takes too long."""
        source, (wanted, values) = window.source, self._wanted
        sql = f"SELECT {columns} FROM {source.table} WHERE {source.where} AND {wanted}{order}"
        return self._tables.query_in_time(sql, (*source.values, *values), seconds)

    # -- the way -------------------------------------------------------------------------------------

    def _choose_ways(self) -> Iterator[Way]:
        tables, order = self._tables, self._search.order
        for sources in self._leads():
            if (positions := self._few(sources)) is not None:
                yield from (ListWay(positions, is_rest=is_rest) for is_rest in (False, True))
                return
        low, high = (tables.query(f"SELECT {end}(number) FROM rollouts", ())[0][0] for end in ("min", "max"))
        numbers = (low or 0, high or -1)
        if order in ("newest", "oldest"):
            yield NumberWay(order, tables.by_number("1 = 1"), numbers)
        elif order == "finished":
            yield from self._by_finish(numbers)
        elif tables.has_reward_index:
            bounds = _rewards(self._search)
            yield RewardWay(tables, order, joined(bounds))
            if not bounds:
                yield NumberWay(order, tables.by_number("reward IS NULL"), numbers, is_rest=True)
        else:
            positions = self._positions([tables.by_number("1 = 1")])
            yield from (ListWay(positions, is_rest=is_rest) for is_rest in (False, True))

    def _by_finish(self, numbers: tuple[int, int]) -> Iterator[Way]:
        wanted = phases_of(self._search.status_in or PHASES)
        finished, others = (
            [phase for phase in wanted if (phase in FINISHED) == is_finished] for is_finished in (True, False)
        )
        if finished:
            yield FinishWay(self._tables, finished)
        if others:
            sources = self._tables.phase_sources(others)
            positions = None if sources is None else self._few(sources)
            unfinished = self._tables.by_number("phase IN ('queued', 'active')")
            rest = NumberWay("finished", unfinished, numbers, is_rest=True)
            yield rest if positions is None else ListWay(positions, is_rest=True)

    def _leads(self) -> Iterator[list[Source]]:
        """Conditions that indexes serve: each as sources that together give all rollouts that meet it."""
        search, tables = self._search, self._tables
        if search.group is not None and (source := tables.group_source(search.group)):
            yield [source]
        # In the order of finishing, phases are walked as they are asked for: there is nothing to collect and sort.
        is_walked = search.order == "finished" and FINISHED.issuperset(search.status_in or ())
        phases = None if search.status_in is None or is_walked else phases_of(search.status_in)
        if phases is not None and (sources := tables.phase_sources(phases)) is not None:
            yield sources
        if (rewards := _rewards(search)) and tables.has_reward_index:
            yield [tables.by_reward(*joined(rewards))]

    def _few(self, sources: Sequence[Source]) -> list[Position] | None:
        """The positions of all rollouts that the sources lead to, unless these are many."""
        left = FEW_BY_NUMBER if self._search.order in ("newest", "oldest") else FEW
        for source in sources:
            part = f"SELECT 1 FROM {source.table} WHERE {source.where} LIMIT {left + 1}"
            ((count,),) = self._tables.query(f"SELECT count(*) FROM ({part}) AS part", source.values)
            left -= count
            if left < 0:
                return None
        return self._positions(sources)

    def _positions(self, sources: Sequence[Source]) -> list[Position]:
        order = self._search.order
        is_by_number = order in ("newest", "oldest")
        columns = "number, NULL, NULL" if is_by_number else f"number, reward, {self._tables.finish_column}"
        return [
            position_of(order, number, reward, finish or 0)
            for source in sources
            for number, reward, finish in self._tables.query(
                f"SELECT {columns} FROM {source.table} WHERE {source.where}", source.values
            )
        ]


class NumberWay:
    """By the number of the row, up or down."""

    def __init__(self, order: RolloutOrder, source: Source, numbers: tuple[int, int], *, is_rest: bool = False) -> None:
        self._order, self._source, self.is_rest = order, source, is_rest
        self._low, self._high = numbers

    def next(self, after: Position | None, size: int) -> Window | None:
        is_up = self._order == "oldest"
        if is_up:
            first = self._low if after is None else max(after.number + 1, self._low)
            last = min(first + size - 1, self._high)
        else:
            last = self._high if after is None else min(after.number - 1, self._high)
            first = max(last - size + 1, self._low)
        if first > last:
            return None
        table, where = self._source.table, f"number BETWEEN ? AND ? AND {self._source.where}"
        end = Position(self._order, self.is_rest, 0.0, last if is_up else first)
        order = f"number {'ASC' if is_up else 'DESC'}"
        return Window(Source(table, where, (first, last, *self._source.values)), order, end, last - first + 1)


class FinishWay:
    """By the order of finishing, the last first, over the given phases."""

    is_rest = False

    def __init__(self, tables: "SQLTables", phases: Sequence[str]) -> None:
        self._tables, self._phases = tables, phases
        self._finished = tables.last_finish()

    def next(self, after: Position | None, size: int) -> Window | None:
        last = self._finished if after is None else min(int(after.value) - 1, self._finished)
        if last < 1:
            return None
        first = max(last - size + 1, 1)
        source, order = self._tables.finished_between(self._phases, first, last)
        end = Position("finished", is_rest=False, value=float(first), number=0)
        return Window(source, order, end, last - first + 1)


class RewardWay:
    """By reward, over its index. Many rollouts may share a reward: those are taken by their numbers."""

    is_rest = False

    def __init__(self, tables: "SQLTables", order: RolloutOrder, bounds: Condition) -> None:
        self._tables, self._order, self._bounds = tables, order, bounds
        is_up = order == "reward_low"
        self._way, self._beyond, self._before = ("ASC", ">", "<") if is_up else ("DESC", "<", ">")
        self._first, self._last = (0, MAX_INT) if is_up else (MAX_INT, 0)

    def next(self, after: Position | None, size: int) -> Window | None:
        if after is not None and after.number != self._last:
            return self._same_reward(after.value, after.number, size)
        where, values = f"reward IS NOT NULL AND {self._bounds[0]}", self._bounds[1]
        if after is not None:
            where, values = f"reward {self._beyond} ? AND {where}", [after.value, *values]
        best, bound = self._at(where, values, 0), self._at(where, values, size - 1)
        if best is None:
            return None
        if bound is None:
            worst = self._at(where, values, 0, reverse=True)
            return self._window(where, values, worst[0] if worst else best[0], self._last, size)
        if bound[0] == best[0]:
            return self._same_reward(best[0], self._first, size)
        # The rollouts with the reward at the bound are the next window.
        return self._window(f"{where} AND reward {self._before} ?", [*values, bound[0]], bound[0], self._first, size)

    def _same_reward(self, reward: float, number: int, size: int) -> Window:
        """What is left of the rollouts with this reward, or the next of them."""
        where, values = f"reward = ? AND number {self._beyond} ?", [reward, number]
        bound = self._at(where, values, size - 1)
        if bound is None:
            return self._window(where, values, reward, self._last, size)
        return self._window(f"{where} AND number {self._before}= ?", [*values, bound[1]], reward, bound[1], size)

    def _at(self, where: str, values: list[Any], place: int, *, reverse: bool = False) -> tuple[float, int] | None:
        """Reward and number of the rollout at a place in the order, None where there are fewer."""
        way = {"ASC": "DESC", "DESC": "ASC"}[self._way] if reverse else self._way
        source = self._tables.by_reward(where, values)
        found = self._tables.query(
            f"SELECT reward, number FROM {source.table} WHERE {source.where} "
            f"ORDER BY reward {way}, number {way} LIMIT 1 OFFSET {place}",
            source.values,
        )
        return (found[0][0], found[0][1]) if found else None

    def _window(self, where: str, values: list[Any], reward: float, number: int, size: int) -> Window:
        end = Position(self._order, is_rest=False, value=reward, number=number)
        source = self._tables.by_reward(where, values)
        return Window(source, f"reward {self._way}, number {self._way}", end, size)


class ListWay:
    """Over a few rollouts that are known by their positions."""

    def __init__(self, positions: Sequence[Position], *, is_rest: bool) -> None:
        self.is_rest = is_rest
        on_it = (position for position in positions if position.is_rest == is_rest)
        self._positions = sorted(on_it, key=lambda position: position.sort_key)

    def next(self, after: Position | None, size: int) -> Window | None:
        start = 0
        if after is not None:
            start = bisect_right(self._positions, after.sort_key, key=lambda position: position.sort_key)
        part = self._positions[start : start + min(size, LIST_SIZE)]
        if not part:
            return None
        numbers = [position.number for position in part]
        return Window(Source("rollouts", f"number IN ({marks(numbers)})", numbers), "", part[-1], len(part))


# -- conditions --------------------------------------------------------------------------------------


def _rewards(search: RolloutSearch) -> list[Condition]:
    found: list[Condition] = []
    if search.reward_min is not None:
        found.append(("reward >= ?", [float(search.reward_min)]))
    if search.reward_max is not None:
        found.append(("reward <= ?", [float(search.reward_max)]))
    return found


def _conditions(tables: "SQLTables", search: RolloutSearch, same_input_as: RolloutRow | None) -> Iterator[Condition]:
    """What a row must meet, the cheap ones first."""
    if search.status_in is not None:
        yield f"status IN ({marks(search.status_in)})", sorted(search.status_in)
    for name in ("mode", "resources_id", "resources_version", "worker_id"):
        if (value := getattr(search, name)) is not None:
            yield f"{name} = ?", [findable(value) if isinstance(value, str) else value]
    yield from _rewards(search)
    if search.started_after is not None:
        yield "start_time >= ?", [float(search.started_after)]
    if search.started_before is not None:
        yield "start_time < ?", [float(search.started_before)]
    if same_input_as is not None:
        given = same_input_as.input
        yield ("input IS NULL", []) if given is None else ("input = ?", [given])
    if search.group is not None:
        yield tables.has_group(search.group)
    if search.text is not None:
        yield tables.has_text(search.needles)
