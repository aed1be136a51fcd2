"""What one writer reads and changes between two trips to Redis.

Rollouts are read together with their attempts and their version, changed here, and written by one script. It applies
all of the changes, or, where something that was read is not as it was any more, none.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from ..checks import new_id
from .bodies import Bodies
from .connection import Connection
from .records import AttemptRecord, Index, Record, old_attempts_of, read_record, state_of
from .scripts import ROWS, TAKE, WAKE
from .texts import is_text

HOLD_MILLISECONDS = 1500
FINISHED_IN_MESSAGE = 200
_pack = msgspec.msgpack.Encoder().encode


class _Mark(msgspec.Struct):
    """How far a transaction was when a method began."""

    commands: int
    spans: int
    dirty: dict[str, Record]
    requests: dict[str, list[list[str]]]
    times: dict[str, dict[str, Any]]


class UnitOfWork:
    """The rows of one transaction. A reader uses it as well, and never writes."""

    rollout_row = Record
    attempt_row = AttemptRecord

    def __init__(self, connection: Connection, bodies: Bodies, *, listener: str = "", seats: Callable[[], int]) -> None:
        self.connection, self.bodies = connection, bodies
        self._listener, self._seats = listener, seats
        self.writer = new_id("wr")
        self._has_others = False
        self.is_head_held = False
        """Whether others held rollouts that the last claims passed over: they may yet give them back."""
        self.forget()

    # -- the transaction -----------------------------------------------------------------------------

    def forget(self) -> None:
        """Begin anew: nothing is known, nothing changed."""
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
        self._new_spans: list[tuple[str, str]] = []
        self._before: dict[str, Record] = {}
        self._mark: _Mark | None = None

    def begin(self, *, has_others: bool) -> None:
        """A method starts. Where others share its transaction, it must be possible to undo it alone."""
        self._has_others = has_others
        self._before = {}
        if has_others:
            self._mark = _Mark(
                len(self._commands),
                len(self._new_spans),
                dict(self._dirty),
                {name: list(claims) for name, claims in self._requests.items()},
                {name: dict(fields) for name, fields in self._times.items()},
            )

    def undo(self) -> None:
        """The method failed: nothing of it is written."""
        mark = self._mark
        if not self._has_others or mark is None:
            held, checks = self._held, self._checks
            self.forget()
            self._held, self._checks = held, checks
            return
        del self._commands[mark.commands :]
        for attempt_id, span_id in self._new_spans[mark.spans :]:
            self._known_spans[attempt_id][span_id] = False
        del self._new_spans[mark.spans :]
        self._requests, self._times = mark.requests, mark.times
        self._dirty = mark.dirty
        for name, row in list(self._loaded.items()):
            if row is not None and not row.version and name not in mark.dirty:
                self._loaded[name] = None  # the method had made it
        for name, before in self._before.items():
            if (kept := self._loaded[name]) is not None:
                kept.become(before)  # the head of the queue holds the same one

    def take_change(self, queued: int, finished: Sequence[str]) -> bytes | None:
        """All changes, packed for the script; None where there are none."""
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
        messages = [msgspec.json.encode(group).decode() for group in groups]
        return _pack((checks, rows, self._commands, queued, messages))

    def _keep_request(self, request_id: str, claims: list[list[str]]) -> None:
        """Once for a request, since a list that is written again with every claim grows with their square."""
        kept = msgspec.json.encode(claims).decode()
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

    # -- changes -------------------------------------------------------------------------------------

    def _do(self, command: str, key: str, *values: Any) -> None:
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
        self._count(stood, stands)

    def _count(self, stood: Index, stands: Index) -> None:
        if stands.status != stood.status:
            if stood.status:
                self._do("HINCRBY", "totals", stood.status, -1)
            self._do("HINCRBY", "totals", stands.status, 1)
        for name, change in (
            ("open", stands.is_open - stood.is_open),
            ("attempts", stands.attempts - stood.attempts),
            ("spans", stands.spans - stood.spans),
        ):
            if change:
                self._do("HINCRBY", "totals", name, change)

    # -- rows ----------------------------------------------------------------------------------------

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

    def touch(self, row: Record) -> Record:
        """A method gets this row, and may change it."""
        if self._has_others and row.rollout_id not in self._before:
            self._before[row.rollout_id] = row.copy()
        return row

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


def _text(value: Any) -> str:
    """The msgpack that scripts read knows no bytes, and their numbers lose digits."""
    return value.decode() if isinstance(value, bytes) else repr(value) if isinstance(value, float) else str(value)
