"""The module path of Agent-lightning; import the names from `sharpen.types`."""

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
