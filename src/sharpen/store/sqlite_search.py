"""A search for rollouts in a SQLite file, with a bound of effort.

Where an index leads to few rollouts, those are looked at; otherwise rows are read in the order wanted. Windows grow
while they are quick, and one that takes too long is broken off and taken again in smaller parts, so that every call
ends in time and has gone at least one row further.
"""

import sqlite3
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..types import RolloutPage
from .search import COUNT_SECONDS, MAX_COUNT, SEARCH_SECONDS, Position, RolloutSearch, position_of
from .sqlite_records import BOTH_COLUMNS, marks
from .sqlite_schema import GROUP
from .sqlite_walks import FinishWalk, Legs, ListWalk, NumberWalk, RewardWalk, SortedWalk, Walk, Window
from .tables import RolloutRow
from .transitions import FINISHED, PHASES, phases_of

if TYPE_CHECKING:
    from .sqlite_rollouts import RolloutTables

FIRST_SIZE, LARGEST_SIZE = 500, 32_000
FEW = 30_000  # rollouts that are worth sorting
FEW_BY_NUMBER = 10_000  # where they need not be: among more of them, reading on finds a page as soon
WINDOW_SECONDS = 0.05
LOOK_AT_CLOCK = 5_000  # steps of SQLite's machine between two looks
REWARD, NUMBER, PHASE, PLACE = 10, 14, 15, 16  # where they stand in a row

Condition = tuple[str, list[Any]]


