"""The small curve of a run in the list: the trend of its reward, or else of its loss."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..archive.catalog import RunEntry
from ..archive.curves import main_metrics, read_curves

WIDTH, HEIGHT, MARGIN = 100.0, 24.0, 2.0
POINTS = 60
MAX_BYTES = 32_000_000  # a larger file is read only by the page of its run
_KEPT = 4000


class Spark(msgspec.Struct, frozen=True):
    """`points` of an SVG polyline, and a description of it."""

    points: str
    words: str


_cache: OrderedDict[tuple[Path, int, int], Spark | None] = OrderedDict()
_lock = threading.Lock()


def spark_of(entry: RunEntry) -> Spark | None:
    """Return None if there are fewer than two points. A file is read again only when it has changed."""
    path = entry.metrics_path
    try:
        found = None if path is None else path.stat()
    except FileNotFoundError:
        found = None
    if path is None or found is None or found.st_size > MAX_BYTES:
        return None
    key = path, found.st_mtime_ns, found.st_size
    with _lock:
        if key in _cache:
            return _cache[key]
    made = _made(entry, path)
    with _lock:
        _cache[key] = made
        while len(_cache) > _KEPT:
            _cache.popitem(last=False)
    return made


def _made(entry: RunEntry, path: Path) -> Spark | None:
    name = entry.reward_name or next((each for each in main_metrics(entry.metrics) if "loss" in each), None)
    if name is None:
        return None
    series = read_curves(path, [name], max_points=POINTS).get(name)
    if series is None or len(series.values) < 2:
        return None
    first, last = series.values[0], series.values[-1]
    words = f"{name} from {first:.3g} to {last:.3g}, minimum {min(series.values):.3g}, maximum {max(series.values):.3g}"
    return Spark(polyline(series.steps, series.values), words)


def polyline(xs: Sequence[float], ys: Sequence[float]) -> str:
    """Return the points within the picture; a constant curve is in the middle."""
    left, right, low, high = xs[0], xs[-1], min(ys), max(ys)
    across = (WIDTH - 2 * MARGIN) / ((right - left) or 1.0)
    up = (HEIGHT - 2 * MARGIN) / ((high - low) or 1.0)
    middle = HEIGHT / 2

    def place(x: float, y: float) -> str:
        down = HEIGHT - MARGIN - (y - low) * up if high > low else middle
        return f"{MARGIN + (x - left) * across:.1f},{down:.1f}"

    return " ".join(place(x, y) for x, y in zip(xs, ys, strict=True))
