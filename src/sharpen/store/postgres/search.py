"""A search for rollouts in PostgreSQL, with a bound of effort.

Where an index leads to few rollouts, those are looked at; otherwise rows are read in the order wanted, one window of
so many rows at a time. Windows grow while they are quick, and one that takes too long is broken off by the server and
taken again in smaller parts, so that every call ends in time and has gone at least one row further.
"""

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from psycopg.errors import QueryCanceled

from ...types import RolloutPage
from ..base import MAX_INT
from ..search import COUNT_SECONDS, MAX_COUNT, SEARCH_SECONDS, Position, RolloutSearch, position_of
from ..tables import RolloutRow
from ..transitions import FINISHED, phases_of
from .groups import group_key
from .records import BOTH_COLUMNS
from .session import Query, Row

if TYPE_CHECKING:
    from .rollouts import RolloutTables

FIRST_SIZE, LARGEST_SIZE = 500, 8_000
FEW = 10_000  # rollouts that are worth sorting
WINDOW_SECONDS = 0.05

# How an index finds the rollouts of a phase. Those that succeeded are most of all: nothing is quicker than reading on.
PHASE_LEADS = {
    "queued": "place IS NOT NULL",
    "active": "phase = 'active'",
    "failed": "phase IN ('failed', 'cancelled') AND phase = 'failed'",
    "cancelled": "phase IN ('failed', 'cancelled') AND phase = 'cancelled'",
}
REWARD, NUMBER, FINISH, NTH, IS_WANTED = 10, 14, 17, -2, -1  # where they stand in a row

# No other way of reading than indexes keeps a bound, and no program is worth being compiled for one window.
BEGINNING: list[Query] = [
    ("SAVEPOINT search", ()),
    ("SET LOCAL enable_seqscan = off", ()),
    ("SET LOCAL jit = off", ()),
]

Values = dict[str, Any]
_NAMED = re.compile(r"%\((\w+)\)s")


class Leg(msgspec.Struct, frozen=True):
    """One stretch of the way: rows of a source in an order, and those among them that belong to it."""

    source: str
    within: str
    """Served by the index of the order."""
    beyond: str
    """Behind the position %(value)s, %(number)s."""
    order: str
    belongs: str = "true"
    is_rest: bool = False


