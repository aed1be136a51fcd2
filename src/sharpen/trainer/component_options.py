"""The options of a component, as far as it keeps them under the names of its constructor: for people who compare runs.

Only plain values are told, and nothing whose name or content looks like a secret.
"""

import inspect
from typing import Any

from ..secrets import HIDDEN, looks_secret, without_secrets

MAX_TEXT = 2000
_NUMBERS = (int, float)


def options_of(component: object) -> dict[str, Any]:
    """By name; what is no plain value is left out."""
    try:
        names = inspect.signature(type(component)).parameters
    except (TypeError, ValueError):  # some classes have no signature
        return {}
    # Some turn what they are given into one configuration.
    found = {name: _plain(_value(component, name)) for name in dict.fromkeys([*names, "config"])}
    return {
        name: HIDDEN if looks_secret(name, value) else value for name, value in found.items() if value is not _NOT_PLAIN
    }


_NOT_PLAIN = object()


def _value(component: object, name: str) -> Any:
    """What it holds under the name: its own attribute, or a property of its class."""
    if name in getattr(component, "__dict__", {}):
        return component.__dict__[name]
    is_property = isinstance(inspect.getattr_static(type(component), name, None), property)
    return getattr(component, name) if is_property else _NOT_PLAIN


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    for kind in _NUMBERS:
        if isinstance(value, kind):
            return kind(value)  # JSON knows no classes of numbers, such as a default that can be told apart
    if isinstance(value, str):
        text = without_secrets(value)  # before it is cut, or half a secret could stay
        return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "…"
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return _NOT_PLAIN if any(item is _NOT_PLAIN for item in items) else items
    if isinstance(value, dict):
        pairs = {str(key): HIDDEN if looks_secret(str(key), item) else _plain(item) for key, item in value.items()}
        return {key: item for key, item in pairs.items() if item is not _NOT_PLAIN}
    return _NOT_PLAIN
