"""The base of every tracer: it records what is emitted, and nothing else.

A tracer holds no state of attempts: the current trace and the tracer that writes it are `contextvars` values. Its life
is that of a worker (`init`, `init_worker`, traces, the two teardowns); without a runner `lifespan` does the same.
"""

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from ..errors import InvalidInputError, describe
from ..types import Attributes, Event, ParallelWorkerBase, Span, SpanCoreFields, TraceStatus
from .plain import event_without_content, plain_attributes, plain_text, without_content
from .trace import (
    Operation,
    PlainOperation,
    SpanSink,
    Trace,
    current_trace,
    enter,
    following_threads,
    is_sink,
    last_trace,
    new_span_id,
    resource_of,
)

if TYPE_CHECKING:
    from langchain_core.callbacks import BaseCallbackHandler

    from ..store import LightningStore

P = ParamSpec("P")
T = TypeVar("T")

_active: ContextVar["Tracer | None"] = ContextVar("sharpen_active_tracer", default=None)
# The current operation, for tracers without OpenTelemetry.
_parent_id: ContextVar[str | None] = ContextVar("sharpen_parent_span", default=None)
_UNSET = TraceStatus()


def active_tracer() -> "Tracer | None":
    """Return the tracer that records in this context; emitters write to it."""
    return _active.get()


@contextmanager
def activate(tracer: "Tracer | None") -> Iterator[None]:
    """Let emitters write to this tracer inside the block."""
    token = _active.set(tracer)
    try:
        yield
    finally:
        _active.reset(token)


