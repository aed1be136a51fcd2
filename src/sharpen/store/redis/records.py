"""Rollouts and attempts as they stand in Redis: JSON arrays, whose order is known to the scripts as well."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ...types import AttemptStatus, RolloutMode, RolloutStatus
from ..tables import AttemptRow, RolloutRow, packed_config, unpacked_config
from ..transitions import OPEN, PHASES

_encode = msgspec.json.Encoder().encode


class _Try(msgspec.Struct, array_like=True):
    """An attempt. `SWEEP` reads the fields 1, 6 and 11."""

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
    latest: _Try | None


_decode_state = msgspec.json.Decoder(_State).decode
_decode_tries = msgspec.json.Decoder(list[_Try]).decode


class AttemptRecord(AttemptRow):
    """An attempt: the latest of its rollout, or one that has been replaced."""

    def copy(self) -> "AttemptRecord":
        return msgspec.structs.replace(self)


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

    latest: AttemptRecord | None = None
    old: list[AttemptRecord] = []
    spans: int = 0
    finish: int = 0
    version: str = ""
    """As it is in Redis; nothing while the rollout is not there yet."""
    stood: Index = NOWHERE
    has_new_body: bool = False
    has_new_old: bool = False

    def copy(self) -> "Record":
        """One that stays as it is when this one changes."""
        latest = None if self.latest is None else self.latest.copy()
        return msgspec.structs.replace(self, latest=latest, old=[attempt.copy() for attempt in self.old])

    def become(self, other: "Record") -> None:
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))

    def stands(self) -> Index:
        latest, phase = self.latest, PHASES[self.status]
        is_open = latest is not None and phase == "active" and latest.status in OPEN
        holder = None
        if latest is not None and is_open and latest.worker_id is not None:
            holder = latest.worker_id, latest.start_time
        tries = self.old if latest is None else [*self.old, latest]
        unwanted = frozenset((a.worker_id, a.attempt_id) for a in tries if a.unwanted and a.worker_id is not None)
        deadline = None if latest is None else latest.deadline
        return Index(self.status, phase, self.reward, deadline, holder, is_open, unwanted, self.attempts, self.spans)


def read_record(found: Sequence[Any]) -> Record:
    """A rollout from what the scripts answer: version, number, finish, state, input, metadata, old attempts, id."""
    version, number, finish, state_text, input, metadata, old, rollout_id = found
    state, name = _decode_state(state_text), rollout_id.decode()
    row = Record(
        name,
        input.decode(),
        state.start_time,
        state.mode,
        state.resources_id,
        state.resources_version,
        unpacked_config(state.config),
        None if not metadata else metadata.decode(),
        state.status,
        state.end_time,
        state.reward,
        state.reward_span,
        state.attempts,
        state.last_span,
        int(number),
        None if state.latest is None else _attempt(name, state.latest),
        [] if old is None else [_attempt(name, attempt) for attempt in _decode_tries(old)],
        state.spans,
        0 if finish is None else int(finish),
        version.decode(),
    )
    row.stood = row.stands()
    return row


def state_of(row: Record) -> str:
    return _encode(
        _State(
            row.status,
            row.end_time,
            row.start_time,
            row.mode,
            row.resources_id,
            row.resources_version,
            packed_config(row.config),
            row.reward,
            row.reward_span,
            row.attempts,
            row.last_span,
            row.spans,
            None if row.latest is None else _try(row.latest),
        )
    ).decode()


def old_attempts_of(row: Record) -> str:
    return _encode([_try(attempt) for attempt in row.old]).decode()


def _attempt(rollout_id: str, kept: _Try) -> AttemptRecord:
    return AttemptRecord(rollout_id, *(getattr(kept, name) for name in _FIELDS))


def _try(row: AttemptRecord) -> _Try:
    return _Try(*(getattr(row, name) for name in _FIELDS))


_FIELDS = _Try.__struct_fields__
