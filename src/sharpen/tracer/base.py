"""The base of every tracer: it records what is emitted, and nothing else.

A tracer holds no state of attempts: the current trace and the tracer that writes it are `contextvars` values. Its life
is that of a worker (`init`, `init_worker`, traces, the two teardowns); without a runner `lifespan` does the same. What
a tracer needs in the whole process is on while any tracer works: here, that the trace follows the threads of an agent.
"""

import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ContextDecorator, asynccontextmanager, contextmanager
from contextvars import Context, ContextVar, Token, copy_context
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, cast

from ..errors import InvalidInputError, describe
from ..secrets import hide_known
from ..semconv import LightningResourceAttributes
from ..types import Attributes, Event, OtelResource, ParallelWorkerBase, Span, SpanCoreFields, TraceStatus
from ..types.spans import StatusCode
from .trace import (
    SpanSink,
    Trace,
    current_trace,
    exception_attributes,
    last_trace,
    new_span_id,
    plain_attributes,
    plain_text,
)

if TYPE_CHECKING:
    from langchain_core.callbacks import BaseCallbackHandler

    from ..store import LightningStore

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_active: ContextVar["Tracer | None"] = ContextVar("sharpen_active_tracer", default=None)
# The current operation, for tracers without OpenTelemetry.
_parent_id: ContextVar[str | None] = ContextVar("sharpen_parent_span", default=None)
_UNSET = TraceStatus()
_warned = threading.Event()


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


