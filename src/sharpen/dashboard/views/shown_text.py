"""Texts of agents and models for a page: nothing in them hides or reverses text, or fills the screen.

Templates escape all of it; this module handles what HTML escaping does not (control characters, sizes, values of any
type).
"""

import json
import math
import unicodedata
from typing import Any

import msgspec

from ..formats import number

MOST_CHARACTERS = 4_000
_MOST_DEPTH = 60
_LINE = 100
# Marks that join letters or emoji; they are harmless.
_HARMLESS = frozenset("\u200c\u200d\ufe0f\u00ad")


class Clipped(msgspec.Struct, frozen=True):
    """The beginning of a text, and its full length."""

    text: str
    length: int
    is_cut: bool


def visible(text: str) -> str:
    """Return the text with hidden characters escaped: an escape as `\\x1b`, a mark that reverses text as `\\u202e`."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(char if char in "\n\t" or char.isprintable() else _spelt(char) for char in text)


def _spelt(char: str) -> str:
    if char == "\r":
        return ""
    if ord(char) < 0x20:
        return f"\\x{ord(char):02x}"
    kind = unicodedata.category(char)
    if char in _HARMLESS or kind == "Zs":
        return char
    return f"\\u{ord(char):04x}"


def clipped(text: str, most: int = MOST_CHARACTERS) -> Clipped:
    """Return what a page shows first. A text slightly longer than `most` is not cut, since that would save nothing."""
    if len(text) <= most * 1.25:
        return Clipped(visible(text), len(text), False)
    return Clipped(visible(text[:most]), len(text), True)


def one_line(text: str, most: int = 160) -> str:
    """Return the beginning of a text on one line."""
    short = " ".join(text[: most * 4].split())
    cut = len(short) > most or len(text) > most * 4
    return visible(short[:most].rstrip()) + ("…" if cut else "")


def short_id(text: str, most: int = 20) -> str:
    """Return the beginning and the end of an id: ids of one run begin alike."""
    if len(text) <= most:
        return visible(text)
    return f"{visible(text[:5])}…{visible(text[-(most - 6) :])}"


def as_words(value: Any, most: int = 160) -> str:
    """Return a task on one line; for a dict its names and values, without JSON punctuation."""
    if not isinstance(value, dict) or not value:
        return one_line(as_text(value) if not isinstance(value, str) else value, most)
    pairs = [f"{one_line(str(name), 40)}: {one_line(as_text(item), most)}" for name, item in list(value.items())[:12]]
    return one_line(" · ".join(pairs), most)


def as_text(value: Any) -> str:
    """Return a task or an attribute as text: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else as_json(value)


def as_json(value: Any) -> str:
    """Return readable JSON of any value: lists of numbers on one line, unknown types by their `repr`."""
    return "".join(_pieces(value, "", 0))


def _pieces(value: Any, indent: str, depth: int) -> list[str]:
    if not isinstance(value, dict | list | tuple) or not value or depth >= _MOST_DEPTH:
        return [_compact(value)]
    if _fits_on_a_line(value):
        return [_compact(value)]
    inner = indent + "  "
    is_dict = isinstance(value, dict)
    items = list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]
    pieces = ["{\n" if is_dict else "[\n"]
    for place, (key, item) in enumerate(items):
        pieces.append(inner + (f"{json.dumps(str(key), ensure_ascii=False)}: " if is_dict else ""))
        pieces.extend(_pieces(item, inner, depth + 1))
        pieces.append(",\n" if place < len(items) - 1 else "\n")
    return [*pieces, indent, "}" if is_dict else "]"]


def _fits_on_a_line(value: Any) -> bool:
    items = list(value.values()) if isinstance(value, dict) else value
    if any(isinstance(item, dict | list | tuple) and item for item in items):
        return False
    if all(isinstance(item, int | float) for item in items) and not isinstance(value, dict):
        return True
    return len(items) <= 8 and len(_compact(value)) <= _LINE


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=repr)
    except (RecursionError, ValueError, TypeError) as error:
        return f"({type(error).__name__}: this value cannot be written as JSON)"


def signed(value: float) -> str:
    """Return a difference: `+0.25`, `-0.5`, `0`."""
    text = number(abs(value))
    return text if not value or math.isnan(value) else f"{'+' if value > 0 else '-'}{text}"


# Functions for the templates of these pages, in addition to the filters of every page.
TEXT_TOOLS: dict[str, Any] = {
    "visible": visible,
    "clipped": clipped,
    "one_line": one_line,
    "as_text": as_text,
    "short_id": short_id,
    "signed": signed,
}