class Tracer(ParallelWorkerBase):
    """Records the spans of attempts. Subclasses add sources of spans; this one records what is emitted."""

    # On the class, so that a subclass may leave out `super().__init__()`.
    capture_content: bool = True
    _store: "LightningStore | None" = None
    _workers: int = 0
    # Where its spans come from, apart from emitters.
    _sources: frozenset[str] = frozenset()

    # -- the life cycle of a worker ------------------------------------------------------------------

    def init_worker(self, worker_id: int, store: "LightningStore | None" = None, *args: Any, **kwargs: Any) -> None:
        """Start recording in this process. Spans of traces that name no other store go to this one."""
        super().init_worker(worker_id)
        self._store = store
        self._hold()
        self._workers += 1

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Stop recording; the last tracer of the process restores everything that was changed."""
        if self._workers:
            self._workers -= 1
            self._release()

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Release what is still held."""
        while self._workers:
            self.teardown_worker(self._workers)
        self._store = None

    def lifespan(self, store: "LightningStore | None" = None) -> "Lifespan":
        """Run the life cycle of a worker around a block, without a runner; for `with` or `async with`."""
        return Lifespan(self, store)

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to a worker: the settings, and nothing of this process."""
        return {key: value for key, value in vars(self).items() if key not in ("_store", "_workers")}

    def _hold(self) -> None:
        """Keep on what this tracer needs in the process."""
        following_threads.hold()

    def _release(self) -> None:
        following_threads.release()

    # -- traces --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def trace_context(
        self,
        name: str | None = None,
        *,
        store: "LightningStore | SpanSink | None" = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
    ) -> AsyncIterator[Any]:
        """Record one attempt.

        A `store` with `put` is given each span the moment it ends; a plain store gets all of them at the end.
        Without one they are only kept for `get_last_trace`.
        """
        if store is None and rollout_id and attempt_id:
            store = self._store
        if store is not None and not (rollout_id and attempt_id):
            raise InvalidInputError(
                f"a trace that goes to a store needs both ids: rollout_id is {rollout_id!r}, attempt_id {attempt_id!r}"
            )
        sink = store if is_sink(store) else None
        trace = Trace(
            rollout_id=rollout_id or "",
            attempt_id=attempt_id or "",
            sink=sink,
            capture_content=self.capture_content,
            sources=self._sources,
            resource=resource_of(type(self).__name__, name if name != rollout_id else None),
        )
        try:
            with self._recording(trace) as handle:
                yield handle
        finally:
            if store is not None and sink is None and trace.spans:
                await cast("LightningStore", store).add_many_spans(trace.spans)

    @contextmanager
    def _recording(self, trace: Trace) -> Iterator[Any]:
        """Switch on everything that a trace needs; yield what `trace_context` yields to its block."""
        self._hold()
        token = _parent_id.set(None)
        enter(trace)
        try:
            with activate(self):
                yield self
        finally:
            trace.is_open = False
            _parent_id.reset(token)
            self._release()

    def get_last_trace(self) -> list[Span]:
        """Return the spans of the trace that was opened last in this context, in the order in which they ended."""
        trace = last_trace()
        return list(trace.spans) if trace is not None else []

    def trace_run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function inside a separate trace."""
        if inspect.iscoroutinefunction(function):
            raise InvalidInputError(f"{function.__name__} is a coroutine function: use trace_run_async")
        context = self.trace_context(getattr(function, "__name__", None))
        _run_now(context.__aenter__())
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            if _run_now(context.__aexit__(type(error), error, error.__traceback__)):
                raise RuntimeError("a trace cannot swallow the error of what it records") from error
            raise
        _run_now(context.__aexit__(None, None, None))
        return result

    async def trace_run_async(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await a function inside a separate trace."""
        async with self.trace_context(getattr(function, "__name__", None)):
            return await function(*args, **kwargs)

    # -- spans ---------------------------------------------------------------------------------------

    def create_span(
        self,
        name: str,
        attributes: Attributes | None = None,
        timestamp: float | None = None,
        status: TraceStatus | None = None,
    ) -> SpanCoreFields:
        """Record a span without duration in the current trace."""
        at = time.time() if timestamp is None else timestamp
        core = SpanCoreFields(plain_text(name), _plain_status(status), plain_attributes(attributes), at, at)
        self._write(core)
        return core

    def _write(self, core: SpanCoreFields) -> None:
        trace = current_trace()
        if trace is not None:
            trace.record(_span(trace, core, new_span_id(), self._current_parent()))

    def operation_context(
        self,
        name: str,
        attributes: Attributes | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> AbstractContextManager[Operation]:
        """Record the code inside the block as one span, the parent of all spans in it."""
        return self._operation(PlainOperation(name, attributes, start_time), end_time)

    @contextmanager
    def _operation(self, operation: PlainOperation, end_time: float | None) -> Iterator[Operation]:
        trace, parent_id = current_trace(), self._current_parent()
        token = _parent_id.set(operation.span_id)
        try:
            yield operation
        except Exception as error:
            operation.record_exception(error)
            operation.set_status("ERROR", describe(error))
            raise
        finally:
            _parent_id.reset(token)
            if trace is not None:
                _record_operation(trace, operation, parent_id, end_time)

    def _current_parent(self) -> str | None:
        return _parent_id.get()

    # -- frameworks ----------------------------------------------------------------------------------

    def get_langchain_handler(self) -> "BaseCallbackHandler":
        """Return a LangChain callback handler that writes LLM and tool runs to this tracer."""
        from .langchain import make_handler

        return make_handler(self)


class DummyTracer(Tracer):
    """Records what is emitted, without OpenTelemetry: the cheapest tracer."""


class Lifespan:
    """A tracer that works inside a block."""

    def __init__(self, tracer: Tracer, store: "LightningStore | None") -> None:
        self._tracer = tracer
        self._store = store

    def __enter__(self) -> Tracer:
        self._tracer.init()
        self._tracer.init_worker(0, self._store)
        return self._tracer

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._tracer.teardown_worker(0)
        self._tracer.teardown()

    async def __aenter__(self) -> Tracer:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


def _span(trace: Trace, core: SpanCoreFields, span_id: str, parent_id: str | None) -> Span:
    return Span(
        trace.rollout_id,
        trace.attempt_id,
        0,
        trace.trace_id,
        span_id,
        parent_id,
        core.name,
        core.status,
        core.attributes if trace.capture_content else without_content(core.attributes),
        start_time=core.start_time,
        end_time=core.end_time,
        resource=trace.resource,
    )


def _record_operation(trace: Trace, operation: PlainOperation, parent_id: str | None, end_time: float | None) -> None:
    end = time.time() if end_time is None else end_time
    core = SpanCoreFields(operation.name, operation.status, operation.attributes, operation.start_time, end)
    span = _span(trace, core, operation.span_id, parent_id)
    span.events.extend(operation.events if trace.capture_content else map(_event_without_content, operation.events))
    trace.record(span)


def _event_without_content(event: Event) -> Event:
    return Event(event.name, event_without_content(event.name, event.attributes), event.timestamp)


def _plain_status(status: TraceStatus | None) -> TraceStatus:
    if status is None or status.description is None:
        return status or _UNSET
    return TraceStatus(status.status_code, plain_text(status.description))


def _run_now(step: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not wait."""
    try:
        step.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    step.close()
    raise RuntimeError("the trace_context of this tracer awaits something: use trace_run_async")
