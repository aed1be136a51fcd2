"""The tree of spans: how it is built, repaired and drawn.

Every span of a trace is one node, whatever is wrong with its parent: a span with an unknown parent is a root, and so is
one of a cycle. Nodes are numbered in the order of time; a span without times is placed by its sequence id.
"""

import html
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from ..checks import is_number
from ..errors import ConfigError
from ..semconv import PRIMARY_REWARD_VALUE, LightningSpanAttributes
from ..types import Span

_Key = tuple[str, str]
_LINE_HEIGHT, _CHARACTER_WIDTH, _MARGIN = 18, 8, 12
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


@dataclass(eq=False, slots=True)
class SpanNode:
    """A span and its place: its number in the order of time, its interval, its parent and children."""

    span: Span
    position: int
    start: float
    end: float
    parent: "SpanNode | None" = None
    children: "list[SpanNode]" = field(default_factory=list)
    # As it was recorded, before any repair.
    recorded_parent: "SpanNode | None" = None
    # The span names a parent that is not in the trace.
    is_orphan: bool = False

    @property
    def attempt(self) -> tuple[str, str]:
        return self.span.rollout_id, self.span.attempt_id

    def ancestors(self) -> "Iterator[SpanNode]":
        """Yield the nodes above, from the parent to the root."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def contains(self, other: "SpanNode") -> bool:
        return self.start <= other.start and other.end <= self.end


def build_tree(spans: Iterable[Span]) -> list[SpanNode]:
    """Return the nodes of all spans in the order of time, linked by their parent ids; duplicate spans are one node."""
    nodes = {(node.span.trace_id, node.span.span_id): node for node in reversed(_in_order(list(spans)))}
    ordered = sorted(nodes.values(), key=lambda node: node.position)
    for node in ordered:
        _link(node, nodes)
    _break_cycles(ordered)
    return ordered


def roots(nodes: Iterable[SpanNode]) -> list[SpanNode]:
    """Return the nodes without a parent."""
    return [node for node in nodes if node.parent is None]


def reward_of(span: Span) -> float | None:
    """Return the primary reward that the span carries."""
    value = span.attributes.get(PRIMARY_REWARD_VALUE)
    return float(value) if is_number(value) else None


def _in_order(spans: Sequence[Span]) -> list[SpanNode]:
    """Sort by start time, then sequence id. A span without a start time takes that of the span numbered before it."""
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


def _break_cycles(nodes: Iterable[SpanNode]) -> None:
    """Make the first node of each cycle a root: no root leads to the nodes of a cycle."""
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
    """Yield a node and all below it; without recursion, since a trace may be deep."""
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

    Moved are spans whose parent is missing, with all below them, and spans without children that are siblings of a span
    of the same attempt that contains them. A span that has children keeps its place: its context was passed on, so it
    is more likely to have run side by side. If two spans that overlap each other only in part contain it, neither of
    the two is chosen. `may_adopt(parent, child)` can refuse a move.
    """
    active: list[SpanNode] = []
    # Of spans that start together, the longest comes first.
    for node in sorted(nodes, key=lambda node: (node.start, -node.end, node.position)):
        active = [other for other in active if other.end >= node.start]
        if node.is_orphan or not node.children:
            _adopt(node, [other for other in active if _can_hold(other, node) and may_adopt(other, node)])
        if node.end > node.start:
            active.append(node)
    for node in nodes:
        node.children.sort(key=lambda child: child.position)


def _can_hold(other: SpanNode, node: SpanNode) -> bool:
    """Whether the other span contains this one and is its sibling, or below a sibling."""
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
    """Return the last of them, outermost first, that contains all after it and lies in all before it."""
    found, earliest_end = None, math.inf
    for number, holder in enumerate(holders):
        if holder.end <= earliest_end and all(holder.end >= later.end for later in holders[number + 1 :]):
            found = holder
        earliest_end = min(earliest_end, holder.end)
    return found


# -- drawing -----------------------------------------------------------------------------------------


def draw(nodes: Sequence[SpanNode], calls: Collection[int], filename: str | PathLike[str] | None = None) -> str:
    """Return one line for each span, children below their parent. LLM calls are marked; rewards show their value."""
    text = "\n".join(_lines(nodes, calls))
    if filename is not None:
        _write(text, Path(filename))
    return text


def _lines(nodes: Sequence[SpanNode], calls: Collection[int]) -> Iterator[str]:
    # Without recursion, since a trace may be deep.
    waiting = [(root, "", "") for root in reversed(roots(nodes))]
    while waiting:
        node, branch, indent = waiting.pop()
        yield branch + _label(node, is_call=node.position in calls)
        for number, child in enumerate(reversed(node.children)):
            is_last = number == 0
            waiting.append((child, indent + ("└── " if is_last else "├── "), indent + ("    " if is_last else "│   ")))


def _label(node: SpanNode, *, is_call: bool) -> str:
    span, reward = node.span, reward_of(node.span)
    operation = span.attributes.get(LightningSpanAttributes.OPERATION_NAME.value)
    parts = [span.name, str(operation) if operation else "", "[LLM call]" if is_call else ""]
    parts.append(f"reward {reward:g}" if reward is not None else "")
    parts.append(f"{node.end - node.start:.3f} s" if node.end > node.start else "")
    parts.append("ERROR" if span.status.status_code == "ERROR" else "")
    return _CONTROL.sub(" ", "  ".join(filter(None, parts)))


def _write(text: str, path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix not in ("", ".txt", ".svg"):
        raise ConfigError(f"filename is {str(path)!r}: use a name that ends with .txt or .svg")
    target = path if suffix else path.with_suffix(".txt")
    target.write_text(_svg(text) if suffix == ".svg" else text + "\n", encoding="utf-8")


def _svg(text: str) -> str:
    lines = text.split("\n")
    width = max(map(len, lines)) * _CHARACTER_WIDTH + 2 * _MARGIN
    height = len(lines) * _LINE_HEIGHT + 2 * _MARGIN
    rows = "\n".join(
        f'<text x="{_MARGIN}" y="{_MARGIN + (number + 1) * _LINE_HEIGHT - 5}">{html.escape(line)}</text>'
        for number, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" xml:space="preserve" '
        'font-family="monospace" font-size="13" fill="#222">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{rows}\n</svg>\n'
    )
