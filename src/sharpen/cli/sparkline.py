"""A curve in one line of text."""

from collections.abc import Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """The values from left to right, the least at the bottom; of many, each bar is the mean of a stretch."""
    if not values:
        return ""
    means = _stretches(values, width)
    low, high = min(means), max(means)
    if high == low:
        return _BARS[0] * len(means)
    return "".join(_BARS[round((mean - low) / (high - low) * (len(_BARS) - 1))] for mean in means)


def _stretches(values: Sequence[float], width: int) -> list[float]:
    count = min(len(values), width)
    edges = [number * len(values) // count for number in range(count + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