def emit(
    name: str, attributes: Attributes, *, status: TraceStatus | None = None, propagate: bool = True
) -> SpanCoreFields:
    """Record a span in the current attempt. Outside of one, or without `propagate`, it is only built."""
    tracer = active_tracer() if propagate else None
    if tracer is not None:
        return tracer.create_span(name, attributes, status=status)
    if propagate and not _warned.is_set():
        _warned.set()  # an agent that is called as a plain function emits often
        logger.warning("%s was emitted outside a rollout, so it is not recorded; this is logged only once", name)
    now = time.time()
    return SpanCoreFields(name, status or _UNSET, attributes, now, now)


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
        """Keep on what this tracer needs in the process: by each of its workers, and by traces outside of one."""
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
        sink = cast(SpanSink, store) if hasattr(store, "put") else None
        resource = {LightningResourceAttributes.TRACER_NAME.value: type(self).__name__}
        if name is not None and name != rollout_id:
            resource["sharpen.trace.name"] = name
        ids = rollout_id or "", attempt_id or ""
        trace = Trace(*ids, sink, self.capture_content, self._sources, OtelResource(resource), current_trace())
        try:
            with self._recording(trace) as handle:
                yield handle
        finally:
            if store is not None and sink is None and trace.spans:
                await cast("LightningStore", store).add_many_spans(trace.spans)

    @contextmanager
    def _recording(self, trace: Trace) -> Iterator[Any]:
        """Switch on everything that a trace needs; yield what `trace_context` yields to its block."""
        is_held = self._workers > 0
        if not is_held:
            self._hold()
        token = _parent_id.set(None)
        last_trace.set(trace)
        try:
            with activate(self):
                yield self
        finally:
            trace.is_open = False
            _parent_id.reset(token)
            if not is_held:
                self._release()

    def get_last_trace(self) -> list[Span]:
        """Return the spans of the trace that was opened last in this context, in the order in which they ended."""
        trace = last_trace.get()
        return list(trace.spans) if trace is not None else []

    def trace_run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function inside a separate trace."""
        if inspect.iscoroutinefunction(function):
            raise InvalidInputError(f"{function.__name__} is a coroutine function: use trace_run_async")

        stopped: StopIteration | None = None

        async def run() -> T | None:
            nonlocal stopped
            async with self.trace_context(getattr(function, "__name__", None)):
                try:
                    return function(*args, **kwargs)
                except StopIteration as error:  # which no coroutine may raise
                    stopped = error
                    return None

        call = run()
        try:
            call.send(None)
        except StopIteration as done:  # by which a coroutine that waits for nothing returns
            if stopped is not None:
                raise stopped from None
            return cast(T, done.value)
        call.close()
        raise RuntimeError("the trace_context of this tracer awaits something: use trace_run_async")

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
        if status is not None and status.description is not None:
            status = TraceStatus(status.status_code, plain_text(status.description))
        core = SpanCoreFields(plain_text(name), status or _UNSET, plain_attributes(attributes), at, at)
        self._write(core)
        return core

    def _write(self, core: SpanCoreFields) -> None:
        trace = current_trace()
        if trace is not None:
            trace.record_core(core, new_span_id(), self._current_parent())

    def _current_parent(self) -> str | None:
        return _parent_id.get()

    def operation_context(
        self,
        name: str,
        attributes: Attributes | None = None,
        start_time: float | None = None,
        end_time: float | None = None,
    ) -> AbstractContextManager["Operation"]:
        """Record the code inside the block as one span, the parent of all spans in it."""
        return self._new_operation(name, attributes, start_time, end_time)

    def _new_operation(self, *given: Any) -> "Operation":
        return Operation(*given)

    # -- frameworks ----------------------------------------------------------------------------------

    def get_langchain_handler(self) -> "BaseCallbackHandler":
        """Return a LangChain callback handler that writes LLM and tool runs to this tracer."""
        from .langchain import LangChainHandler

        return LangChainHandler(self)


class DummyTracer(Tracer):
    """Records what is emitted, without OpenTelemetry: the cheapest tracer."""


class Lifespan:
    """A tracer that works inside a block."""

    def __init__(self, tracer: Tracer, store: "LightningStore | None") -> None:
        self._tracer, self._store = tracer, store

    def __enter__(self) -> Tracer:
        self._tracer.init()
        self._tracer.init_worker(0, self._store)
        return self._tracer

    def __exit__(self, *error: object) -> None:
        self._tracer.teardown_worker(0)
        self._tracer.teardown()

    async def __aenter__(self) -> Tracer:
        return self.__enter__()

    async def __aexit__(self, *error: object) -> None:
        self.__exit__()


# -- operations --------------------------------------------------------------------------------------


class Operation(ContextDecorator, AbstractContextManager["Operation"]):
    """Code that is recorded as one span, which begins with its block: what `operation_context` yields to it.

    It may also decorate a function, whose calls are operations of their own.
    """

    def __init__(
        self, name: str, attributes: Attributes | None, start_time: float | None, end_time: float | None
    ) -> None:
        self._given = name, attributes, start_time, end_time

    def _recreate_cm(self) -> Self:
        return type(self)(*self._given)

    def __enter__(self) -> Self:
        name, attributes, start_time, self._end_time = self._given
        self._name, self._attributes = plain_text(name), plain_attributes(attributes)
        self._start_time = time.time() if start_time is None else start_time
        self._events: list[Event] = []
        self._status = _UNSET
        self._trace, self._span_id, self._parent_id = current_trace(), new_span_id(), _parent_id.get()
        self._token: Token[Any] = _parent_id.set(self._span_id)
        return self

    def set_attributes(self, attributes: Attributes) -> None:
        self._attributes.update(plain_attributes(attributes))

    def record_exception(self, exception: BaseException) -> None:
        self._events.append(Event("exception", exception_attributes(exception), time.time()))

    def set_status(self, status_code: StatusCode, description: str | None = None) -> None:
        text = None if description is None else hide_known(plain_text(description))
        self._status = TraceStatus(status_code, text)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception):
            self.record_exception(error)
            self.set_status("ERROR", describe(error))
        self._end()

    def _end(self) -> None:
        _parent_id.reset(self._token)
        if self._trace is not None:
            end = time.time() if self._end_time is None else self._end_time
            core = SpanCoreFields(self._name, self._status, self._attributes, self._start_time, end)
            self._trace.record_core(core, self._span_id, self._parent_id, self._events)


# -- what tracers change in the whole process --------------------------------------------------------


class Shared:
    """Something of the whole process that is on while any tracer holds it."""

    def __init__(self, switch_on: Callable[[], None], switch_off: Callable[[], None]) -> None:
        self._switch_on, self._switch_off = switch_on, switch_off
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
        self._owner, self._name, self._replacement = owner, name, replacement
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
