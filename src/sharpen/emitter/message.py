"""Messages: plain text in the trace."""

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidInputError
from ..semconv import AGL_MESSAGE, LightningSpanAttributes
from ..types import SpanCoreFields
from .annotation import flatten
from .span import AnySpan, emit

_BODY = LightningSpanAttributes.MESSAGE_BODY.value


def emit_message(text: str, attributes: Mapping[str, Any] | None = None, *, propagate: bool = True) -> SpanCoreFields:
    """Record a text; `attributes` are added to its span, nested dicts as dotted keys."""
    if not isinstance(text, str):
        raise InvalidInputError(f"a message is a text, not {type(text).__name__}: use emit_object for other values")
    return emit(AGL_MESSAGE, {**flatten(attributes or {}), _BODY: text}, propagate=propagate)


def get_message_value(span: AnySpan) -> str | None:
    """The text of a message span; None for other spans."""
    value = span.attributes.get(_BODY)
    return value if isinstance(value, str) else None
