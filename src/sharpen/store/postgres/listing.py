"""Rollouts as lists: by what they are, in the queue, in the order of finishing."""

from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import UnknownIdError
from ...types import ROLLOUT_STATUSES, PaginatedResult, Rollout
from ..tables import Page, RolloutFilter, public_rollout
from ..transitions import FINISHED, phases_of
from .records import BOTH, UnitOfWork, record
from .session import Row, Statement, Value
from .values import bounded, findable

FINISH = 17  # where it stands in a row
# What leads to the rollouts of a phase, and their order.
_PHASE_INDEXES = dict.fromkeys(FINISHED, ("finish IS NOT NULL", "finish")) | {
    "queued": ("place IS NOT NULL", "place"),
    "active": ("true", "number"),
}

_PLACES = Statement("SELECT place FROM rollouts WHERE place IS NOT NULL ORDER BY place LIMIT $1")
_STATUSES = Statement("SELECT rollout_id, status FROM rollouts WHERE rollout_id = ANY($1::text[])")
# Nearly all have finished, and are counted by an index alone: their phase is their status.
_FINISHED_TOTALS = Statement("SELECT phase, count(*) FROM rollouts WHERE finish IS NOT NULL GROUP BY phase")
_TOTALS = dict.fromkeys(FINISHED, _FINISHED_TOTALS) | {
    "queued": Statement("SELECT status, count(*) FROM rollouts WHERE place IS NOT NULL GROUP BY status"),
    "active": Statement("SELECT status, count(*) FROM rollouts WHERE phase = 'active' GROUP BY status"),
}
_LAST_FINISH = Statement("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM finishes")
# Those on their way have numbers above the one that they stand registered with, of which 31 bits are known.
_FINISHING = Statement(
    "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 "
    "AND classid = ($1::bigint & 4294967295)::oid "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_FINISHED = Statement(f"{BOTH} WHERE finish > $1 AND finish <= $2 ORDER BY finish LIMIT $3")


class RolloutLists(UnitOfWork):
    """Questions for many rollouts, which change and lock nothing."""

    def unpack(self, value: Any, what: str) -> Any:
        raise NotImplementedError

    def queue_length(self) -> int:
        return int(self.one("SELECT count(*) FROM rollouts WHERE place IS NOT NULL")[0])

    def queue_places(self, limit: int) -> list[int]:
        """Places of the first in the queue."""
        return [place for (place,) in self.rows(_PLACES, limit)]

    def rollouts(self, wanted: RolloutFilter, page: Page) -> PaginatedResult[Rollout]:
        where, values = _conditions(wanted)
        if page.sort_by is None and wanted.status_in is not None and wanted.logic == "and":
            rows: Iterable[Row] = self._by_status(wanted.status_in, where, values, page)
        else:
            order, nulls = page.sort_order, "FIRST" if page.sort_order == "asc" else "LAST"
            by = f"{page.sort_by} {order} NULLS {nulls}, number {order}" if page.sort_by else f"number {order}"
            limit = None if page.limit < 0 else bounded(page.limit)
            rows = self._sorted(f"{where} ORDER BY {by}", values, limit, bounded(page.offset))
        found = [public_rollout(row, self.unpack, row.latest) for row in map(record, rows)]
        return PaginatedResult(found, page.limit, page.offset, self._total(wanted, where, values))

    def _sorted(self, rest: str, values: Sequence[Value], limit: int | None, offset: int) -> list[Row]:
        at = len(values)
        cut = f"LIMIT ${at + 1}::bigint OFFSET ${at + 2}::bigint"
        return self.rows(f"{BOTH} {rest} {cut}", *values, limit, offset)

    def _by_status(self, statuses: Iterable[str], where: str, values: Sequence[Value], page: Page) -> Iterable[Row]:
        """Phase after phase, each in the order of its index: no more rows are read than the page needs."""
        skip, left = bounded(page.offset), None if page.limit < 0 else bounded(page.limit)
        for phase in phases_of(statuses, reverse=page.sort_order == "desc"):
            within, by = _PHASE_INDEXES[phase]
            limit = None if left is None else bounded(left + skip)
            rest = f"{where} AND phase = '{phase}' AND {within} ORDER BY {by} {page.sort_order}"
            found = self._sorted(rest, values, limit, 0)
            yield from found[skip:]
            if left is not None:
                left -= max(len(found) - skip, 0)
                if left == 0:
                    return
            skip = max(skip - len(found), 0)

    def _total(self, wanted: RolloutFilter, where: str, values: list[Value]) -> int:
        if not wanted.asks_only_status:
            return int(self.one(f"SELECT count(*) FROM rollouts {where}", *values)[0])
        statuses = ROLLOUT_STATUSES if wanted.status_in is None else wanted.status_in
        asked = dict.fromkeys(_TOTALS[phase] for phase in phases_of(statuses))
        answers = self.ask([(statement, ()) for statement in asked])
        found: dict[str, int] = dict(row for answer in answers for row in self.session.rows(answer))
        return sum(found.get(status, 0) for status in statuses)

    def public(self, values: Row) -> Rollout:
        return public_rollout(record(values), self.unpack)

    def finished(self, after: int, limit: int) -> list[tuple[int, Rollout]]:
        """Those that have finished, up to the first whose commit may still be on its way.

        Numbers are read before, and rows after, those who stand registered: whoever has gone meanwhile is seen.
        """
        answers = self.ask([(_LAST_FINISH, ()), (_FINISHING, (self._schema_key,))])
        last = self.session.rows(answers[0])[0][0]
        behind = [(last - key) % 2**31 for (key,) in self.session.rows(answers[1])]
        safe = last - max((distance for distance in behind if distance < 2**30), default=0)
        found = self.rows(_FINISHED, bounded(after), safe, bounded(limit))
        return [(values[FINISH], self.public(values)) for values in found]

    def unfinished(self, rollout_ids: Sequence[str]) -> list[str]:
        statuses: dict[str, str] = dict(self.rows(_STATUSES, [findable(each) for each in rollout_ids]))
        for rollout_id in rollout_ids:
            if rollout_id not in statuses:
                raise UnknownIdError(f"rollout {rollout_id!r} does not exist")
        return [rollout_id for rollout_id in rollout_ids if statuses[rollout_id] not in FINISHED]


def _conditions(wanted: RolloutFilter) -> tuple[str, list[Value]]:
    """The WHERE clause."""
    parts: list[str] = []
    values: list[Value] = []

    def add(condition: str, value: Value) -> None:
        values.append(value)
        parts.append(condition.replace("?", f"${len(values)}"))

    if wanted.status_in is not None:
        add("status = ANY(?::text[])", sorted(wanted.status_in))
    if wanted.rollout_id_in is not None:
        add("rollout_id = ANY(?::text[])", sorted(findable(each) for each in wanted.rollout_id_in))
    if wanted.rollout_id_contains is not None:
        add("position(?::text in rollout_id) > 0", findable(wanted.rollout_id_contains))
    if wanted.mode is not None:
        add("mode = ?", wanted.mode)
    if wanted.reward_min is not None:
        add("reward >= ?", float(wanted.reward_min))
    if wanted.reward_max is not None:
        add("reward <= ?", float(wanted.reward_max))
    if not parts:
        return "WHERE true", values
    return f"WHERE ({f' {wanted.logic} '.join(parts)})", values
