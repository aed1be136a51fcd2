"""One operation of an agent while it runs: a span that has started and not ended."""

import time
from traceback import format_exception, format_tb
from typing import Any, Protocol

from ..errors import text_of
from ..secrets import hide_known
from ..types import Attributes, Event, TraceStatus
from ..types.spans import StatusCode
from .plain import plain_attributes, plain_text
from .trace import new_span_id


class Operation(Protocol):
    """What `operation_context` gives to the code inside it."""

    def set_attributes(self, attributes: Attributes) -> None: ...
    def record_exception(self, exception: BaseException) -> None: ...
    def set_status(self, status_code: StatusCode, description: str | None = None) -> None: ...


class PlainOperation:
    """An operation without OpenTelemetry."""

    def __init__(self, name: str, attributes: Attributes | None, start_time: float | None) -> None:
        self.name = plain_text(name)
        self.span_id = new_span_id()
        self.start_time = time.time() if start_time is None else start_time
        self.attributes: dict[str, Any] = plain_attributes(attributes)
        self.events: list[Event] = []
        self.status = TraceStatus()

    def set_attributes(self, attributes: Attributes) -> None:
        self.attributes.update(plain_attributes(attributes))

    def record_exception(self, exception: BaseException) -> None:
        self.events.append(Event("exception", exception_attributes(exception), time.time()))

    def set_status(self, status_code: StatusCode, description: str | None = None) -> None:
        self.status = TraceStatus(status_code, hide_known(plain_text(description)) if description is not None else None)


def exception_attributes(exception: BaseException) -> Attributes:
    """An exception under OpenTelemetry's names."""
    kind = type(exception)
    is_builtin = kind.__module__ == "builtins"
    return {
        "exception.type": kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}",
        "exception.message": hide_known(text_of(exception)),
        "exception.stacktrace": hide_known(plain_text("".join(_traceback(exception)))),
    }


def _traceback(exception: BaseException) -> list[str]:
    try:
        return format_exception(exception)
    except Exception:  # noqa: BLE001 - its own text fails
        return format_tb(exception.__traceback__)
