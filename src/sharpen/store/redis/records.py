"""What stands in Redis, as values: rollouts with their attempts, spans, and large tasks.

Rollouts and attempts are JSON arrays, whose order is known to the scripts as well. A large task is kept once for all
rollouts that have it; it is named by its hash, so what was read once never gets old.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import astuple

from ...types import AttemptStatus, RolloutMode, RolloutStatus, Span
from ..tables import AttemptRow, RolloutRow, SpanBody, packed_config, refused_span, span_of, unpacked_config
from ..transitions import OPEN, PHASES
from .connection import Connection

SHARED_BYTES = 1024  # a smaller task costs less than the sharing
CACHED_BYTES = 16 * 2**20
_encode = msgspec.json.Encoder().encode


class ChangedMeanwhileError(Exception):
    """What was read does not fit together, since somebody else changed it: read again."""


def is_text(value: object) -> bool:
    """Whether it is a text that Redis can be asked for: a lone half of a surrogate pair, for one, cannot be written."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# -- rollouts and attempts ---------------------------------------------------------------------------


class _Attempt(msgspec.Struct, array_like=True):
    """An attempt: the fields of `AttemptRow` without its rollout's. `SWEEP` reads the fields 1, 6 and 11."""

    attempt_id: str
    sequence_id: int
    start_time: float
    end_time: float | None
    status: AttemptStatus
    worker_id: str | None
    last_heartbeat_time: float | None
    metadata: str | None
    deadline: float | None
    unwanted: bool
    request_id: str | None


class _State(msgspec.Struct, array_like=True):
    """All of a rollout that changes while it lives. `SWEEP` reads the fields 1, 2 and 13."""

    status: RolloutStatus
    end_time: float | None
    start_time: float
    mode: RolloutMode | None
    resources_id: str | None
    resources_version: int | None
    config: str | None
    reward: float | None
    reward_span: int
    attempts: int
    last_span: int
    spans: int
    latest: _Attempt | None


_decode_state = msgspec.json.Decoder(_State).decode
_decode_attempts = msgspec.json.Decoder(list[_Attempt]).decode
_PLAIN = [name for name in _State.__struct_fields__ if name not in ("config", "latest")]


class Index(msgspec.Struct, frozen=True):
    """Where a rollout stands in the indexes, as it follows from its fields."""

    status: str = ""
    phase: str = ""
    reward: float | None = None
    deadline: float | None = None
    holder: tuple[str, float] | None = None
    """The worker in whose hands it is, and since when."""
    is_open: bool = False
    unwanted: frozenset[tuple[str, str]] = frozenset()
    """Workers, and the attempts that they are to give up."""
    attempts: int = 0
    spans: int = 0


NOWHERE = Index()


class Record(RolloutRow):
    """A rollout with its attempts, its version and where it stood in the indexes when it was read."""

    latest: AttemptRow | None = None
    old: list[AttemptRow] = []
    spans: int = 0
    finish: int = 0
    version: str = ""
    """As it is in Redis; nothing while the rollout is not there yet."""
    stood: Index = NOWHERE
    has_new_body: bool = False
    has_new_old: bool = False

    def all_attempts(self) -> list[AttemptRow]:
        return [*self.old] if self.latest is None else [*self.old, self.latest]

    def stands(self) -> Index:
        latest, phase = self.latest, PHASES[self.status]
        is_open = latest is not None and phase == "active" and latest.status in OPEN
        holder = None
        if latest is not None and is_open and latest.worker_id is not None:
            holder = latest.worker_id, latest.start_time
        told = (each for each in self.all_attempts() if each.unwanted)
        unwanted = frozenset((each.worker_id, each.attempt_id) for each in told if each.worker_id is not None)
        deadline = None if latest is None else latest.deadline
        return Index(self.status, phase, self.reward, deadline, holder, is_open, unwanted, self.attempts, self.spans)


