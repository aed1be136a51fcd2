"""Spans on their way into the database and back."""

import struct
from collections.abc import Iterable
from typing import Any

import msgspec

from ...errors import InvalidInputError
from ...types import Span
from ..tables import body_of, unpacked_body
from .session import Row, Statement

FEW = 20  # so many are inserted one by one, more are copied
COLUMNS = "number, attempt, sequence_id, span_id, trace_id, parent_id, name, start_time, end_time, data"
INSERT = Statement(
    f"INSERT INTO spans ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
    formats=(0, 0, 0, 1, 1, 1, 1, 0, 0, 1),
)
COPY = f"COPY spans ({COLUMNS}) FROM STDIN (FORMAT binary)"

_encode = msgspec.json.Encoder().encode
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_NULL = struct.pack("!i", -1)
_pack_numbers = struct.Struct("!hiqiiiq").pack
_pack_time = struct.Struct("!id").pack
_pack_length = struct.Struct("!i").pack

SpanValues = tuple[int, int, int, bytes, bytes, bytes | None, bytes, float | None, float | None, bytes]


def span_values(number: int, attempt: int, span: Span) -> SpanValues:
    """A span as its row."""
    body = body_of(span)
    try:
        return (
            number,
            attempt,
            span.sequence_id,
            span.span_id.encode(),
            span.trace_id.encode(),
            None if span.parent_id is None else span.parent_id.encode(),
            span.name.encode(),
            _seconds(span.start_time),
            _seconds(span.end_time),
            _encode(body),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError(f"span {span.span_id!r} ({span.name!r}) cannot be written as JSON: {error}") from None


def _seconds(value: float | None) -> float | None:
    return None if value is None else float(value)


def restore_span(rollout_id: str, attempts: dict[int, str], values: Row) -> Span:
    """The span of a row: attempt, number, ids and name, times, body."""
    attempt, sequence_id, trace_id, span_id, parent_id, name, start_time, end_time, data = values
    body = unpacked_body(data)
    return Span(
        rollout_id,
        attempts[attempt],
        sequence_id,
        trace_id.decode(),
        span_id.decode(),
        None if parent_id is None else parent_id.decode(),
        name.decode(),
        body.status,
        body.attributes,
        body.events,
        body.links,
        start_time,
        end_time,
        body.context,
        body.parent,
        body.resource,
    )


def _field(value: bytes | None) -> bytes:
    return _NULL if value is None else _pack_length(len(value)) + value


def _time(value: float | None) -> bytes:
    return _NULL if value is None else _pack_time(8, value)


def copied(rows: Iterable[SpanValues]) -> bytes:
    """Rows as COPY reads them."""
    parts = [_HEADER]
    for number, attempt, sequence_id, span_id, trace_id, parent_id, name, start_time, end_time, data in rows:
        parts.append(_pack_numbers(10, 8, number, 4, attempt, 8, sequence_id))
        parts += (_field(span_id), _field(trace_id), _field(parent_id), _field(name))
        parts += (_time(start_time), _time(end_time), _field(data))
    parts.append(b"\xff\xff")
    return b"".join(parts)


def findable_bytes(text: Any) -> bytes:
    """A text as spans hold it; one that none of them could hold becomes bytes that are in no text."""
    try:
        return str(text).encode()
    except UnicodeEncodeError:
        return b"\xff"
