"""The tree of a trace for people: as text, or as a picture of that text."""

import html
import re
from collections.abc import Collection, Iterator, Sequence
from os import PathLike
from pathlib import Path

from ..errors import ConfigError
from ..semconv import LightningSpanAttributes
from .rewards import reward_of
from .tree import SpanNode, roots

_LINE_HEIGHT, _CHARACTER_WIDTH, _MARGIN = 18, 8, 12
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


def draw(nodes: Sequence[SpanNode], calls: Collection[int], filename: str | PathLike[str] | None = None) -> str:
    """One line for each span, children below their parent. LLM calls are marked; rewards show their value."""
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
        raise ConfigError(f"filename is {str(path)!r}: a tree is written as .txt or .svg")
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
