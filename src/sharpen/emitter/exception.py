"""Exceptions, under OpenTelemetry's names."""

from ..errors import InvalidInputError, in_words
from ..semconv import AGL_EXCEPTION
from ..tracer.operation import exception_attributes
from ..types import SpanCoreFields, TraceStatus
from .span import emit


def emit_exception(exception: BaseException, *, propagate: bool = True) -> SpanCoreFields:
    """Record an exception: its type, its message and its stack trace."""
    if not isinstance(exception, BaseException):
        raise InvalidInputError(f"emit_exception takes an exception, not {type(exception).__name__}")
    status = TraceStatus("ERROR", in_words(exception))
    return emit(AGL_EXCEPTION, exception_attributes(exception), status=status, propagate=propagate)
