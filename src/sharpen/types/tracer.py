"""Kept for people who move from another package; the names are those of `sharpen.types`."""

from .spans import (
    Attributes,
    AttributeValue,
    Event,
    Link,
    OtelResource,
    Span,
    SpanContext,
    SpanCoreFields,
    TraceStatus,
)

__all__ = [
    "AttributeValue",
    "Attributes",
    "Event",
    "Link",
    "OtelResource",
    "Span",
    "SpanContext",
    "SpanCoreFields",
    "TraceStatus",
]
