"""The tables of the store in Redis: what one writer reads and changes between two trips.

Rollouts are read together with their attempts and their version, changed here, and written by one script. It applies
all of the changes or, where something that was read is not as it was any more, none. Tasks, metadata and spans are
JSON.
"""

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ...errors import InvalidInputError, UnknownIdError
from ...types import PaginatedResult, ResourcesUpdate, Rollout, RolloutPage, RolloutStatus, Span, Worker, WorkerStatus
from ..base import MAX_INT, FilterLogic, new_id
from ..search import Found, Position, RolloutSearch, RowScan, ScanPage, body_text, find_page, make_test
from ..tables import (
    AttemptRow,
    Counts,
    Match,
    Page,
    RolloutFilter,
    RolloutRow,
    Tables,
    newest_versions,
    paginate,
    public_rollout,
    select,
    select_workers,
)
from ..task_json import TASK, decode_equal, encode_equal
from ..transitions import FINISHED, PHASES, phases_of
from .connection import Connection
from .records import (
    SHARED_BYTES,
    ChangedMeanwhileError,
    Index,
    Record,
    SharedTasks,
    is_text,
    kept_span,
    old_attempts_of,
    read_record,
    restore_span,
    state_of,
)
from .scripts import PAGE, REQUEST, ROWS, STATUSES, SWEEP, TAKE, WAKE, WORKER

HOLD_MILLISECONDS = 1500
FINISHED_IN_MESSAGE = 200
WINDOW = 500  # rollouts in one answer
DUE_AT_ONCE = 200
SWEPT_AT_ONCE = 100  # others wait so long
SPANS_AT_ONCE = 500  # in one command of a script
FEW = 2000  # rollouts that are worth reading at once, for a search
LARGEST_PART = 1000  # of a search; others wait so long
_WORKER_FIELDS = ("stats", "beat", "dequeue", "busy", "idle")
_pack = msgspec.msgpack.Encoder().encode
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_update = msgspec.json.Decoder(ResourcesUpdate).decode