class SQLiteSearch:
    """One search on one connection."""

    def __init__(self, tables: "RolloutTables", search: RolloutSearch, same_input_as: RolloutRow | None) -> None:
        self._tables, self._search = tables, search
        self._sql = tables.connection.execute
        made = self._sql("SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'rollouts'")
        self._indexes = {name for (name,) in made}
        has_large = self._sql("SELECT 1 FROM blobs LIMIT 1").fetchone() is not None
        self._where, self._values = _joined(conditions(search, same_input_as, has_large=has_large))
        self._walk = self._choose_walk()

    def page(self) -> RolloutPage:
        began, after, size = time.monotonic(), self._search.after, FIRST_SIZE
        rows, examined, is_end, limit = list[Sequence[Any]](), 0, False, self._search.limit
        while len(rows) <= limit and (after == self._search.after or time.monotonic() < began + SEARCH_SECONDS):
            window = self._walk.next(after, size)
            if window is None:
                is_end = True
                break
            found = self._rows(window, limit + 1 - len(rows))
            if found is None:
                size = max(1, size // 16)
                continue
            rows, examined = rows + found, examined + window.size
            after, size = window.end, min(size * 4, LARGEST_SIZE)
        items = rows[:limit]
        if len(rows) > limit:
            after = self._position(items[-1])
        total, is_exact = self._total(rows, is_end=is_end, end=began + COUNT_SECONDS)
        return RolloutPage(
            [self._tables.public(values) for values in items],
            None if is_end or after is None else after.cursor(),
            total,
            is_exact,
            examined,
            is_complete=is_end or len(items) >= limit,
        )

    def _position(self, values: Sequence[Any]) -> Position:
        finish = values[PLACE] if values[PHASE] in FINISHED else 0
        return position_of(self._search.order, values[NUMBER], values[REWARD], finish)

    # -- windows -------------------------------------------------------------------------------------

    def _rows(self, window: Window, limit: int) -> list[Sequence[Any]] | None:
        """The rows of the window that match, in order; None if it took too long."""
        is_list = window.order == "number"
        where = f"{window.where}{self._where} ORDER BY {window.order} LIMIT ?"
        sql = f"SELECT {BOTH_COLUMNS} FROM {window.source} WHERE {where}"
        found = self._in_time(window, sql, (*window.values, *self._values, -1 if is_list else limit))
        if found is not None and is_list:
            found.sort(key=lambda values: self._position(values).sort_key)
        return None if found is None else found[:limit]

    def _in_time(self, window: Window, sql: str, values: Sequence[Any]) -> list[Sequence[Any]] | None:
        if window.is_whole or window.size <= 1:
            return self._sql(sql, values).fetchall()
        end = time.monotonic() + WINDOW_SECONDS
        connection = self._tables.connection
        connection.set_progress_handler(lambda: time.monotonic() > end, LOOK_AT_CLOCK)
        try:
            return self._sql(sql, values).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
            return None
        finally:
            connection.set_progress_handler(None, 0)

    # -- how many ------------------------------------------------------------------------------------

    def _total(self, rows: list[Sequence[Any]], *, is_end: bool, end: float) -> tuple[int | None, bool]:
        wanted = self._search.status_in
        if self._search.is_plain:
            totals = self._tables.totals()
            return sum(count for status, count in totals.items() if wanted is None or status in wanted), True
        if self._search.after is not None:
            return None, False
        if is_end:
            return len(rows), True
        return (None, False) if len(rows) <= self._search.limit else self._count(rows, end)

    def _count(self, rows: list[Sequence[Any]], end: float) -> tuple[int | None, bool]:
        """All that match, up to a bound of number and time."""
        known, after, size = len(rows), self._position(rows[-1]), FIRST_SIZE
        while time.monotonic() < end:
            window = self._walk.next(after, size)
            if window is None:
                return known, True
            if window.is_whole:
                break
            sql = f"SELECT count(*) FROM {window.source} WHERE {window.where}{self._where}"
            found = self._in_time(window, sql, (*window.values, *self._values))
            if found is None:
                break
            known += found[0][0]
            if known >= MAX_COUNT:
                return MAX_COUNT, False
            after, size = window.end, min(size * 4, LARGEST_SIZE // 4)
        return None, False

    # -- the way -------------------------------------------------------------------------------------

    def _choose_walk(self) -> Walk:
        for source, (where, values) in self._leads():
            positions = self._few(source, where, values)
            if positions is not None:
                return ListWalk(positions)
        order = self._search.order
        # Two questions: SQLite reads every row to find both at once.
        (low,) = self._sql("SELECT min(number) FROM rollouts").fetchone()
        (high,) = self._sql("SELECT max(number) FROM rollouts").fetchone()
        bounds = (low or 0, high or -1)
        if order in ("newest", "oldest"):
            return NumberWalk(order, bounds)
        if order == "finished":
            return self._by_finish(bounds)
        rest = NumberWalk(order, bounds, is_rest=True, where="reward IS NULL")
        if "rollouts_reward" not in self._indexes:
            return Legs(SortedWalk(order, bounds[1] + 1), rest)
        return Legs(RewardWalk(self._sql, order), rest)

    def _by_finish(self, bounds: tuple[int, int]) -> Walk:
        wanted = self._search.status_in or PHASES.keys()
        phases = [phase for phase in phases_of(wanted) if phase in FINISHED]
        (finished,) = self._sql("SELECT finished FROM totals").fetchone()
        where = "phase IN ('queued', 'active')"
        rest = NumberWalk("finished", bounds, is_rest=True, where=where)
        totals = self._tables.totals()
        is_rest_wanted = any(totals.get(status) for status in wanted if status not in FINISHED)
        return Legs(FinishWalk(phases, finished), rest if is_rest_wanted else None)

    def _leads(self) -> list[tuple[str, Condition]]:
        """Conditions that an index serves, and which."""
        search, found = self._search, list[tuple[str, Condition]]()
        if search.group is not None:
            found.append(("rollouts_group", (f"metadata IS NOT NULL AND {GROUP} IN (?, '@')", [search.group])))
        # In the order of finishing, phases are walked as they are asked for: there is nothing to collect and sort.
        is_walked = search.order == "finished" and FINISHED.issuperset(search.status_in or ())
        if search.status_in is not None and not is_walked:
            phases = phases_of(search.status_in)
            found.append(("rollouts_place", (f"phase IN ({marks(phases)})", list(phases))))
        if search.reward_min is not None or search.reward_max is not None:
            found.append(("rollouts_reward", _joined(list(_rewards(search)), start="reward IS NOT NULL")))
        return [(name, condition) for name, condition in found if name in self._indexes]

    def _few(self, index: str, where: str, values: list[Any]) -> list[Position] | None:
        """The positions of all rollouts that the index leads to, unless these are many."""
        source = f"FROM rollouts INDEXED BY {index} WHERE {where}"
        order = self._search.order
        is_by_number = order in ("newest", "oldest")
        few = FEW_BY_NUMBER if is_by_number else FEW
        (count,) = self._sql(f"SELECT count(*) FROM (SELECT 1 {source} LIMIT ?)", (*values, few + 1)).fetchone()
        if count > few:
            return None
        columns = "number, NULL, '', 0" if is_by_number else "number, reward, phase, place"
        return [
            position_of(order, number, reward, place if phase in FINISHED else 0)
            for number, reward, phase, place in self._sql(f"SELECT {columns} {source}", values)
        ]


def _joined(parts: Sequence[Condition], start: str = "") -> Condition:
    where = "".join(f" AND {part}" for part, _ in parts)
    return start + where, [value for _, values in parts for value in values]


def _rewards(search: RolloutSearch) -> Sequence[Condition]:
    found: list[Condition] = []
    if search.reward_min is not None:
        found.append(("reward >= ?", [search.reward_min]))
    if search.reward_max is not None:
        found.append(("reward <= ?", [search.reward_max]))
    return found


def conditions(search: RolloutSearch, same_input_as: RolloutRow | None, *, has_large: bool) -> list[Condition]:
    """What a row must meet, in SQL; the cheap ones first. `has_large`: whether any body is kept elsewhere."""
    found: list[Condition] = []
    if search.status_in is not None:
        found.append((f"status IN ({marks(search.status_in)})", list(search.status_in)))
    exact = ((name, getattr(search, name)) for name in ("mode", "resources_id", "resources_version", "worker_id"))
    found += [(f"{name} = ?", [value]) for name, value in exact if value is not None]
    found += _rewards(search)
    if search.started_after is not None:
        found.append(("start_time >= ?", [search.started_after]))
    if search.started_before is not None:
        found.append(("start_time < ?", [search.started_before]))
    if same_input_as is not None:
        found.append(("input IS ?", [same_input_as.input]))
    if search.group is not None:
        found.append(_has_group(search.group, has_large=has_large))
    if search.text is not None:
        found.append(_has_text(search.needles, has_large=has_large))
    return found


def _large(column: str, test: str) -> str:
    """A test of a body that is kept elsewhere for its size: the row holds `@hash`, as no JSON begins."""
    data = f"SELECT 1 FROM blobs WHERE hash = substr({column}, 2) AND {test}"
    return f"{column} >= '@' AND {column} < 'A' AND EXISTS ({data})"


def _has_group(group: str, *, has_large: bool) -> Condition:
    """Parsing is dear, so it is done only where the words are there."""
    # Large metadata has the group "@" in SQL, and a true group of that name is told apart by the words.
    small: Condition = (f"instr(metadata, ?) > 0 AND {GROUP} = ?", [f'"group":{_written(group)}', group])
    if not has_large:
        return small
    large = _large("metadata", "json_extract(CAST(data AS TEXT), '$.group') = ?")
    return f"({small[0]} OR {large})", [*small[1], group]


def _written(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _has_text(needles: Sequence[str], *, has_large: bool) -> Condition:
    parts, values, like = [], list[Any](), "LIKE ? ESCAPE '!'"
    for needle in needles:
        pattern = "".join(f"!{character}" if character in "!%_" else character for character in needle)
        parts.append(f"rollout_id {like}")
        for column in ("input", "metadata"):
            parts.append(f"({column} {like} AND {column} NOT LIKE '@%')")
            if has_large:
                parts.append(f"({_large(column, f'CAST(data AS TEXT) {like}')})")
        values += [f"%{pattern}%"] * (5 if has_large else 3)
    return f"({' OR '.join(parts)})", values
