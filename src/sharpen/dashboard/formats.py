"""How numbers, times and texts look on every page."""

import hashlib
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

_MOST_SECONDS = 60e9  # from 1970, in both directions: about the years 70 to 3870
DASH = "\N{EN DASH}"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number in short form: 1,234 · 0.125 · 3.2e-05."""
    if value is None:
        return DASH
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 10**-digits:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{digits}f}" if abs(value) < 10 else f"{value:.4g}"


def dollars(value: float | None) -> str:
    """Return a price, however small, without an exponent: $12.50 · $0.0032 · $0.000025."""
    if value is None or not math.isfinite(value):
        return DASH
    digits = 2 if value >= 1 or value <= 0 else min(1 - math.floor(math.log10(value)), 12)
    return f"${value:,.{max(digits, 2)}f}"


def reward(value: float | None) -> str:
    """Always with three digits, so that columns line up."""
    return DASH if value is None else f"{value:.3f}" if abs(value) < 1e6 else f"{value:.3g}"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{value * 100:.1f} %"


def duration(seconds: float | None) -> str:
    """12 ms · 3.4 s · 2 min 05 s · 3 h 07 min · 2 d 4 h."""
    if seconds is None or not math.isfinite(seconds):
        return DASH
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days = hours // 24
    return f"{days} d {hours % 24} h" if days < 100_000 else f"{number(float(days))} d"


def age(moment: float | None, now: float | None = None) -> str:
    """Return how long ago a time was."""
    return DASH if moment is None else duration(max((time.time() if now is None else now) - moment, 0))


def moment(seconds: float | None) -> str:
    """2026-11-15 23:10:05, in the time zone of this machine; the page converts it to the viewer's."""
    return DASH if seconds is None or not _has_date(seconds) else f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def iso(seconds: float | None) -> str:
    """For the `datetime` of a `<time>`."""
    if seconds is None or not _has_date(seconds):
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _has_date(seconds: float) -> bool:
    """Return whether a time can be written as a date; agents may write any number."""
    return abs(seconds) < _MOST_SECONDS


def size(bytes_: float | None) -> str:
    if bytes_ is None:
        return DASH
    for unit in ("B", "kB", "MB", "GB"):
        if abs(bytes_) < 1000:
            return f"{bytes_:.0f} {unit}" if unit == "B" else f"{bytes_:.1f} {unit}"
        bytes_ /= 1000
    return f"{bytes_:.1f} TB"


def pretty_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def short(text: object, length: int = 80) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(str(text).split())
    return line if len(line) <= length else line[: length - 1] + "…"


def key(name: object) -> str:
    """Return an element `id` for a name, which may contain characters that selectors, such as htmx's, cannot handle."""
    return f"k{hashlib.sha256(str(name).encode()).hexdigest()[:12]}"


FILTERS: dict[str, Callable[..., str]] = {
    "number": number,
    "dollars": dollars,
    "reward": reward,
    "percent": percent,
    "duration": duration,
    "age": age,
    "moment": moment,
    "iso": iso,
    "size": size,
    "pretty_json": pretty_json,
    "short": short,
    "key": key,
}