class RedisTables(Tables):
    """Everything that the rules need: the rows of one transaction, and the questions that it may ask.

    A reader uses it as well, and never writes.
    """

    rollout_row = Record
    attempt_row = AttemptRow

    def __init__(
        self, connection: Connection, tasks: SharedTasks, *, listener: str = "", seats: Callable[[], int]
    ) -> None:
        self.connection, self.tasks = connection, tasks
        self._listener, self._seats = listener, seats
        self.writer = new_id("wr")
        self.is_head_held = False
        """Whether others held rollouts that the last claims passed over: they may yet give them back."""
        self.num_changes = 0
        """Grows with everything that a method changes, so that one that failed is known to have changed nothing."""
        self.forget()

    # -- the transaction -----------------------------------------------------------------------------

    def forget(self) -> None:
        """Start over: nothing is known, nothing changed."""
        self._loaded: dict[str, Record | None] = {}
        self._dirty: dict[str, Record] = {}
        self._commands: list[list[Any]] = []
        self._checks: dict[tuple[str, str], str] = {}
        self._head: list[Record] = []
        self._held: dict[str, None] = {}
        self._requests: dict[str, list[list[str]]] = {}
        self._times: dict[str, dict[str, Any]] = {}
        self._workers: dict[str, Sequence[Any]] = {}
        self._known_spans: dict[str, dict[str, bool]] = {}

    def take_change(self, queued: int, finished: Sequence[str]) -> bytes | None:
        """Return all changes, packed for the script; None where there are none."""
        rows = [self._change(row) for row in self._dirty.values()]
        for worker_id, fields in self._times.items():
            self._do("SADD", "workers", worker_id)
            self._do("HSET", f"w:{worker_id}", *(part for pair in fields.items() for part in pair))
        for request_id, claims in self._requests.items():
            self._keep_request(request_id, claims)
        if not rows and not self._commands:
            return None
        checks = [(kind, key, value) for (kind, key), value in self._checks.items()]
        groups = [finished[at : at + FINISHED_IN_MESSAGE] for at in range(0, len(finished), FINISHED_IN_MESSAGE)]
        messages = [_encode(group).decode() for group in groups]
        return _pack((checks, rows, self._commands, queued, messages))

    def _keep_request(self, request_id: str, claims: list[list[str]]) -> None:
        """Once for a request, since a list that is written again with every claim grows with their square."""
        kept = _encode(claims).decode()
        if claims and kept != self._checks.get(("request", request_id)):
            self._do("HSET", "requests", request_id, kept)
            self._do("HDEL", "held", f"request {request_id}")

    def release(self, *, is_written: bool) -> None:
        """Let go of rollouts that were held and are not changed."""
        written = self._dirty.keys() | {f"request {name}" for name, claims in self._requests.items() if claims}
        left = [name for name in self._held if not is_written or name not in written]
        if left:
            rollouts = sum(not name.startswith("request ") for name in left)
            let_go = ("HDEL", self.connection.key("held"), *left)
            self.connection.at_once(let_go, self.connection.script(WAKE, rollouts))  # others may wait for these

    def _do(self, command: str, key: str, *values: Any) -> None:
        self.num_changes += 1
        self._commands.append([command, key, *(_text(value) for value in values)])

    def _change(self, row: Record) -> dict[str, Any]:
        stood, stands = row.stood, row.stands()
        fields: list[Any] = ["s", state_of(row)]
        if row.has_new_body or not row.version:
            fields += ["i", row.input or "null", "m", row.metadata or ""]
        if row.has_new_old:
            fields += ["a", old_attempts_of(row)]
        self._index(row.rollout_id, stood, stands)
        change: dict[str, Any] = {
            "id": row.rollout_id,
            "is_new": not row.version,
            "fields": fields,
            "old_phase": stood.phase,
            "phase": stands.phase,
        }
        if stands.reward != stood.reward:
            change["reward"] = "" if stands.reward is None else repr(stands.reward)
        return change

    def _index(self, name: str, stood: Index, stands: Index) -> None:
        """What else changes with the row."""
        if stands.deadline != stood.deadline:
            if stands.deadline is None:
                self._do("ZREM", "deadlines", name)
            else:
                self._do("ZADD", "deadlines", stands.deadline, name)
        if stands.holder != stood.holder:
            if stood.holder is not None:
                self._do("ZREM", f"open:{stood.holder[0]}", name)
            if stands.holder is not None:
                self._do("ZADD", f"open:{stands.holder[0]}", stands.holder[1], name)
        for worker_id, attempt_id in stood.unwanted - stands.unwanted:
            self._do("SREM", f"unwanted:{worker_id}", attempt_id)
        for worker_id, attempt_id in stands.unwanted - stood.unwanted:
            self._do("SADD", f"unwanted:{worker_id}", attempt_id)
        changes = {
            "open": stands.is_open - stood.is_open,
            "attempts": stands.attempts - stood.attempts,
            "spans": stands.spans - stood.spans,
        }
        if stands.status != stood.status:
            changes |= {stands.status: 1} | ({stood.status: -1} if stood.status else {})
        for total, change in changes.items():
            if change:
                self._do("HINCRBY", "totals", total, change)

    # -- reading rows --------------------------------------------------------------------------------

    def load(self, names: Iterable[str]) -> None:
        """Read these rollouts, in one trip."""
        unknown = [name for name in dict.fromkeys(names) if name not in self._loaded]
        self._loaded |= {name: None for name in unknown if not is_text(name)}
        if wanted := [name for name in unknown if is_text(name)]:
            self.see_rows(wanted, self.connection.run(ROWS, *wanted))

    def see_rows(self, names: Sequence[str], answers: Sequence[Any]) -> None:
        for name, found in zip(names, answers, strict=True):
            if found is None:
                self._loaded[name] = None
                self._checks["row", name] = ""
            else:
                self._see(found)

    def _see(self, found: Sequence[Any]) -> Record:
        """A row from an answer; one that is known already may have been changed here."""
        name = found[7].decode()
        known = self._loaded.get(name)
        if known is None:
            known = self._loaded[name] = read_record(found)
            self._checks["row", name] = known.version
        return known

    def take_call(self, source: str, high: str, limit: int) -> tuple[Any, ...]:
        """The call for the first rollouts of a set that nobody else is about to change."""
        seats = self._seats() if source == "queued" else 0
        return self.connection.script(TAKE, source, high, limit, HOLD_MILLISECONDS, self._listener, seats)

    def see_taken(self, answer: Sequence[Any]) -> list[Record]:
        found, held_by_others = answer
        self.is_head_held = bool(held_by_others)
        rows = [self._see(values) for values in found]
        self._held |= dict.fromkeys(row.rollout_id for row in rows)
        return rows

    def page(self, source: str, start: int, count: int, *, reverse: bool = False) -> list[Record]:
        """Rollouts of a sorted set by their rank."""
        rows: list[Record] = []
        for at in range(start, start + count, WINDOW):
            bounds = at, min(at + WINDOW, start + count) - 1
            rows += self._see_page(self.connection.run(PAGE, source, "BYRANK", *bounds, int(reverse), 0, 0))
        return rows

    def by_score(self, source: str, low: str, high: str, count: int, *, reverse: bool = False) -> list[Record]:
        """Rollouts of a sorted set between two scores."""
        bounds = (high, low) if reverse else (low, high)
        return self._see_page(self.connection.run(PAGE, source, "BYSCORE", *bounds, int(reverse), 0, count))

    def _see_page(self, found: Sequence[Any]) -> list[Record]:
        return self._with_tasks([self._see(values) for values in found if values is not None])

    def walk(self, source: str, *, reverse: bool = False, among: frozenset[str] | None = None) -> Iterator[Record]:
        """The rollouts of a sorted set, window by window; they may move on while they are read."""
        low, high, way = "-inf", "+inf", ("BYSCORE", "REV") if reverse else ("BYSCORE",)
        while True:
            bounds = (high, low) if reverse else (low, high)
            call = ("ZRANGE", self.connection.key(source), *bounds, *way, "LIMIT", 0, WINDOW, "WITHSCORES")
            (found,) = self.connection.at_once(call)
            names = [name.decode() for name in found[::2]]
            yield from self.known([name for name in names if among is None or name in among])
            if len(names) < WINDOW:
                return
            low, high = (low, f"({found[-1].decode()}") if reverse else (f"({found[-1].decode()}", high)

    def known(self, names: Sequence[str]) -> list[Record]:
        """Those of these rollouts that there are."""
        self.load(names)
        rows = (self._loaded[name] for name in names)
        return self._with_tasks([row for row in rows if row is not None])

    def _with_tasks(self, rows: list[Record]) -> list[Record]:
        self.tasks.fetch(row.input[1:] for row in rows if row.input.startswith("@"))
        return rows

    # -- rollouts ------------------------------------------------------------------------------------

    def rollout(self, rollout_id: str) -> Record | None:
        self.load([rollout_id])
        return self._loaded[rollout_id]

    def add_rollouts(self, rows: list[RolloutRow]) -> None:
        for row in rows:
            self._loaded[row.rollout_id] = self._dirtied(row)

    def save_rollout(self, row: RolloutRow, old_status: RolloutStatus) -> None:
        self._dirtied(row)

    def save_body(self, row: RolloutRow) -> None:
        self._dirtied(row).has_new_body = True

    def _dirtied(self, row: RolloutRow) -> Record:
        assert isinstance(row, Record)
        self.num_changes += 1
        self._dirty[row.rollout_id] = row
        return row

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
                found.append(row)
        return found

    def due(self, now: float) -> list[tuple[RolloutRow, AttemptRow]]:
        found: list[Record] = []
        while True:
            taken = self.see_taken(self.connection.at_once(self.take_call("deadlines", repr(now), DUE_AT_ONCE))[0])
            found += taken
            if len(taken) < DUE_AT_ONCE:
                break
        pairs = [(row, row.latest) for row in found]
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

    def totals(self) -> dict[str, int]:
        (found,) = self.connection.at_once(("HGETALL", self.connection.key("totals")))
        return {found[at].decode(): int(found[at + 1]) for at in range(0, len(found), 2)}

    def rollouts(self, wanted: RolloutFilter, page: Page) -> PaginatedResult[Rollout]:
        statuses, ids, reverse = wanted.status_in, wanted.rollout_id_in, page.sort_order == "desc"
        if page.sort_by is None and wanted.asks_only_status:
            rows, total = self._by_status(statuses, page)
        elif page.sort_by is None and statuses is not None and wanted.logic == "and":
            walked = (self.walk(phase, reverse=reverse, among=ids) for phase in phases_of(statuses, reverse=reverse))
            found = [row for rows in walked for row in rows if wanted.fits(row)]
            rows, total = found[page.offset : None if page.limit < 0 else page.offset + page.limit], len(found)
        else:
            candidates: Iterable[Record] = self.walk("numbers")
            if ids is not None and wanted.logic == "and":
                candidates = sorted(self.known(list(ids)), key=lambda row: row.number)
            cut = paginate([row for row in candidates if wanted.fits(row)], page)
            rows, total = list(cut.items), cut.total
        items = [public_rollout(row, self.unpack, row.latest) for row in rows]
        return PaginatedResult(items, page.limit, page.offset, total)

    def _by_status(self, statuses: frozenset[str] | None, page: Page) -> tuple[list[Record], int]:
        """Phase after phase: only what is given back is read, wherever a whole phase is wanted."""
        reverse, totals = page.sort_order == "desc", self.totals()
        total = sum(totals.get(status, 0) for status in PHASES if statuses is None or status in statuses)
        skip, left = page.offset, total if page.limit < 0 else page.limit
        if statuses is None:
            return self.page("numbers", skip, min(left, total - skip), reverse=reverse), total
        rows: list[Record] = []
        for phase in phases_of(statuses, reverse=reverse):
            inside = [status for status, each in PHASES.items() if each == phase]
            if statuses.issuperset(inside):
                count = sum(totals.get(status, 0) for status in inside)
                rows += self.page(phase, skip, min(left - len(rows), count - skip), reverse=reverse)
            else:
                matching = [row for row in self.walk(phase, reverse=reverse) if row.status in statuses]
                count, rows = len(matching), rows + matching[skip : skip + left - len(rows)]
            skip = max(skip - count, 0)
        return rows, total

    def public(self, row: Record) -> Rollout:
        return public_rollout(row, self.unpack)

    def search(self, search: RolloutSearch, same_input_as: RolloutRow | None) -> RolloutPage:
        scan = _make_scan(self, search, same_input_as)
        return find_page(scan, search, lambda found: self.public(found.row.record))

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
        left = []
        for start in range(0, len(rollout_ids), WINDOW):
            part = rollout_ids[start : start + WINDOW]
            texts = [each for each in part if is_text(each)]
            statuses = dict(zip(texts, self.connection.run(STATUSES, *texts) if texts else [], strict=True))
            for rollout_id in part:
                if (status := statuses.get(rollout_id)) is None:
                    raise UnknownIdError(f"rollout {rollout_id!r} does not exist")
                if status.decode() not in FINISHED:
                    left.append(rollout_id)
        return left

    # -- attempts ------------------------------------------------------------------------------------

    def attempts(self, rollout: RolloutRow) -> list[AttemptRow]:
        assert isinstance(rollout, Record)
        return rollout.all_attempts()

    def attempt(self, rollout: RolloutRow, attempt_id: str) -> AttemptRow | None:
        return next((each for each in reversed(self.attempts(rollout)) if each.attempt_id == attempt_id), None)

    def latest_attempt(self, rollout: RolloutRow) -> AttemptRow | None:
        assert isinstance(rollout, Record)
        return rollout.latest

    def add_attempt(self, row: AttemptRow) -> None:
        rollout = self._rollout_of(row)
        if rollout.latest is not None:
            rollout.old.append(rollout.latest)
            rollout.has_new_old = True
        rollout.latest = row
        if row.request_id is not None:
            self._requests.setdefault(row.request_id, []).append([row.rollout_id, row.attempt_id])

    def save_attempt(self, row: AttemptRow) -> None:
        rollout = self._rollout_of(row)
        rollout.has_new_old = rollout.has_new_old or row is not rollout.latest

    def _rollout_of(self, row: AttemptRow) -> Record:
        rollout = self._loaded[row.rollout_id]
        assert rollout is not None
        return self._dirtied(rollout)

    def claimed(self, request_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        """The attempts of a request, in the order of its answer."""
        if request_id not in self._requests:
            self.see_request(request_id, self.connection.at_once(self.request_call(request_id))[0])
        claims = self._requests[request_id]
        self.load(name for name, _ in claims)
        found: list[tuple[RolloutRow, AttemptRow]] = []
        for rollout_id, attempt_id in claims:
            row = self._loaded[rollout_id]
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
        self._requests[request_id] = [] if found is None else _decode(found)
        self._checks["request", request_id] = "" if found is None else found.decode()

    # -- spans: a hash for each attempt --------------------------------------------------------------

    def missing_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: Sequence[Span]) -> list[bool]:
        assert isinstance(rollout, Record)
        for span in spans:
            if not is_text(span.span_id):
                raise InvalidInputError(f"span_id is {span.span_id!r}: use a string that can be encoded as UTF-8")
        if not rollout.spans:  # the first spans of a rollout are new
            return [True] * len(spans)
        known = self._known_spans.setdefault(attempt.attempt_id, {})
        unknown = [span.span_id for span in spans if span.span_id not in known]
        if unknown:
            key = self.connection.key(f"spans:{attempt.attempt_id}")
            self.see_spans(attempt.attempt_id, unknown, self.connection.at_once(("HMGET", key, *unknown))[0])
        return [not known[span.span_id] for span in spans]

    def see_spans(self, attempt_id: str, span_ids: Sequence[str], found: Sequence[Any]) -> None:
        known = self._known_spans.setdefault(attempt_id, {})
        known.update((name, body is not None) for name, body in zip(span_ids, found, strict=True))

    def add_spans(self, rollout: RolloutRow, attempt: AttemptRow, spans: list[Span]) -> None:
        assert isinstance(rollout, Record)
        known = self._known_spans.setdefault(attempt.attempt_id, {})
        known |= {span.span_id: True for span in spans}
        for start in range(0, len(spans), SPANS_AT_ONCE):
            part = enumerate(spans[start : start + SPANS_AT_ONCE], start=rollout.spans + start)
            pairs = ((span.span_id, kept_span(place, span)) for place, span in part)
            self._do("HSET", f"spans:{attempt.attempt_id}", *(value for pair in pairs for value in pair))
        rollout.spans += len(spans)

    def spans(
        self, rollout: RolloutRow, attempt: AttemptRow | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Span]:
        attempts = self.attempts(rollout) if attempt is None else [attempt]
        calls = [("HGETALL", self.connection.key(f"spans:{each.attempt_id}")) for each in attempts]
        found: list[tuple[int, Span]] = []
        for each, answer in zip(attempts, self.connection.together(*calls) if calls else [], strict=True):
            found += [
                restore_span(rollout.rollout_id, each.attempt_id, answer[at].decode(), answer[at + 1])
                for at in range(0, len(answer), 2)
            ]
        found.sort(key=lambda pair: pair[0])
        return paginate(select([span for _, span in found], matches, logic), page)

    # -- resources -----------------------------------------------------------------------------------

    def add_resources(self, update: ResourcesUpdate, request_id: str | None) -> None:
        place = self._published_count()
        self._do("RPUSH", "published", _encode(update))
        self._do("HSET", "versions", f"v:{update.resources_id}", update.version)
        self._do("HSET", "versions", f"p:{update.resources_id}:{update.version}", place)
        if request_id is not None:
            self._do("HSET", "versions", f"q:{request_id}", place)

    def _published_count(self) -> int:
        """How many there are; a change that depends on it is refused where more have come meanwhile."""
        if ("published", "") not in self._checks:
            self.see_published(self.connection.at_once(("LLEN", self.connection.key("published")))[0])
        return int(self._checks["published", ""])

    def see_published(self, count: int) -> None:
        self._checks["published", ""] = str(count)

    def _update_at(self, place: Any) -> ResourcesUpdate | None:
        if place is None:
            return None
        (found,) = self.connection.at_once(("LINDEX", self.connection.key("published"), int(place)))
        return None if found is None else _decode_update(found)

    def _version_field(self, field: str) -> Any:
        self._published_count()
        if not is_text(field):
            return None
        return self.connection.at_once(("HGET", self.connection.key("versions"), field))[0]

    def resources(self, resources_id: str, version: int | None) -> ResourcesUpdate | None:
        if version is None:
            latest = self._version_field(f"v:{resources_id}")
            if latest is None:
                return None
            version = int(latest)
        return self._update_at(self._version_field(f"p:{resources_id}:{version}"))

    def resources_version(self, resources_id: str | None) -> tuple[str, int] | None:
        if resources_id is None:
            latest = self.latest_resources()
            return None if latest is None else (latest.resources_id, latest.version)
        version = self._version_field(f"v:{resources_id}")
        return None if version is None else (resources_id, int(version))

    def resources_by_request(self, request_id: str) -> ResourcesUpdate | None:
        return self._update_at(self._version_field(f"q:{request_id}"))

    def latest_resources(self) -> ResourcesUpdate | None:
        count = self._published_count()
        return self._update_at(count - 1) if count else None

    def all_resources(
        self, matches: list[Match], logic: FilterLogic, page: Page, *, all_versions: bool
    ) -> PaginatedResult[ResourcesUpdate]:
        (found,) = self.connection.at_once(("LRANGE", self.connection.key("published"), 0, -1))
        published = [_decode_update(update) for update in found]
        return paginate(select(published if all_versions else newest_versions(published), matches, logic), page)

    # -- workers -------------------------------------------------------------------------------------

    def worker(self, worker_id: str) -> Worker | None:
        return self._worker(worker_id, self._seen_worker(worker_id)) if is_text(worker_id) else None

    def _seen_worker(self, worker_id: str) -> Sequence[Any]:
        if worker_id not in self._workers:
            self.see_worker(worker_id, self.connection.run(WORKER, worker_id))
        return self._workers[worker_id]

    def see_worker(self, worker_id: str, answer: Sequence[Any]) -> None:
        self._workers[worker_id] = answer

    def _worker(self, worker_id: str, answer: Sequence[Any]) -> Worker | None:
        is_known, kept, _, _ = answer
        noted = self._times.get(worker_id, {})
        if not is_known and not noted:
            return None
        stats, *noted_times = (noted.get(name, old) for name, old in zip(_WORKER_FIELDS, kept, strict=True))
        beat, dequeue, busy, idle = (None if time is None else float(time) for time in noted_times)
        held = [row for row in self._in_hand(worker_id, answer) if row.latest is not None]
        current = max(held, key=lambda row: row.latest.start_time if row.latest else 0.0, default=None)
        return Worker(
            worker_id,
            "idle" if current is None else "busy",
            _decode(stats) if stats else None,
            beat,
            dequeue,
            busy,
            idle,
            None if current is None else current.rollout_id,
            None if current is None or current.latest is None else current.latest.attempt_id,
        )

    def _in_hand(self, worker_id: str, answer: Sequence[Any]) -> list[Record]:
        """The rollouts that the worker has now, with what this transaction has changed."""
        rows = [self._see(found) for found in answer[2] if found is not None]
        named = {row.rollout_id for row in rows}
        rows += [row for row in self._loaded.values() if row is not None and row.rollout_id not in named]
        return [row for row in rows if (holder := row.stands().holder) is not None and holder[0] == worker_id]

    def open_attempts(self, worker_id: str) -> list[tuple[RolloutRow, AttemptRow]]:
        rows = self._in_hand(worker_id, self._seen_worker(worker_id))
        return [(row, row.latest) for row in rows if row.latest is not None]

    def unwanted(self, worker_id: str) -> list[str]:
        found = {name.decode() for name in self._seen_worker(worker_id)[3]}
        for row in self._loaded.values():
            if row is not None:
                found -= {attempt_id for name, attempt_id in row.stood.unwanted if name == worker_id}
                found |= {attempt_id for name, attempt_id in row.stands().unwanted if name == worker_id}
        return sorted(found)

    def save_heartbeat(self, worker_id: str, now: float, stats: dict[str, Any] | None) -> Worker:
        self._note(worker_id, stats=b"" if stats is None else _encode(stats), beat=now)
        worker = self.worker(worker_id)
        assert worker is not None
        if worker.status == "idle" and worker.last_idle_time is None:
            self._note(worker_id, idle=now)
            worker = msgspec.structs.replace(worker, last_idle_time=now)
        return worker

    def _note(self, worker_id: str, **fields: Any) -> None:
        self.num_changes += 1
        self._times.setdefault(worker_id, {}).update(fields)

    def mark_busy(self, worker_id: str, attempt: AttemptRow, now: float) -> None:
        self._note(worker_id, dequeue=now, busy=now)

    def mark_idle(self, worker_id: str, now: float) -> None:
        self._note(worker_id, idle=now)

    def workers(
        self, status_in: frozenset[WorkerStatus] | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Worker]:
        """Workers are few, and whether one is busy follows from the rollouts: they are filtered here."""
        (members,) = self.connection.at_once(("SMEMBERS", self.connection.key("workers")))
        names = sorted(name.decode() for name in members)
        answers = self.connection.at_once(*(self.connection.script(WORKER, name) for name in names)) if names else []
        found = [self._worker(name, answer) for name, answer in zip(names, answers, strict=True)]
        return paginate(select_workers([each for each in found if each is not None], status_in, matches, logic), page)

    # -- the rest ------------------------------------------------------------------------------------

    def pack(self, value: Any, what: str) -> Any:
        if value is None:
            return None
        encoded = encode_equal(value, what)
        if what != TASK or len(encoded) < SHARED_BYTES:
            return encoded.decode()
        name = self.tasks.name(encoded)
        self._do("USE", name, encoded)
        return f"@{name}"

    def unpack(self, value: Any, what: str) -> Any:
        if value is None:
            return None
        return decode_equal(self.tasks.get(value[1:]) if value.startswith("@") else value, what)

    def drop(self, value: Any) -> None:
        """A task that was packed is no longer needed: forget a large one after its last use."""
        if value is not None and value.startswith("@"):
            self._do("UNUSE", value[1:])

    def counts(self) -> Counts:
        totals = self.totals()
        key, at_once = self.connection.key, self.connection.at_once
        published, workers = at_once(("LLEN", key("published")), ("SCARD", key("workers")))
        memory = self.connection.again(lambda: self.connection.client.info("memory"))
        return Counts(
            totals,
            totals.get("attempts", 0),
            totals.get("open", 0),
            totals.get("spans", 0),
            published,
            workers,
            int(memory["used_memory"]),
        )


