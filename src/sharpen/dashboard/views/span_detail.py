"""The details of one span: attributes of any type, events, links."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ...errors import UnknownIdError
from ...types import Span
from .shown_text import Clipped, as_json, as_text, clipped, visible

_MOST_CHARACTERS = 2_000
_MOST_EVENTS, _MOST_ATTRIBUTES = 200, 500
_SHORT = 80
_MOST_PARSED = 500_000
_LAST_MOMENT = 253_402_300_000.0


class ShownAttribute(msgspec.Struct, frozen=True):
    """A name and the beginning of its value; `is_long` ones get a separate box."""

    name: str
    key: str
    value: Clipped
    is_long: bool


class ShownEvent(msgspec.Struct, frozen=True):
    name: str
    after: float | None
    attributes: list[ShownAttribute]


class SpanDetail(msgspec.Struct, frozen=True):
    """A span for the page; `start` and `seconds` are None without a valid time."""

    span: Span
    start: float | None
    seconds: float | None
    attributes: list[ShownAttribute]
    num_hidden: int
    events: list[ShownEvent]
    resource: list[ShownAttribute]


def span_details(spans: Iterable[Span], span_id: str) -> list[SpanDetail]:
    """Return the spans of this id: one, or several if traces share ids."""
    return [_detail(span) for span in spans if span.span_id == span_id][:10]


def attribute_text(spans: Sequence[Span], key: str) -> str:
    """Return the full value of one attribute."""
    for span in spans:
        if key in span.attributes:
            return _readable(span.attributes[key])
    raise UnknownIdError(f"span {spans[0].span_id!r} has no attribute {key!r}")


def _detail(span: Span) -> SpanDetail:
    start = _moment(span.start_time)
    return SpanDetail(
        span,
        start,
        _between(start, _moment(span.end_time)),
        _attributes(span.attributes),
        max(len(span.attributes) - _MOST_ATTRIBUTES, 0),
        [
            ShownEvent(visible(each.name), _between(start, _moment(each.timestamp)), _attributes(each.attributes))
            for each in span.events[:_MOST_EVENTS]
        ],
        _attributes(span.resource.attributes),
    )


def _moment(seconds: float | None) -> float | None:
    """Return a time if it can be written as a date; agents may send any number."""
    return seconds if seconds is not None and 0 < seconds < _LAST_MOMENT else None


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _attributes(values: Mapping[str, Any]) -> list[ShownAttribute]:
    shown = []
    for key, value in sorted(values.items())[:_MOST_ATTRIBUTES]:
        text = clipped(_readable(value), _MOST_CHARACTERS)
        shown.append(ShownAttribute(visible(key), key, text, len(text.text) > _SHORT or "\n" in text.text))
    return shown


def _readable(value: Any) -> str:
    """Return JSON in a text in readable form."""
    if isinstance(value, str) and value[:1] in ("[", "{") and len(value) <= _MOST_PARSED:
        try:
            return as_json(msgspec.json.decode(value))
        except (msgspec.DecodeError, RecursionError):
            return value
    return as_text(value)
