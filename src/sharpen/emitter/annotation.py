"""Annotations: whatever a user wants to note, as attributes of a span."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import InvalidInputError
from ..semconv import AGL_ANNOTATION
from ..types import Attributes, SpanCoreFields
from .span import emit


def emit_annotation(annotation: Mapping[str, Any], *, propagate: bool = True) -> SpanCoreFields:
    """Record attributes; nested dicts become dotted keys (`{"a": {"b": 1}}` is `a.b`)."""
    if not isinstance(annotation, Mapping):
        raise InvalidInputError(f"an annotation is a dict, not {type(annotation).__name__}")
    return emit(AGL_ANNOTATION, flatten(annotation), propagate=propagate)


def flatten(values: Mapping[str, Any]) -> Attributes:
    """One level of dotted keys. Lists of plain values stay lists; in other lists the index becomes part of the key."""
    flat: Attributes = {}
    for key, value in _leaves(values, ()):
        if key in flat:
            raise InvalidInputError(f"the annotation has two values for {key!r}: one flat, one nested")
        flat[key] = value
    return flat


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if len(path) > 100:
        raise InvalidInputError(f"the annotation is nested too deeply, from {'.'.join(path[:3])!r} on")
    if isinstance(value, Mapping) and (value or not path):
        for key, item in value.items():
            yield from _leaves(item, (*path, _key(key, path)))
    elif isinstance(value, list | tuple) and not all(_is_plain(item) for item in value):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, str(index)))
    else:
        yield ".".join(path), _leaf(value, path)


def _key(key: Any, path: tuple[str, ...]) -> str:
    if isinstance(key, str) and key:
        return str(key)
    where = f" under {'.'.join(path)!r}" if path else ""
    raise InvalidInputError(f"the annotation has the key {key!r}{where}: keys are texts")


def _leaf(value: Any, path: tuple[str, ...]) -> Any:
    if _is_plain(value):
        return value
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {}
    raise InvalidInputError(
        f"the annotation {'.'.join(path)!r} is {_shown(value)}: use texts, finite numbers, booleans, None, "
        "and dicts or lists of them"
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, float) else f"of type {type(value).__name__}"
