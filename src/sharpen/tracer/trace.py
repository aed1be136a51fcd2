"""The trace of one attempt: collects its spans while it runs.

The current trace is a `contextvars` value, so that a hundred attempts in one process never mix, and it follows the
threads that an agent starts. A span belongs to the trace that was current when it started. A trace that has ended takes
nothing more: an agent that was left behind (its time was over, nobody waits for it) stops costing anything.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from functools import wraps
from traceback import format_exception, format_tb
from typing import Any, Protocol, TypeGuard, cast

from ..errors import text_of
from ..secrets import hide_known
from ..semconv import LightningResourceAttributes
from ..types import Attributes, Event, OtelResource, Span, TraceStatus
from ..types.spans import StatusCode
from .plain import plain_attributes, plain_text


class SpanSink(Protocol):
    """Receives spans the moment they end. `put` may be called from any thread and must return at once."""

    def put(self, span: Span) -> None: ...


def is_sink(store: object) -> TypeGuard[SpanSink]:
    return hasattr(store, "put")


class Trace:
    """One attempt as it is recorded."""

    __slots__ = (
        "attempt_id",
        "capture_content",
        "is_open",
        "open_spans",
        "outer",
        "resource",
        "rollout_id",
        "sink",
        "sources",
        "spans",
        "trace_id",
        "trace_number",
    )

    def __init__(
        self,
        *,
        rollout_id: str = "",
        attempt_id: str = "",
        sink: SpanSink | None = None,
        capture_content: bool = True,
        sources: frozenset[str] = frozenset(),
        resource: OtelResource | None = None,
    ) -> None:
        self.rollout_id = rollout_id
        self.attempt_id = attempt_id
        self.sink = sink
        self.capture_content = capture_content
        # Whose spans belong in it, apart from those that are emitted.
        self.sources = sources
        self.resource = resource or OtelResource()
        self.trace_id = os.urandom(16).hex()
        self.trace_number = int(self.trace_id, 16)
        self.spans: list[Span] = []
        # Spans of OpenTelemetry that have started and not ended.
        self.open_spans: set[int] = set()
        self.outer = current_trace()
        self.is_open = True

    def record(self, span: Span) -> None:
        """Keep a span that has ended, and pass it to the sink."""
        if not self.is_open:
            return
        self.spans.append(span)
        if self.sink is not None:
            self.sink.put(span)


# Still the last trace after it has ended, so that its spans can be read.
_trace: ContextVar[Trace | None] = ContextVar("sharpen_trace", default=None)


def current_trace() -> Trace | None:
    """Return the trace that is being recorded in this context."""
    trace = _trace.get()
    while trace is not None and not trace.is_open:
        trace = trace.outer
    return trace


def last_trace() -> Trace | None:
    """Return the trace that was opened last in this context, ended or not."""
    return _trace.get()


def enter(trace: Trace) -> None:
    """Make it the current trace of this context."""
    _trace.set(trace)


def new_span_id() -> str:
    """Return a random id, independent of the agent's `random.seed` and without changing its random numbers."""
    return os.urandom(8).hex()


def resource_of(tracer_name: str, name: str | None) -> OtelResource:
    """Return the resource of a trace: what produced its spans."""
    attributes: dict[str, Any] = {LightningResourceAttributes.TRACER_NAME.value: tracer_name}
    if name is not None:
        attributes["sharpen.trace.name"] = name
    return OtelResource(attributes)


# -- operations --------------------------------------------------------------------------------------


class Operation(Protocol):
    """What `operation_context` yields to its block."""

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
    """Return an exception as attributes with OpenTelemetry's names."""
    kind = type(exception)
    is_builtin = kind.__module__ == "builtins"
    return {
        "exception.type": kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}",
        "exception.message": hide_known(text_of(exception)),
        "exception.stacktrace": traceback_text(exception),
    }


def traceback_text(exception: BaseException, *, frames: int | None = None) -> str:
    """Return the stack trace of an exception, or only its last frames, as text that may be stored."""
    limit = None if frames is None else -frames
    try:
        lines = format_exception(exception, limit=limit)
    except Exception:  # noqa: BLE001 - its `__str__` fails
        lines = format_tb(exception.__traceback__, limit=limit)
    return hide_known(plain_text("".join(lines)))


# -- what tracers change in the whole process --------------------------------------------------------


class Shared:
    """Something of the whole process that is on while any tracer holds it."""

    def __init__(self, switch_on: Callable[[], None], switch_off: Callable[[], None]) -> None:
        self._switch_on = switch_on
        self._switch_off = switch_off
        self._lock = threading.Lock()
        self._holders = 0

    def hold(self) -> None:
        with self._lock:
            if self._holders == 0:
                self._switch_on()
            self._holders += 1

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._switch_off()


class Patch:
    """A function in a third-party class or module that is replaced temporarily."""

    def __init__(self, owner: Any, name: str, replacement: Callable[..., Any]) -> None:
        self._owner = owner
        self._name = name
        self._replacement = replacement
        self._is_wrapped = False
        self.original: Callable[..., Any] = getattr(owner, name)

    def apply(self) -> None:
        found = getattr(self._owner, self._name)
        if found is not self._replacement and not self._is_wrapped:
            self.original = found
            setattr(self._owner, self._name, self._replacement)

    def undo(self) -> None:
        """Restore the original, unless other code has wrapped the replacement: then it stays below that wrapper."""
        self._is_wrapped = getattr(self._owner, self._name) is not self._replacement
        if not self._is_wrapped:
            setattr(self._owner, self._name, self.original)


# -- threads -----------------------------------------------------------------------------------------
#
# A new thread begins with an empty context, so a span in it would belong to no attempt. While a tracer is on,
# `Thread.start` and `ThreadPoolExecutor.submit` called inside a trace run their function in a copy of the caller's
# context; outside a trace, and after the last tracer, they behave as usual.


@wraps(threading.Thread.start)
def _start(thread: threading.Thread) -> None:
    if current_trace() is not None and not thread.ident:
        _run_in_copy(thread)
    _START.original(thread)


def _run_in_copy(thread: threading.Thread) -> None:
    context, run = copy_context(), thread.run

    def run_in_context() -> None:
        # The thread has its own method again, and this closure is freed when it ends.
        del thread.run
        context.run(run)

    thread.run = run_in_context  # type: ignore[method-assign]


@wraps(ThreadPoolExecutor.submit)  # type: ignore[arg-type]
def _submit(pool: ThreadPoolExecutor, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
    submit = _SUBMIT.original
    if current_trace() is None:
        return cast("Future[Any]", submit(pool, function, *args, **kwargs))
    # In an empty context, so that a thread which the pool starts now does not keep this trace for its whole life.
    return cast("Future[Any]", Context().run(submit, pool, copy_context().run, function, *args, **kwargs))


_START = Patch(threading.Thread, "start", _start)
_SUBMIT = Patch(ThreadPoolExecutor, "submit", _submit)


def _follow() -> None:
    _START.apply()
    _SUBMIT.apply()


def _stop_following() -> None:
    _START.undo()
    _SUBMIT.undo()


following_threads = Shared(_follow, _stop_following)
