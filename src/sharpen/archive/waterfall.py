"""Waterfalls: the spans of an attempt as bars over time."""

import math
from collections.abc import Iterator, Sequence

import msgspec

from ..adapter.rewards import reward_of
from ..adapter.tree import SpanNode, build_tree, roots
from ..semconv import LightningSpanAttributes
from ..types import Span
from .entries import kind_of

_OPERATION = LightningSpanAttributes.OPERATION_NAME.value


class Bar(msgspec.Struct, frozen=True):
    """One span. `kind` is that of its entry, or "span"; `parent_id` is the bar above it, None at the top."""

    span_id: str
    parent_id: str | None
    depth: int
    name: str
    kind: str
    start: float
    end: float
    is_error: bool
    reward: float | None


class Waterfall(msgspec.Struct, frozen=True):
    """Bars, parents before children, siblings in the order of time; all between `start` and `end`."""

    start: float
    end: float
    bars: list[Bar]


def waterfall(spans: Sequence[Span]) -> Waterfall:
    """The bars of all spans. One whose parent is unknown stands at the top; a span without times has no length, and
    stands where its number puts it."""
    nodes = build_tree(spans)
    starts = [node.start for node in nodes if math.isfinite(node.start)]
    start = min(starts, default=0.0)
    end = max((node.end for node in nodes if math.isfinite(node.end)), default=start)
    bars = [_bar(node, depth, first=start, last=end) for node, depth in _walk(nodes)]
    return Waterfall(start, end, bars)


def _walk(nodes: Sequence[SpanNode]) -> Iterator[tuple[SpanNode, int]]:
    """Without recursion, since a trace may be deep."""
    waiting = [(node, 0) for node in reversed(roots(nodes))]
    while waiting:
        node, depth = waiting.pop()
        yield node, depth
        below = sorted(node.children, key=lambda child: child.position, reverse=True)
        waiting.extend((child, depth + 1) for child in below)


def _bar(node: SpanNode, depth: int, *, first: float, last: float) -> Bar:
    span = node.span
    start = node.start if math.isfinite(node.start) else first
    end = node.end if math.isfinite(node.end) else start
    return Bar(
        span.span_id,
        node.parent.span.span_id if node.parent is not None else None,
        depth,
        _name(span),
        kind_of(span) or "span",
        start,
        min(max(start, end), last) if last >= start else start,
        span.status.status_code == "ERROR",
        reward_of(span),
    )


def _name(span: Span) -> str:
    return str(span.attributes.get(_OPERATION) or span.name)