def read_record(found: Sequence[Any]) -> Record:
    """Return a rollout from what the scripts answer of it, see `_ROW` there."""
    version, number, finish, state_text, input, metadata, old, name = found
    state, rollout_id = _decode_state(state_text), name.decode()
    row = Record(
        rollout_id,
        input.decode(),
        config=unpacked_config(state.config),
        metadata=metadata.decode() if metadata else None,
        latest=None if state.latest is None else AttemptRow(rollout_id, *astuple(state.latest)),
        old=[AttemptRow(rollout_id, *astuple(attempt)) for attempt in _decode_attempts(old or b"[]")],
        number=int(number),
        finish=int(finish or 0),
        version=version.decode(),
        **{name: getattr(state, name) for name in _PLAIN},
    )
    row.stood = row.stands()
    return row


def state_of(row: Record) -> str:
    latest = None if row.latest is None else _kept_attempt(row.latest)
    plain = {name: getattr(row, name) for name in _PLAIN}
    return _encode(_State(config=packed_config(row.config), latest=latest, **plain)).decode()


def old_attempts_of(row: Record) -> str:
    return _encode([_kept_attempt(attempt) for attempt in row.old]).decode()


def _kept_attempt(row: AttemptRow) -> _Attempt:
    return _Attempt(*astuple(row)[1:-1])


# -- spans -------------------------------------------------------------------------------------------


class _KeptSpan(msgspec.Struct, array_like=True):
    """A span without its ids of rollout, attempt and span, which stand beside it."""

    place: int
    """Its place in the order of arrival."""
    sequence_id: int
    trace_id: str
    parent_id: str | None
    name: str
    start_time: float | None
    end_time: float | None
    attributes: dict[str, Any]
    rest: SpanBody


_decode_span = msgspec.json.Decoder(_KeptSpan).decode


def kept_span(place: int, span: Span) -> bytes:
    """Return the JSON of a span; `place` is its place in the order of arrival."""
    rest = SpanBody(span.status, {}, span.events, span.links, span.context, span.parent, span.resource)
    times = span.start_time, span.end_time
    kept = _KeptSpan(place, span.sequence_id, span.trace_id, span.parent_id, span.name, *times, span.attributes, rest)
    try:
        return _encode(kept)
    except (TypeError, ValueError) as error:
        raise refused_span(span, error) from None


def restore_span(rollout_id: str, attempt_id: str, span_id: str, data: bytes) -> tuple[int, Span]:
    """Return a span with its place in the order of arrival."""
    kept = _decode_span(data)
    kept.rest.attributes = kept.attributes
    ids = kept.trace_id, span_id, kept.parent_id
    times = kept.start_time, kept.end_time
    return kept.place, span_of(rollout_id, attempt_id, kept.sequence_id, *ids, kept.name, *times, kept.rest)


# -- large tasks -------------------------------------------------------------------------------------


class SharedTasks:
    """The large tasks of a store, from any thread; those used last are cached."""

    def __init__(self, connection: Connection, max_bytes: int = CACHED_BYTES) -> None:
        self._connection = connection
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    def name(self, task: bytes) -> str:
        """Return the name under which it is kept; it is known here from now on."""
        name = hashlib.sha256(task).hexdigest()[:40]
        self._keep(name, task)
        return name

    def get(self, name: str) -> bytes:
        with self._lock:
            found = self._known.get(name)
        return self.fetch([name])[name] if found is None else found

    def fetch(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return those that were not known here yet, in one trip."""
        with self._lock:
            wanted = [name for name in dict.fromkeys(names) if name not in self._known]
        if not wanted:
            return {}
        key = self._connection.key
        answers = self._connection.at_once(*(("HGET", key(f"body:{name}"), "d") for name in wanted))
        for name, task in zip(wanted, answers, strict=True):
            if task is None:
                raise ChangedMeanwhileError(f"the task {name} was deleted")
            self._keep(name, task)
        return dict(zip(wanted, answers, strict=True))

    def _keep(self, name: str, task: bytes) -> None:
        with self._lock:
            if name not in self._known:
                self._known[name] = task
                self._size += len(task)
            self._known.move_to_end(name)
            while self._size > self._max_bytes and len(self._known) > 1:
                self._size -= len(self._known.popitem(last=False)[1])
