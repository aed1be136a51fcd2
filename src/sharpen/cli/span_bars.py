"""The waterfall of an attempt in a terminal: a line for each span, with its place in time."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ..archive.transcript import Bar, Waterfall, waterfall
from ..types import Span
from .output import one_line

_WIDTH = 40
_STYLES = {"call": "green", "tool": "yellow", "reward": "cyan", "error": "red", "operation": "blue"}


def draw_spans(spans: Sequence[Span]) -> Iterator[RenderableType]:
    """A title and a table."""
    drawn = waterfall(spans)
    yield Text.assemble(("── ", "dim"), (f"{len(drawn.bars)} spans", "bold"), f" in {drawn.end - drawn.start:.3f} s")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(4):
        table.add_column(no_wrap=True, overflow="ellipsis")
    for bar in drawn.bars:
        table.add_row(*_row(bar, drawn))
    yield table


def _row(bar: Bar, drawn: Waterfall) -> Iterator[Text]:
    style = "red" if bar.is_error else _STYLES.get(bar.kind, "")
    yield Text("  " * min(bar.depth, 20) + one_line(bar.name), style=style)
    yield Text(f"{bar.start - drawn.start:8.3f} s +{bar.end - bar.start:.3f}", style="dim")
    yield Text(_stripe(bar, drawn), style=style)
    yield Text("" if bar.reward is None else f"reward {bar.reward:.6g}", style="cyan")


def _stripe(bar: Bar, drawn: Waterfall) -> str:
    whole = drawn.end - drawn.start
    if whole <= 0:
        return "▏"
    first = min(int((bar.start - drawn.start) / whole * _WIDTH), _WIDTH - 1)
    length = round((bar.end - bar.start) / whole * _WIDTH)
    return " " * first + ("█" * min(length, _WIDTH - first) or "▏")