def _text(value: Any) -> str:
    """The msgpack that scripts read knows no bytes, and their numbers lose digits."""
    return value.decode() if isinstance(value, bytes) else repr(value) if isinstance(value, float) else str(value)


# -- searching ---------------------------------------------------------------------------------------


class _View:
    """A rollout whose input and metadata are decoded only where a condition asks for them."""

    __slots__ = ("_tables", "record")

    def __init__(self, tables: RedisTables, record: Record) -> None:
        self._tables, self.record = tables, record

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.record, name)
        if name not in ("input", "metadata"):
            return value
        return self._tables.unpack(value, TASK if name == "input" else name)


def _make_scan(tables: RedisTables, search: RolloutSearch, same_input_as: RolloutRow | None) -> "RowScan | RedisScan":
    """Where few rollouts come into question, all of them are read and searched as rows in memory are."""
    totals = tables.totals()
    statuses = PHASES.keys() if search.status_in is None else search.status_in
    total = sum(totals.get(status, 0) for status in statuses) if search.is_plain else None
    input_wanted = None if same_input_as is None else body_text(tables.unpack(same_input_as.input, TASK))

    def see(row: Record) -> Found:
        return Found(_View(tables, row), row.number, row.finish, None if row.latest is None else row.latest.worker_id)

    phases = phases_of(statuses)
    if sum(totals.get(status, 0) for status, phase in PHASES.items() if phase in phases) > FEW:
        return RedisScan(tables, search, see, make_test(search, input_wanted), total)
    rows = {row.rollout_id: row for phase in phases for row in tables.walk(phase)}
    by_number = sorted(rows.values(), key=lambda row: row.number)
    return RowScan(search, by_number, see, input_wanted, total=total)


