"""Rows of an SQL database as the rules see them.

A rollout stands in one row with its latest attempt, which nearly every rule needs; attempts that were replaced stand in
a table of their own. SQL is written with `?` for values, which PostgreSQL's tables turn into `$1`, `$2`, …
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from ...types import Resource, Span
from ..base import MAX_INT
from ..tables import AttemptRow, RolloutRow, packed_config, span_of, unpacked_body, unpacked_config

Row = tuple[Any, ...]
Condition = tuple[str, list[Any]]
"""A part of a WHERE clause, and its values."""
R = TypeVar("R", bound="RolloutRecord")


class AttemptRecord(AttemptRow):
    """An attempt: the latest of its rollout, or one that has been replaced."""

    is_old: bool = False


class RolloutRecord(RolloutRow):
    """A rollout with its latest attempt, and where it stands in the database."""

    latest: AttemptRecord | None = None
    phase: str = ""
    place: Any = None


_ATTEMPT_AT, _END = 15, 26
REWARD_AT, NUMBER_AT, PHASE_AT, PLACE_AT, EXTRA_AT = 10, 14, 26, 27, 28
COLUMNS = (
    "rollout_id, input, start_time, mode, resources_id, resources_version, config, metadata, status, end_time, reward, "
    "reward_span, attempts, last_span, number, "
    "attempt_id, attempts, attempt_start, attempt_end, attempt_status, worker_id, heartbeat, attempt_metadata, "
    "deadline, unwanted, request_id, phase, place"
)
"""What is read of a rollout; a database may add columns of its own."""
OLD_ATTEMPT = (
    "attempt_id, sequence_id, start_time, end_time, status, worker_id, last_heartbeat_time, metadata, NULL, unwanted, "
    "request_id"
)
RETIRED = (
    "number, sequence_id, attempt_id, start_time, end_time, status, worker_id, last_heartbeat_time, metadata, "
    "unwanted, request_id"
)
SPAN = "attempt, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, data"
NO_ATTEMPT = AttemptRecord("", "", 0, 0.0)

encode = msgspec.json.Encoder().encode
decode_resources = msgspec.json.Decoder(dict[str, Resource]).decode


def restore_rollout(kind: type[R], values: Row) -> R:
    """Return the rollout of a row of `COLUMNS`, with its latest attempt."""
    config = unpacked_config(values[6])
    row = kind(*values[:6], config, *values[7:_ATTEMPT_AT], None, *values[PHASE_AT:])  # type: ignore[call-arg]
    if values[_ATTEMPT_AT] is not None:
        row.latest = AttemptRecord(row.rollout_id, *values[_ATTEMPT_AT:_END], row.number)  # type: ignore[call-arg]
    return row


def restore_old_attempt(rollout_id: str, number: int, values: Sequence[Any]) -> AttemptRecord:
    return AttemptRecord(rollout_id, *values, number, True)  # type: ignore[call-arg]


def body_values(row: RolloutRow) -> tuple[Any, ...]:
    """Return what a caller may change of a rollout: mode, resources, configuration, input and metadata."""
    config = packed_config(row.config)
    return row.mode, row.resources_id, row.resources_version, config, row.input, row.metadata


def retired_values(row: AttemptRow) -> tuple[Any, ...]:
    """Return the values of `RETIRED`."""
    return (
        row.number,
        row.sequence_id,
        row.attempt_id,
        row.start_time,
        row.end_time,
        row.status,
        row.worker_id,
        row.last_heartbeat_time,
        row.metadata,
        row.unwanted,
        row.request_id,
    )


def restore_span(rollout_id: str, attempts: dict[int, str], columns: Row, data: str | bytes) -> Span:
    """Return the span of a row: its attempt, number, ids, name and times; its body."""
    attempt, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time = columns
    body = unpacked_body(data)
    place = rollout_id, attempts[attempt], sequence_id
    return span_of(*place, trace_id, span_id, parent_id, name, start_time, end_time, body)


# -- values ------------------------------------------------------------------------------------------

_NOWHERE = " "  # no id holds a space


def findable(text: object) -> str:
    """Return the text as a database can look for it; what no text in it could hold is found nowhere."""
    if not isinstance(text, str) or "\0" in text:
        return _NOWHERE
    try:
        text.encode()
    except UnicodeEncodeError:
        return _NOWHERE
    return text


def bounded(number: float) -> int:
    """Return a count or a number that may be larger than any there is."""
    return int(min(number, MAX_INT))


def marks(values: Iterable[Any]) -> str:
    """Return what stands between the parentheses of `IN (…)`; nothing is in an empty list."""
    return ",".join("?" for _ in values) or "NULL"


def joined(conditions: Iterable[Condition], logic: str = "and") -> Condition:
    """Return one condition that stands for several; without any, it always holds."""
    found = list(conditions)
    if not found:
        return "1 = 1", []
    return f"({f' {logic} '.join(part for part, _ in found)})", [value for _, values in found for value in values]
