"""Rollouts and attempts in Redis: the questions and changes of the rules."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ...errors import UnknownIdError
from ...types import PaginatedResult, Rollout, RolloutPage, RolloutStatus
from ..base import MAX_INT
from ..search import RolloutSearch
from ..tables import AttemptRow, Page, RolloutFilter, RolloutRow, paginate, public_rollout
from ..transitions import FINISHED, PHASES, phases_of
from .bodies import ChangedMeanwhileError
from .records import AttemptRecord, Record
from .scripts import PAGE, REQUEST, STATUSES, SWEEP
from .search import RedisSearch
from .texts import is_text
from .unit import HOLD_MILLISECONDS, UnitOfWork

WINDOW = 500  # rollouts in one answer
DUE_AT_ONCE = 200
SWEPT_AT_ONCE = 100  # others wait so long


class RolloutTables(UnitOfWork):
    """Rollouts with their attempts, and the sorted sets in which they stand."""

    def unpack(self, value: Any, what: str) -> Any:
        raise NotImplementedError

    def rollout(self, rollout_id: str) -> Record | None:
        self.load([rollout_id])
        row = self._loaded[rollout_id]
        return None if row is None else self.touch(row)

    def add_rollouts(self, rows: list[RolloutRow]) -> None:
        for row in rows:
            assert isinstance(row, Record)
            self._loaded[row.rollout_id] = self._dirty[row.rollout_id] = row

    def save_rollout(self, row: RolloutRow, old_status: RolloutStatus) -> None:
        assert isinstance(row, Record)
        self._dirty[row.rollout_id] = row

    def save_body(self, row: RolloutRow) -> None:
        assert isinstance(row, Record)
        row.has_new_body = True
        self._dirty[row.rollout_id] = row

    # -- the queue -----------------------------------------------------------------------------------

    def queue_length(self) -> int:
        return int(self.connection.at_once(("ZCARD", self.connection.key("queued")))[0])

    def see_head(self, answer: Sequence[Any]) -> None:
        """Rollouts of the queue that are held for the claims that follow."""
        self._head += self.see_taken(answer)

    def queue_head(self, limit: int) -> list[RolloutRow]:
        found: list[RolloutRow] = []
        while self._head and len(found) < limit:
            row = self._head.pop(0)
            if PHASES[row.status] == "queued":  # a method of the same transaction may have moved it
                found.append(self.touch(row))
        return found

    def due(self, now: float) -> list[tuple[RolloutRow, AttemptRow]]:
        found: list[Record] = []
        while True:
            taken = self.see_taken(self.connection.at_once(self.take_call("deadlines", repr(now), DUE_AT_ONCE))[0])
            found += taken
            if len(taken) < DUE_AT_ONCE:
                break
        pairs = [(self.touch(row), row.latest) for row in found]
        return [(row, latest) for row, latest in pairs if latest is not None and (latest.deadline or now + 1) <= now]

    def next_deadline(self) -> float | None:
        (found,) = self.connection.at_once(("ZRANGE", self.connection.key("deadlines"), 0, 0, "WITHSCORES"))
        return float(found[1]) if found else None

    def delete_finished_before(self, time: float) -> int:
        """In steps that hold up nobody for long; each is whole by itself."""
        return sum(self._sweep(phase, time) for phase in FINISHED)

    def _sweep(self, phase: str, time: float) -> int:
        all_gone, rank = 0, 0
        while True:
            gone, kept = (int(n) for n in self.connection.run(SWEEP, phase, rank, SWEPT_AT_ONCE, repr(time)))
            all_gone, rank = all_gone + gone, rank + kept
            if gone + kept < SWEPT_AT_ONCE:
                return all_gone

    # -- lists ---------------------------------------------------------------------------------------

    def page(self, source: str, start: int, count: int, *, reverse: bool = False) -> list[Record]:
        """Rollouts of a sorted set by their rank."""
        if count <= 0:
            return []
        found = self.connection.run(PAGE, source, "BYRANK", start, start + count - 1, int(reverse), 0, 0)
        return self.see_page(found)

    def by_score(self, source: str, low: str, high: str, count: int, *, reverse: bool = False) -> list[Record]:
        """Rollouts of a sorted set between two scores."""
        bounds = (high, low) if reverse else (low, high)
        return self.see_page(self.connection.run(PAGE, source, "BYSCORE", *bounds, int(reverse), 0, count))

    def see_page(self, found: Sequence[Any]) -> list[Record]:
        return self._with_bodies([self._see(values) for values in found if values is not None])

    def _with_bodies(self, rows: list[Record]) -> list[Record]:
        self.bodies.fetch(row.input[1:] for row in rows if row.input.startswith("@"))
        return rows

    def walk(self, source: str, *, reverse: bool = False) -> Iterator[Record]:
        """All rollouts that stand in a sorted set at this moment; they may move on while they are read."""
        names = self.connection.at_once(("ZRANGE", self.connection.key(source), 0, -1, *(("REV",) if reverse else ())))[
            0
        ]
        for start in range(0, len(names), WINDOW):
            yield from self.known([name.decode() for name in names[start : start + WINDOW]])

    def known(self, names: Sequence[str]) -> list[Record]:
        """Those of these rollouts that there are."""
        self.load(names)
        rows = (self._loaded[name] for name in names)
        return self._with_bodies([row for row in rows if row is not None])

    def totals(self) -> dict[str, int]:
        (found,) = self.connection.at_once(("HGETALL", self.connection.key("totals")))
        return {found[at].decode(): int(found[at + 1]) for at in range(0, len(found), 2)}

    def rollouts(self, wanted: RolloutFilter, page: Page) -> PaginatedResult[Rollout]:
        if page.sort_by is None and wanted.asks_only_status:
            rows, total = self._by_status(wanted.status_in, page)
            return PaginatedResult([self._with_latest(row) for row in rows], page.limit, page.offset, total)
        found = [row for row in self._candidates(wanted, page) if wanted.fits(row)]
        if (
            page.sort_by is None
            and wanted.status_in is not None
            and wanted.logic == "and"
            and page.sort_order == "desc"
        ):
            found.reverse()  # they come in the order of the page already
        cut = paginate(found, page)
        return PaginatedResult([self._with_latest(row) for row in cut.items], cut.limit, cut.offset, cut.total)

    def _by_status(self, statuses: frozenset[str] | None, page: Page) -> tuple[list[Record], int]:
        """Phase after phase: pages by status read only what they give back, wherever a whole phase is wanted."""
        reverse, totals = page.sort_order == "desc", self.totals()
        total = sum(totals.get(status, 0) for status in PHASES if statuses is None or status in statuses)
        skip, left = page.offset, total if page.limit < 0 else page.limit
        if statuses is None:
            return self._ranks("numbers", skip, min(left, total - skip), reverse=reverse), total
        rows: list[Record] = []
        for phase in phases_of(statuses, reverse=reverse):
            inside = [status for status, each in PHASES.items() if each == phase]
            if statuses.issuperset(inside):
                count = sum(totals.get(status, 0) for status in inside)
                rows += self._ranks(phase, skip, min(left - len(rows), count - skip), reverse=reverse)
            else:
                matching = [row for row in self.walk(phase, reverse=reverse) if row.status in statuses]
                count, rows = len(matching), rows + matching[skip : skip + left - len(rows)]
            skip = max(skip - count, 0)
        return rows, total

    def _ranks(self, source: str, start: int, count: int, *, reverse: bool) -> list[Record]:
        rows: list[Record] = []
        for at in range(start, start + count, WINDOW):
            rows += self.page(source, at, min(WINDOW, start + count - at), reverse=reverse)
        return rows

    def _candidates(self, wanted: RolloutFilter, page: Page) -> Iterator[Record]:
        if wanted.rollout_id_in is not None and wanted.logic == "and":
            yield from sorted(self.known(list(wanted.rollout_id_in)), key=lambda row: row.number)
        elif page.sort_by is None and wanted.status_in is not None and wanted.logic == "and":
            reverse = page.sort_order == "desc"
            for phase in phases_of(wanted.status_in, reverse=reverse):
                yield from self.walk(phase, reverse=reverse)
        else:
            yield from self.walk("numbers")

    def _with_latest(self, row: Record) -> Rollout:
        return public_rollout(row, self.unpack, row.latest)

    def public(self, row: Record) -> Rollout:
        return public_rollout(row, self.unpack)

    def search(self, search: RolloutSearch, same_input_as: RolloutRow | None) -> RolloutPage:
        return RedisSearch(self, search, same_input_as).page()

    def finished(self, after: int, limit: int) -> list[tuple[int, Rollout]]:
        """The three ways to finish in one step, so that none of a later one hides an earlier one."""
        limit = int(min(limit, MAX_INT))
        calls = [
            ("ZRANGE", self.connection.key(phase), f"({after}", "+inf", "BYSCORE", "LIMIT", 0, limit, "WITHSCORES")
            for phase in FINISHED
        ]
        found: list[tuple[int, str]] = []
        for answer in self.connection.together(*calls):
            found += [(int(answer[at + 1]), answer[at].decode()) for at in range(0, len(answer), 2)]
        found = sorted(found)[:limit]
        rows = {row.rollout_id: row for row in self.known([name for _, name in found])}
        return [(number, self.public(rows[name])) for number, name in found if name in rows]

    def unfinished(self, rollout_ids: Sequence[str]) -> list[str]:
        for rollout_id in rollout_ids:
            if not is_text(rollout_id):
                raise UnknownIdError(f"rollout {rollout_id!r} does not exist")
        left = []
        for start in range(0, len(rollout_ids), WINDOW):
            part = rollout_ids[start : start + WINDOW]
            for rollout_id, status in zip(part, self.connection.run(STATUSES, *part), strict=True):
                if status is None:
                    raise UnknownIdError(f"rollout {rollout_id!r} does not exist")
                if status.decode() not in FINISHED:
                    left.append(rollout_id)
        return left

    # -- attempts ------------------------------------------------------------------------------------

    def attempt(self, rollout: RolloutRow, attempt_id: str) -> AttemptRow | None:
        return next((each for each in reversed(self.attempts(rollout)) if each.attempt_id == attempt_id), None)

    def latest_attempt(self, rollout: RolloutRow) -> AttemptRow | None:
        assert isinstance(rollout, Record)
        return rollout.latest

    def attempts(self, rollout: RolloutRow) -> list[AttemptRow]:
        assert isinstance(rollout, Record)
        return [*rollout.old] if rollout.latest is None else [*rollout.old, rollout.latest]

    def add_attempt(self, row: AttemptRow) -> None:
        assert isinstance(row, AttemptRecord)
        rollout = self._kept(row)
        if rollout.latest is not None:
            rollout.old.append(rollout.latest)
            rollout.has_new_old = True
        rollout.latest = row
        self._dirty[rollout.rollout_id] = rollout
        if row.request_id is not None:
            self._requests.setdefault(row.request_id, []).append([row.rollout_id, row.attempt_id])

    def save_attempt(self, row: AttemptRow) -> None:
        rollout = self._kept(row)
        rollout.has_new_old = rollout.has_new_old or row is not rollout.latest
        self._dirty[rollout.rollout_id] = rollout

    def _kept(self, row: AttemptRow) -> Record:
        rollout = self._loaded[row.rollout_id]
        assert rollout is not None
        return rollout

    def claimed(self, request_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        """The attempts of a request, in the order of its answer."""
        if request_id not in self._requests:
            self.see_request(request_id, self.connection.at_once(self.request_call(request_id))[0])
        claims = self._requests[request_id]
        self.load(name for name, _ in claims)
        found: list[tuple[RolloutRow, AttemptRow]] = []
        for rollout_id, attempt_id in claims:
            row = self.rollout(rollout_id)
            attempt = None if row is None else self.attempt(row, attempt_id)
            if row is not None and attempt is not None:
                found.append((row, attempt))
        return found

    def request_call(self, request_id: str) -> tuple[Any, ...]:
        return self.connection.script(REQUEST, request_id, self.writer, HOLD_MILLISECONDS)

    def see_request(self, request_id: str, found: bytes | None) -> None:
        if found == b"HELD":
            raise ChangedMeanwhileError(f"request {request_id!r} is being processed by another client")
        if found is None:
            self._held[f"request {request_id}"] = None
        self._requests[request_id] = [] if found is None else msgspec.json.decode(found)
        self._checks["request", request_id] = "" if found is None else found.decode()
