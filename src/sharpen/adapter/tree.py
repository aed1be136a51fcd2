"""The tree of spans.

Every span of a trace is one node, whatever is wrong with its parent: an unknown parent makes a root, and so does a
circle. Nodes are numbered in the order of time; a span without times stands where its sequence id puts it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..types import Span

_Key = tuple[str, str]


@dataclass(eq=False, slots=True)
class SpanNode:
    """A span and its place: its number in the order of time, its interval, its parent and children."""

    span: Span
    position: int
    start: float
    end: float
    parent: "SpanNode | None" = None
    children: "list[SpanNode]" = field(default_factory=list)
    # As it was written, before any repair.
    recorded_parent: "SpanNode | None" = None
    # The span names a parent that is not in the trace.
    is_orphan: bool = False

    @property
    def attempt(self) -> tuple[str, str]:
        return self.span.rollout_id, self.span.attempt_id

    def ancestors(self) -> "Iterator[SpanNode]":
        """From the parent up to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def contains(self, other: "SpanNode") -> bool:
        return self.start <= other.start and other.end <= self.end


def build_tree(spans: Iterable[Span]) -> list[SpanNode]:
    """The nodes of all spans in the order of time, linked by their parent ids; a span given twice is one node."""
    nodes = {(node.span.trace_id, node.span.span_id): node for node in reversed(_in_order(list(spans)))}
    ordered = sorted(nodes.values(), key=lambda node: node.position)
    for node in ordered:
        _link(node, nodes)
    _break_circles(ordered)
    return ordered


def roots(nodes: Iterable[SpanNode]) -> list[SpanNode]:
    """The nodes without a parent."""
    return [node for node in nodes if node.parent is None]


def _in_order(spans: Sequence[Span]) -> list[SpanNode]:
    """By start time, then sequence id. A span without a start time takes that of the span numbered before it."""
    timed, latest = [], -math.inf
    for span in sorted(spans, key=lambda span: span.sequence_id):
        latest = latest if span.start_time is None else span.start_time
        timed.append((latest, span))
    timed.sort(key=lambda pair: pair[0])
    return [SpanNode(span, number, start, _end(span, start)) for number, (start, span) in enumerate(timed)]


def _end(span: Span, start: float) -> float:
    return start if span.end_time is None else max(start, span.end_time)


def _link(node: SpanNode, nodes: dict[_Key, SpanNode]) -> None:
    if not node.span.parent_id:
        return
    node.parent = node.recorded_parent = nodes.get((node.span.trace_id, node.span.parent_id))
    if node.parent is None:
        node.is_orphan = True
    else:
        node.parent.children.append(node)


def _break_circles(nodes: Iterable[SpanNode]) -> None:
    """A node that no root leads to hangs on a circle: the first of each becomes a root."""
    nodes = list(nodes)
    seen: set[int] = set()
    for start in [*roots(nodes), *nodes]:
        if start.position in seen:
            continue
        if start.parent is not None:
            _detach(start)
            start.recorded_parent = None
            start.is_orphan = True
        seen.update(node.position for node in _below(start))


def _below(start: SpanNode) -> Iterator[SpanNode]:
    """A node and all below it; without recursion, since a trace may be deep."""
    waiting = [start]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.children)


def _detach(node: SpanNode) -> None:
    if node.parent is not None:
        node.parent.children.remove(node)
    node.parent = None


def _recorded_ancestors(node: SpanNode) -> Iterator[SpanNode]:
    above = node.recorded_parent
    while above is not None:
        yield above
        above = above.recorded_parent


# -- repair ------------------------------------------------------------------------------------------


def repair_hierarchy(nodes: Sequence[SpanNode], *, may_adopt: Callable[[SpanNode, SpanNode], bool]) -> None:
    """Move spans that lost their parent below the innermost span in whose time they lie.

    Moved are spans whose parent is missing, with all below them, and spans without children that stand beside a span
    of the same attempt that contains them. A span that has children keeps its place: its context was passed on, so it
    is more likely to have run side by side. Where two spans that overlap each other only in part contain it, none of
    the two is chosen. `may_adopt(parent, child)` has the last word.
    """
    active: list[SpanNode] = []
    # A span that starts with another one and ends later is looked at first.
    for node in sorted(nodes, key=lambda node: (node.start, -node.end, node.position)):
        active = [other for other in active if other.end >= node.start]
        if node.is_orphan or not node.children:
            _adopt(node, [other for other in active if _can_hold(other, node) and may_adopt(other, node)])
        if node.end > node.start:
            active.append(node)
    for node in nodes:
        node.children.sort(key=lambda child: child.position)


def _can_hold(other: SpanNode, node: SpanNode) -> bool:
    """Whether a span that contains this one stands beside it, or below one that does."""
    if not other.contains(node) or other.attempt != node.attempt or other is node.parent:
        return False
    if node.recorded_parent is not None and node.recorded_parent not in _recorded_ancestors(other):
        return False
    return node not in other.ancestors()


def _adopt(node: SpanNode, holders: Sequence[SpanNode]) -> None:
    found = _innermost(holders)
    if found is not None:
        _detach(node)
        node.parent = found
        node.is_orphan = False
        found.children.append(node)


def _innermost(holders: Sequence[SpanNode]) -> SpanNode | None:
    """The last of them, outermost first, that contains all after it and lies in all before it."""
    found, earliest_end = None, math.inf
    for number, holder in enumerate(holders):
        if holder.end <= earliest_end and all(holder.end >= later.end for later in holders[number + 1 :]):
            found = holder
        earliest_end = min(earliest_end, holder.end)
    return found
