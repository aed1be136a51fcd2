"""`emit_annotation`, `emit_message`, `emit_object`, `emit_exception`: spans that an agent adds to its trace.

`attributes` are added to the span of each; nested dicts become dotted keys. Outside of a rollout, and with
`propagate=False`, a span is built and returned but not recorded.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import InvalidInputError, describe
from ..secrets import hide_known
from ..semconv import AGL_ANNOTATION, AGL_EXCEPTION, AGL_MESSAGE, AGL_OBJECT, LightningSpanAttributes as Names
from ..tracer.base import emit
from ..tracer.trace import exception_attributes
from ..types import Attributes, Span, SpanCoreFields, TraceStatus

AnySpan = Span | SpanCoreFields


def emit_annotation(annotation: Mapping[str, Any], *, propagate: bool = True) -> SpanCoreFields:
    """Record attributes; nested dicts become dotted keys (`{"a": {"b": 1}}` is `a.b`)."""
    if not isinstance(annotation, Mapping):
        raise InvalidInputError(f"an annotation must be a dict, not {type(annotation).__name__}")
    return emit(AGL_ANNOTATION, flatten(annotation), propagate=propagate)


def emit_message(text: str, attributes: Mapping[str, Any] | None = None, *, propagate: bool = True) -> SpanCoreFields:
    """Record a text; `attributes` are added to its span, nested dicts as dotted keys."""
    if not isinstance(text, str):
        raise InvalidInputError(f"a message must be a str, not {type(text).__name__}: use emit_object for other values")
    return emit(AGL_MESSAGE, {**flatten(attributes or {}), Names.MESSAGE_BODY.value: text}, propagate=propagate)


def get_message_value(span: AnySpan) -> str | None:
    """Return the text of a message span; None for other spans."""
    value = span.attributes.get(Names.MESSAGE_BODY.value)
    return value if isinstance(value, str) else None


def emit_object(value: Any, attributes: Mapping[str, Any] | None = None, *, propagate: bool = True) -> SpanCoreFields:
    """Record a value that JSON can express; `attributes` are added to its span, nested dicts as dotted keys."""
    found = {**flatten(attributes or {}), Names.OBJECT_TYPE.value: type(value).__name__}
    if type(value) in (str, bool):
        found[Names.OBJECT_LITERAL.value] = value
    else:
        try:
            found[Names.OBJECT_JSON.value] = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInputError(
                f"an object of type {type(value).__name__} cannot be written as JSON ({error}): pass dicts with str "
                "keys, lists, strings and finite numbers; dataclasses.asdict or model_dump() may help"
            ) from None
    return emit(AGL_OBJECT, found, propagate=propagate)


def get_object_value(span: AnySpan) -> Any:
    """Return the value of an object span, as JSON gives it back; None for other spans."""
    if Names.OBJECT_LITERAL.value in span.attributes:
        return span.attributes[Names.OBJECT_LITERAL.value]
    text = span.attributes.get(Names.OBJECT_JSON.value)
    return json.loads(text) if isinstance(text, str) else None


def emit_exception(
    exception: BaseException, attributes: Mapping[str, Any] | None = None, *, propagate: bool = True
) -> SpanCoreFields:
    """Record an exception: its type, its message and its stack trace. `attributes` are added to its span, nested dicts
    as dotted keys."""
    if not isinstance(exception, BaseException):
        raise InvalidInputError(f"emit_exception takes an exception, not {type(exception).__name__}")
    status = TraceStatus("ERROR", hide_known(describe(exception)))
    found = {**flatten(attributes or {}), **exception_attributes(exception)}
    return emit(AGL_EXCEPTION, found, status=status, propagate=propagate)


def flatten(values: Mapping[str, Any]) -> Attributes:
    """Return one level of dotted keys. Lists of plain values stay lists; in others the index is part of the key."""
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
    raise InvalidInputError(f"the annotation has the key {key!r}{where}: keys must be non-empty strings")


def _leaf(value: Any, path: tuple[str, ...]) -> Any:
    if _is_plain(value):
        return value
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, Mapping):
        return {}
    raise InvalidInputError(
        f"the annotation {'.'.join(path)!r} is {_shown(value)}: use strings, finite numbers, booleans, None, "
        "and dicts or lists of them"
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, float) else f"of type {type(value).__name__}"