class RedisScan:
    """The rollouts of a store in the order of one search, read in windows; see `RolloutScan`."""

    def __init__(
        self,
        tables: RedisTables,
        search: RolloutSearch,
        see: Callable[[Record], Found],
        is_wanted: Callable[[Found], bool],
        total: int | None,
    ) -> None:
        self._tables, self._search, self._see = tables, search, see
        self._is_wanted, self._total = is_wanted, total

    def next(self, after: Position | None, size: int, limit: int) -> ScanPage[Found]:
        is_rest, rows = after is not None and after.is_rest, self._window(after, min(size, LARGEST_PART))
        found = [self._see(row) for row in rows]
        end = self.position(found[-1]) if found else None
        if end is not None and is_rest:  # by number, whether it belongs to the rest or not
            end = msgspec.structs.replace(end, is_rest=True, value=0.0)
        elif end is None and not is_rest and self._search.order not in ("newest", "oldest"):
            end = Position(self._search.order, is_rest=True, value=0.0, number=MAX_INT)
        matching = (each for each in found if self.position(each).is_rest == is_rest and self._is_wanted(each))
        return ScanPage(list(matching)[:limit], end, len(found))

    def position(self, row: Found) -> Position:
        return row.position(self._search.order)

    def total(self) -> int | None:
        return self._total

    def count(self, most: int, seconds: float) -> int | None:
        found, after, end = 0, None, time.monotonic() + seconds
        while found < most:
            if time.monotonic() > end:
                return None
            part = self.next(after, LARGEST_PART, LARGEST_PART)
            found, after = found + len(part.rows), part.end
            if after is None:
                break
        return found

    def _window(self, after: Position | None, size: int) -> list[Record]:
        """The next rollouts in the order; of the rest all, by their numbers."""
        order = self._search.order
        if order == "finished" and (after is None or not after.is_rest):
            return self._by_finish(after, size)
        if order in ("reward_high", "reward_low") and (after is None or not after.is_rest):
            return self._by_reward(after, size)
        bound = None if after is None else f"({after.number}"
        if order == "oldest":
            return self._tables.by_score("numbers", bound or "-inf", "+inf", size)
        return self._tables.by_score("numbers", "-inf", bound or "+inf", size, reverse=True)

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
