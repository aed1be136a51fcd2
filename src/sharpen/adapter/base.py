"""The contract of adapters: from what was recorded to what an algorithm consumes."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from ..types import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

From = TypeVar("From")
To = TypeVar("To")


class Adapter(ABC, Generic[From, To]):
    """Turns one shape of data into another; it can be called like a function."""

    @abstractmethod
    def adapt(self, source: From, /) -> To:
        """The source in the other shape. The source is left as it is."""

    def __call__(self, source: From, /) -> To:
        return self.adapt(source)


class TraceAdapter(Adapter[Sequence[Span], To]):
    """An adapter of spans as the store keeps them."""


class OtelTraceAdapter(Adapter["Sequence[ReadableSpan]", To]):
    """An adapter of spans as the OpenTelemetry SDK hands them out."""


def as_spans(source: "Iterable[Span | ReadableSpan]") -> list[Span]:
    """Spans of either kind as spans of the store."""
    return [span if isinstance(span, Span) else Span.from_opentelemetry(span, "", "", 0) for span in source]
