"""The bars of a waterfall as rows of a page: shares of the width, a collapsible tree, and a time scale."""

import math
from collections.abc import Sequence

import msgspec

from ...archive.transcript import Bar, Waterfall
from ..formats import duration
from .shown_text import one_line

MOST_ROWS = 3_000
MOST_INDENT = 12
_NUM_TICKS = 4
# Narrower bars would be invisible; they are drawn as points.
_LEAST_SHARE = 0.004
_SHAPES = {
    "reward": "diamond",
    "error": "cross",
    "tool": "square",
    "annotation": "dot",
    "object": "dot",
    "message": "dot",
}


class Tick(msgspec.Struct, frozen=True):
    """A mark of the scale: its position in per cent, and the time since the start."""

    x: str
    label: str


class Row(msgspec.Struct, frozen=True):
    """One bar. `x` and `width` are shares of the width; a bar too short to see has no width and is a point."""

    span_id: str
    name: str
    kind: str
    shape: str
    depth: int
    indent: int
    num_below: int
    x: str
    width: str | None
    duration: str
    is_error: bool
    reward: float | None


class WaterfallRows(msgspec.Struct, frozen=True):
    """The rows to draw, and the total number."""

    rows: list[Row]
    ticks: list[Tick]
    total: int

    @property
    def is_cut(self) -> bool:
        return len(self.rows) < self.total


def waterfall_rows(waterfall: Waterfall, *, most: int = MOST_ROWS) -> WaterfallRows:
    """Return the first `most` bars as rows."""
    length = max(waterfall.end - waterfall.start, 1e-9)
    below = _num_below(waterfall.bars)
    rows = [
        _row(bar, number, waterfall.start, length) for bar, number in zip(waterfall.bars[:most], below, strict=False)
    ]
    return WaterfallRows(rows, _ticks(waterfall.end - waterfall.start), len(waterfall.bars))


def _row(bar: Bar, num_below: int, start: float, length: float) -> Row:
    first = min(max((bar.start - start) / length, 0.0), 1.0)
    share = min(max((bar.end - bar.start) / length, 0.0), 1.0 - first)
    return Row(
        span_id=bar.span_id,
        name=one_line(bar.name, 80) or "(no name)",
        kind=bar.kind,
        shape=_SHAPES.get(bar.kind, "bar"),
        depth=bar.depth,
        indent=min(bar.depth, MOST_INDENT),
        num_below=num_below,
        x=_percent(first),
        width=_percent(share) if share >= _LEAST_SHARE else None,
        duration=_length(bar.end - bar.start) if bar.end > bar.start else "",
        is_error=bar.is_error,
        reward=bar.reward,
    )


def _num_below(bars: Sequence[Bar]) -> list[int]:
    """Return the number of descendants of each bar: those that follow with a greater depth."""
    counts, open_bars = [0] * len(bars), list[int]()
    for number, bar in enumerate(bars):
        while open_bars and bars[open_bars[-1]].depth >= bar.depth:
            last = open_bars.pop()
            counts[last] = number - last - 1
        open_bars.append(number)
    for last in open_bars:
        counts[last] = len(bars) - last - 1
    return counts


def _length(seconds: float) -> str:
    return duration(seconds) if seconds < 1e12 else "?"


def _percent(share: float) -> str:
    return f"{share * 100:.2f}%"


def _ticks(length: float) -> list[Tick]:
    """Return about five round times."""
    if not math.isfinite(length) or length <= 0:
        return [Tick("0%", "0")]
    rough = length / _NUM_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.8)
    # One at the very end would overlap the durations.
    count = int(length * 0.94 / step) + 1
    return [Tick(_percent(place * step / length), _length(place * step) if place else "0") for place in range(count)]