class PostgresSearch:
    """One search in one transaction that reads."""

    def __init__(self, tables: "RolloutTables", search: RolloutSearch, same_input_as: RolloutRow | None) -> None:
        self._tables, self._search = tables, search
        self._values = values_of(search, same_input_as)
        self._wanted = " AND ".join(conditions(search)) or "true"
        self._legs = list[Leg]()

    def page(self) -> RolloutPage:
        began, limit = time.monotonic(), self._search.limit
        self._tables.ask(BEGINNING)
        self._legs = list(self._choose_legs())
        rows, after, examined = self._walk(began + SEARCH_SECONDS)
        is_end, items = after is None, rows[:limit]
        if len(rows) > limit:
            is_end, after = False, self._position(items[-1])
        total, is_exact = self._total(rows, is_end=is_end, began=began)
        self._tables.ask([("ROLLBACK TO search", ())])
        return RolloutPage(
            [self._tables.public(values[:NTH]) for values in items],
            None if is_end or after is None else after.cursor(),
            total,
            is_exact,
            examined,
            is_complete=is_end or len(items) >= limit,
        )

    def _sql(self, sql: str, values: Values) -> list[Row]:
        return self._tables.session.rows(self._tables.ask([_numbered(sql, values)])[0])

    def _position(self, values: Row, *, is_rest: bool = False) -> Position:
        """Where a row stands; in the rest of the order, only its number counts."""
        if is_rest:
            return position_of(self._search.order, values[NUMBER], None, 0)
        return position_of(self._search.order, values[NUMBER], values[REWARD], values[FINISH] or 0)

    # -- windows -------------------------------------------------------------------------------------

    def _walk(self, end: float) -> tuple[list[Row], Position | None, int]:
        """The rows of a page and one more, how far it went (None: to the end), and how many it looked at."""
        rows, examined, size, after = list[Row](), 0, FIRST_SIZE, self._search.after
        legs = [leg for leg in self._legs if after is None or leg.is_rest >= after.is_rest]
        while legs:
            if len(rows) > self._search.limit or (after != self._search.after and time.monotonic() >= end):
                return rows, after, examined
            leg = legs[0]
            is_begun = after is not None and after.is_rest == leg.is_rest
            found = self._window(leg, after if is_begun else None, size, self._search.limit + 1 - len(rows))
            if found is None:
                size = max(1, size // 16)
                continue
            rows += [values for values in found if values[IS_WANTED]]
            if found:
                after, examined = self._position(found[-1], is_rest=leg.is_rest), examined + found[-1][NTH]
            if not found or found[-1][NTH] < size:
                legs.pop(0)
            size = min(size * 4, LARGEST_SIZE)
        return rows, None, examined

    def _window(self, leg: Leg, after: Position | None, size: int, limit: int) -> list[Row] | None:
        """Rows that match, in order, and the last of the window; None if it took too long."""
        beyond = "true" if after is None else leg.beyond
        part = f"SELECT * FROM {leg.source} WHERE {leg.within} AND {beyond} ORDER BY {leg.order} LIMIT %(size)s"
        numbered = f"SELECT *, row_number() OVER () AS nth FROM ({part}) AS part"
        judged = f"SELECT *, ({leg.belongs} AND {self._wanted}) IS TRUE AS is_wanted FROM ({numbered}) AS numbered"
        sql = (
            f"SELECT {BOTH_COLUMNS}, nth, is_wanted FROM ({judged}) AS judged "
            "WHERE is_wanted OR nth = %(size)s ORDER BY nth LIMIT %(limit)s"
        )
        values = {**self._values, "size": size, "limit": limit}
        if after is not None:
            values |= {"value": after.value, "number": after.number, "finish": _whole(after.value)}
        return self._in_time(sql, values, WINDOW_SECONDS if size > 1 else None)

    def _in_time(self, sql: str, values: Values, seconds: float | None, *, by_index: bool = True) -> list[Row] | None:
        if seconds is None:
            return self._sql(sql, values)
        limit = f"SET LOCAL statement_timeout = {max(1, round(seconds * 1000))}"
        way = f"SET LOCAL enable_seqscan = {'off' if by_index else 'on'}"
        back: Query = ("ROLLBACK TO part", ())  # which takes the settings back, too
        try:
            answers = self._tables.ask([("SAVEPOINT part", ()), (limit, ()), (way, ()), _numbered(sql, values), back])
        except QueryCanceled:
            self._tables.ask([back])
            return None
        return self._tables.session.rows(answers[3])

    # -- how many ------------------------------------------------------------------------------------

    def _total(self, rows: list[Row], *, is_end: bool, began: float) -> tuple[int | None, bool]:
        if self._search.is_plain:
            total = self._count(SEARCH_SECONDS, MAX_INT)
            return (total, True) if total is not None else self._counted(SEARCH_SECONDS)
        if self._search.after is not None:
            return None, False
        if is_end:
            return len(rows), True
        if len(rows) <= self._search.limit:
            return None, False
        return self._counted(began + COUNT_SECONDS - time.monotonic())

    def _counted(self, seconds: float) -> tuple[int | None, bool]:
        """All that match, up to a bound of number and time, and whether these are all."""
        count = self._count(seconds, MAX_COUNT + 1)
        return (MAX_COUNT, False) if count is not None and count > MAX_COUNT else (count, count is not None)

    def _count(self, seconds: float, most: int) -> int | None:
        if seconds <= 0:
            return None
        source = self._legs[0].source
        part = f"SELECT 1 FROM {source} WHERE {self._wanted} LIMIT {most}"
        sql = f"SELECT count(*) FROM ({part}) AS part"
        found = self._in_time(sql, self._values, seconds, by_index=source != "rollouts")
        return None if found is None else int(found[0][0])

    # -- the way -------------------------------------------------------------------------------------

    def _choose_legs(self) -> Iterator[Leg]:
        order = self._search.order
        source = self._few(list(self._leads()))
        if order == "oldest":
            yield Leg(source, "true", "number > %(number)s", "number")
        elif order == "newest":
            yield Leg(source, "true", "number < %(number)s", "number DESC")
        elif order == "finished":
            yield Leg(source, "finish IS NOT NULL", "finish < %(finish)s", "finish DESC")
            if not FINISHED.issuperset(self._search.status_in or {"queuing"}):
                unfinished = [f"SELECT * FROM rollouts WHERE {PHASE_LEADS[phase]}" for phase in ("queued", "active")]
                rest = self._few([unfinished]) if source == "rollouts" else source
                yield Leg(rest, "true", "number < %(number)s", "number DESC", "finish IS NULL", is_rest=True)
        else:
            yield from self._by_reward(source)

    def _by_reward(self, source: str) -> Iterator[Leg]:
        way, sign = ("ASC", ">") if self._search.order == "reward_low" else ("DESC", "<")
        beyond, order = f"(reward, number) {sign} (%(value)s, %(number)s)", f"reward {way}, number {way}"
        bounds = list(_rewards(self._search))
        yield Leg(source, " AND ".join(["reward IS NOT NULL", *bounds]), beyond, order)
        if not bounds:
            yield Leg(source, "true", "number < %(number)s", "number DESC", "reward IS NULL", is_rest=True)

    def _leads(self) -> Iterator[list[str]]:
        """Conditions that an index serves: each a list of questions that together give all that meet one."""
        search = self._search
        if search.group is not None:
            yield ["SELECT * FROM rollouts WHERE group_name = %(group)s"]
        if search.status_in is not None:
            phases = phases_of(search.status_in)
            if "succeeded" not in phases:
                yield [f"SELECT * FROM rollouts WHERE {PHASE_LEADS[phase]}" for phase in phases]
        if bounds := list(_rewards(search)):
            yield [f"SELECT * FROM rollouts WHERE reward IS NOT NULL AND {' AND '.join(bounds)}"]

    def _few(self, leads: list[list[str]]) -> str:
        """What to select from: the rollouts that one of the leads gives, unless these are many; else the table."""
        for parts in leads:
            # `OFFSET 0`: each part is found on its own way, whatever order is wanted of all.
            fenced = [f"({part} OFFSET 0)" for part in parts or ["SELECT * FROM rollouts WHERE false"]]
            source = f"({' UNION ALL '.join(fenced)}) AS rollouts"
            found = self._sql(
                f"SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT %(few)s) AS part", {**self._values, "few": FEW + 1}
            )
            if found[0][0] <= FEW:
                return source
        return "rollouts"


def _numbered(sql: str, values: Values) -> Query:
    """The statement with `$1`, `$2`, … for its `%(name)s`, and their values."""
    names = list(dict.fromkeys(_NAMED.findall(sql)))
    return _NAMED.sub(lambda found: f"${names.index(found[1]) + 1}", sql), [values[name] for name in names]


def _whole(value: float) -> int:
    """A number in the order of finishing; a cursor may hold any."""
    return int(min(max(value, 0.0), 2.0**62))


def _rewards(search: RolloutSearch) -> Iterator[str]:
    if search.reward_min is not None:
        yield "reward >= %(reward_min)s"
    if search.reward_max is not None:
        yield "reward <= %(reward_max)s"


def conditions(search: RolloutSearch) -> Iterator[str]:
    """What a row must meet, the cheap ones first."""
    if search.status_in is not None:
        yield "status = ANY(%(status_in)s)"
    for name in ("mode", "resources_id", "resources_version", "worker_id"):
        if getattr(search, name) is not None:
            yield f"{name} = %({name})s"
    yield from _rewards(search)
    if search.started_after is not None:
        yield "start_time >= %(started_after)s"
    if search.started_before is not None:
        yield "start_time < %(started_before)s"
    if search.group is not None:
        yield "group_name = %(group)s"
    if search.same_input_as is not None:
        yield "input IS NOT DISTINCT FROM %(same_input)s"
    if search.text is not None:
        columns = ("rollout_id", "input", "metadata")
        needles = range(len(search.needles))
        found = [f"strpos(lower({column}), %(needle_{n})s) > 0" for n in needles for column in columns]
        yield f"({' OR '.join(found)})"


def values_of(search: RolloutSearch, same_input_as: RolloutRow | None) -> Values:
    """What the conditions compare with."""
    values: Values = {name: _sendable(getattr(search, name)) for name in search.__struct_fields__ if name != "after"}
    values["status_in"] = list(search.status_in or ())
    if search.group is not None:
        values["group"] = group_key(search.group)
    if same_input_as is not None:
        values["same_input"] = same_input_as.input
    # Small letters as bytes know them: the texts compare by bytes, and `lower` changes A to Z only.
    return values | {f"needle_{n}": each.encode().lower().decode() for n, each in enumerate(search.needles)}


def _sendable(value: Any) -> Any:
    """PostgreSQL knows no NUL in a text; no id has a control character, so that another one matches nothing either."""
    return value.replace("\0", "\1") if isinstance(value, str) else value
