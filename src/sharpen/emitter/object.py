"""Objects: values that JSON can hold."""

import json
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidInputError
from ..semconv import AGL_OBJECT, LightningSpanAttributes
from ..types import Attributes, SpanCoreFields
from .annotation import flatten
from .span import AnySpan, emit

_TYPE = LightningSpanAttributes.OBJECT_TYPE.value
_LITERAL = LightningSpanAttributes.OBJECT_LITERAL.value
_JSON = LightningSpanAttributes.OBJECT_JSON.value


def emit_object(value: Any, attributes: Mapping[str, Any] | None = None, *, propagate: bool = True) -> SpanCoreFields:
    """Record a value that JSON can hold; `attributes` are added to its span, nested dicts as dotted keys."""
    return emit(AGL_OBJECT, {**flatten(attributes or {}), **_attributes(value)}, propagate=propagate)


def get_object_value(span: AnySpan) -> Any:
    """The value of an object span, as JSON gives it back; None for other spans."""
    if _LITERAL in span.attributes:
        return span.attributes[_LITERAL]
    text = span.attributes.get(_JSON)
    return json.loads(text) if isinstance(text, str) else None


def _attributes(value: Any) -> Attributes:
    if type(value) in (str, bool):
        return {_TYPE: type(value).__name__, _LITERAL: value}
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError(
            f"an object of type {type(value).__name__} cannot be written as JSON ({error}): give dicts with text keys, "
            "lists, texts and finite numbers; dataclasses.asdict or model_dump() may help"
        ) from None
    return {_TYPE: type(value).__name__, _JSON: text}
