"""Spans in Redis: a hash for each attempt, and in it each span as JSON."""

from collections.abc import Sequence
from typing import Any

import msgspec

from ...errors import InvalidInputError
from ...types import Event, Link, OtelResource, PaginatedResult, Span, SpanContext, TraceStatus
from ..base import FilterLogic
from ..tables import AttemptRow, Match, Page, RolloutRow, paginate, select
from .records import Record
from .rollouts import RolloutTables
from .texts import is_text

SPANS_AT_ONCE = 500  # in one command of a script

_encode = msgspec.json.Encoder().encode


class _Rest(msgspec.Struct, omit_defaults=True):
    """What most spans do not have."""

    status: TraceStatus = TraceStatus()
    events: list[Event] = []
    links: list[Link] = []
    context: SpanContext | None = None
    parent: SpanContext | None = None
    resource: OtelResource = OtelResource()


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
    rest: _Rest


_decode_span = msgspec.json.Decoder(_KeptSpan).decode


class SpanTables(RolloutTables):
    """The spans of rollouts."""

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
        pairs = []
        for place, span in enumerate(spans, start=rollout.spans):
            pairs.append((span.span_id, _kept_span(place, span)))
            known[span.span_id] = True
            self._new_spans.append((attempt.attempt_id, span.span_id))
        rollout.spans += len(spans)
        for start in range(0, len(pairs), SPANS_AT_ONCE):
            part = pairs[start : start + SPANS_AT_ONCE]
            self._do("HSET", f"spans:{attempt.attempt_id}", *(value for pair in part for value in pair))

    def spans(
        self, rollout: RolloutRow, attempt: AttemptRow | None, matches: list[Match], logic: FilterLogic, page: Page
    ) -> PaginatedResult[Span]:
        attempts = self.attempts(rollout) if attempt is None else [attempt]
        calls = [("HGETALL", self.connection.key(f"spans:{each.attempt_id}")) for each in attempts]
        found: list[tuple[int, Span]] = []
        for each, answer in zip(attempts, self.connection.together(*calls) if calls else [], strict=True):
            for at in range(0, len(answer), 2):
                kept = _decode_span(answer[at + 1])
                found.append((kept.place, _span(rollout.rollout_id, each.attempt_id, answer[at].decode(), kept)))
        found.sort(key=lambda pair: pair[0])
        return paginate(select([span for _, span in found], matches, logic), page)


def _kept_span(place: int, span: Span) -> bytes:
    kept = _KeptSpan(
        place,
        span.sequence_id,
        span.trace_id,
        span.parent_id,
        span.name,
        span.start_time,
        span.end_time,
        span.attributes,
        _Rest(span.status, span.events, span.links, span.context, span.parent, span.resource),
    )
    try:
        return _encode(kept)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"span {span.span_id!r} ({span.name}) cannot be written as JSON: {error}") from None


def _span(rollout_id: str, attempt_id: str, span_id: str, kept: _KeptSpan) -> Span:
    return Span(
        rollout_id,
        attempt_id,
        kept.sequence_id,
        kept.trace_id,
        span_id,
        kept.parent_id,
        kept.name,
        kept.rest.status,
        kept.attributes,
        kept.rest.events,
        kept.rest.links,
        kept.start_time,
        kept.end_time,
        kept.rest.context,
        kept.rest.parent,
        kept.rest.resource,
    )
