"""Attribute values as every store can write them: what JSON holds, in text that UTF-8 holds.

A span that a store refuses would cost the attempt it belongs to, so nothing else is recorded.
"""

from collections.abc import Mapping, Sequence, Set as AbstractSet
from math import isfinite
from typing import Any

from ..types import Attributes

_WHOLE = frozenset((int, bool, type(None)))


def plain_attributes(values: Mapping[str, Any] | None) -> Attributes:
    """A copy in which every value is plain."""
    return {plain_text(str(key)): plain(value) for key, value in values.items()} if values else {}


def plain(value: Any) -> Any:
    """Texts, numbers, None, and lists and dicts of them; anything else is described by its type."""
    kind = type(value)
    if kind is str:
        return plain_text(value)
    if kind is float:
        return value if isfinite(value) else str(value)
    if kind in _WHOLE:
        return value
    if isinstance(value, str):
        return plain_text(str(value))
    if isinstance(value, int | float):  # an IntEnum, numpy's float64
        return int(value) if isinstance(value, int) else plain(float(value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, Mapping):
        return plain_attributes(value)
    if isinstance(value, Sequence | AbstractSet):
        return [plain(item) for item in value]
    return _number_or_type(value)


def plain_text(text: str) -> str:
    """The text without lone halves of surrogate pairs, which models produce now and then."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text


def _number_or_type(value: Any) -> Any:
    """numpy's numbers are numbers; of other objects only the type is told, since their text may be anything."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        found = item()
        return plain(found) if type(found) is not type(value) else type_name(value)
    return type_name(value)


def type_name(value: Any) -> str:
    """How a value that cannot be written is described."""
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
