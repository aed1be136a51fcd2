"""Operations: parts of an agent's work, recorded with their inputs and outputs."""

import inspect
import json
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar, overload

from ..errors import InvalidInputError, describe
from ..semconv import AGL_OPERATION, LightningSpanAttributes
from ..tracer.base import Operation, active_tracer
from ..tracer.trace import plain, type_name
from ..types import Attributes
from .emit import flatten

F = TypeVar("F", bound=Callable[..., Any])

_NAME = LightningSpanAttributes.OPERATION_NAME.value
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value


@overload
def operation(function: F, /) -> F: ...
@overload
def operation(*, name: str | None = None, **attributes: Any) -> "OperationEmitter": ...
def operation(function: Any = None, /, *, name: str | None = None, **attributes: Any) -> Any:
    """Record a function (`@operation`, `@operation(name=...)`) or a block (`with operation(name=...) as step:`).

    Arguments and results of a function are recorded as JSON; in a block use `step.set_input` and `step.set_output`.
    Keywords become attributes of the span.
    """
    emitter = OperationEmitter(name, flatten(attributes))
    return emitter if function is None else emitter(function)


class OperationEmitter:
    """An operation that is about to be recorded: a decorator and a context manager."""

    def __init__(self, name: str | None, attributes: Attributes) -> None:
        if name is not None and not isinstance(name, str):
            raise InvalidInputError(f"the name of an operation is {name!r}: use a str")
        self._name = name
        self._attributes = attributes
        self._entered: list[AbstractContextManager[Operation | None]] = []

    def __enter__(self) -> "Step":
        if self._name is None:
            raise InvalidInputError("an operation around a block needs a name: with operation(name=...)")
        context = _recorded({**self._attributes, _NAME: self._name})
        step = Step(context.__enter__())
        self._entered.append(context)
        return step

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, traceback)

    async def __aenter__(self) -> "Step":
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, function: F) -> F:
        if not callable(function):
            raise InvalidInputError(f"@operation decorates a function, not {type(function).__name__}")
        attributes = {**self._attributes, _NAME: self._name or getattr(function, "__name__", type_name(function))}
        return _decorated(function, attributes)  # type: ignore[return-value]


class Step:
    """An operation while it runs. Outside a rollout it does nothing."""

    def __init__(self, recording: Operation | None) -> None:
        self._recording = recording

    def set_input(self, *args: Any, **kwargs: Any) -> None:
        """Record what the operation works on: one value, or several with their names."""
        if self._recording is not None:
            value = args[0] if len(args) == 1 and not kwargs else {**_numbered(args), **kwargs}
            self._recording.set_attributes({_INPUT: as_json(value)})

    def set_output(self, value: Any) -> None:
        """Record what the operation returned."""
        if self._recording is not None:
            self._recording.set_attributes({_OUTPUT: as_json(value)})

    def set_attributes(self, attributes: Attributes) -> None:
        if self._recording is not None:
            self._recording.set_attributes(flatten(attributes))


def as_json(value: Any) -> str:
    """Return the value as JSON; what JSON cannot express is described by its type."""
    try:
        return json.dumps(value, default=type_name, allow_nan=False)
    except (TypeError, ValueError):  # keys that are not strings, numbers that are not finite
        pass
    try:
        return json.dumps(plain(value))
    except RecursionError:
        return json.dumps(type_name(value))


def _numbered(args: tuple[Any, ...]) -> dict[str, Any]:
    return {str(index): value for index, value in enumerate(args)}


def _recorded(attributes: Attributes, start_time: float | None = None) -> AbstractContextManager[Operation | None]:
    tracer = active_tracer()
    if tracer is None:
        return nullcontext(None)
    return tracer.operation_context(AGL_OPERATION, attributes, start_time)


def _with_input(
    function: Callable[..., Any], attributes: Attributes, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Attributes:
    tracer = active_tracer()
    if tracer is None or not tracer.capture_content:
        return attributes
    return {**attributes, _INPUT: as_json(_named(function, args, kwargs))}


def _named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by the names of their parameters."""
    try:
        return dict(inspect.signature(function).bind_partial(*args, **kwargs).arguments)
    except (TypeError, ValueError):  # a call that does not fit, or a built-in without a signature
        return {**_numbered(args), **kwargs}


def _decorated(function: Callable[..., Any], attributes: Attributes) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):
        return _around_coroutine(function, attributes)
    if inspect.isasyncgenfunction(function):
        return _around_async_generator(function, attributes)
    if inspect.isgeneratorfunction(function):
        return _around_generator(function, attributes)
    return _around_function(function, attributes)


def _around_function(function: Callable[..., Any], attributes: Attributes) -> Callable[..., Any]:
    @wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        with _recorded(_with_input(function, attributes, args, kwargs)) as recording:
            result = function(*args, **kwargs)
            Step(recording).set_output(result)
            return result

    return recorded


def _around_coroutine(function: Callable[..., Any], attributes: Attributes) -> Callable[..., Any]:
    @wraps(function)
    async def recorded(*args: Any, **kwargs: Any) -> Any:
        with _recorded(_with_input(function, attributes, args, kwargs)) as recording:
            result = await function(*args, **kwargs)
            Step(recording).set_output(result)
            return result

    return recorded


def _around_generator(function: Callable[..., Any], attributes: Attributes) -> Callable[..., Any]:
    @wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        with _RecordedAtEnd(_with_input(function, attributes, args, kwargs)):
            return (yield from function(*args, **kwargs))

    return recorded


def _around_async_generator(function: Callable[..., Any], attributes: Attributes) -> Callable[..., Any]:
    @wraps(function)
    async def recorded(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        with _RecordedAtEnd(_with_input(function, attributes, args, kwargs)):
            async for item in function(*args, **kwargs):
                yield item

    return recorded


class _RecordedAtEnd:
    """Records a generator when it has ended, with its start: between two items the caller's code runs, which is not
    part of the operation, and the end may come in another context."""

    def __init__(self, attributes: Attributes) -> None:
        self._attributes = attributes
        self._start_time = time.time()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _recorded(self._attributes, self._start_time) as recording:
            if recording is not None and isinstance(error, Exception):
                recording.record_exception(error)
                recording.set_status("ERROR", describe(error))
