"""Exceptions, under OpenTelemetry's names."""

from collections.abc import Mapping
from typing import Any

from ..errors import InvalidInputError, in_words
from ..secrets import hide_known
from ..semconv import AGL_EXCEPTION
from ..tracer.operation import exception_attributes
from ..types import SpanCoreFields, TraceStatus
from .annotation import flatten
from .span import emit


def emit_exception(
    exception: BaseException, attributes: Mapping[str, Any] | None = None, *, propagate: bool = True
) -> SpanCoreFields:
    """Record an exception: its type, its message and its stack trace. `attributes` are added to its span, nested dicts
    as dotted keys."""
    if not isinstance(exception, BaseException):
        raise InvalidInputError(f"emit_exception takes an exception, not {type(exception).__name__}")
    status = TraceStatus("ERROR", hide_known(in_words(exception)))
    found = {**flatten(attributes or {}), **exception_attributes(exception)}
    return emit(AGL_EXCEPTION, found, status=status, propagate=propagate)
