"""Operations: functions and blocks, with their inputs and outputs."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from sharpen.emitter import emit_message, operation
from sharpen.errors import InvalidInputError
from sharpen.tracer import DummyTracer, OtelTracer, Tracer
from sharpen.types import Span
from tests.emitter.internals import as_json
from tests.errors import raises

TRACERS = [OtelTracer(), DummyTracer()]


@pytest.fixture(params=TRACERS, ids=lambda each: type(each).__name__)
def tracer(request: pytest.FixtureRequest) -> Tracer:
    found: Tracer = request.param
    return found


def only_operation(tracer: Tracer) -> Span:
    [span] = [span for span in tracer.get_last_trace() if span.name == "sharpen.operation"]
    return span


def value(span: Span, side: str) -> Any:
    return json.loads(span.attributes[f"sharpen.operation.{side}"])


def test_a_function_is_recorded_with_its_arguments_by_name_and_its_result(tracer: Tracer) -> None:
    @operation(name="adding", tool={"kind": "maths"})
    def add(a: int, /, b: int, *rest: int, flag: bool = False, **more: int) -> dict[str, int]:
        """Adds."""
        emit_message("inside")
        return {"sum": a + b}

    assert tracer.trace_run(add, 1, 2, 3, flag=True, other=4) == {"sum": 3}
    span = only_operation(tracer)
    assert span.attributes["sharpen.operation.name"] == "adding"
    assert span.attributes["tool.kind"] == "maths"
    assert value(span, "input") == {"a": 1, "b": 2, "rest": [3], "flag": True, "more": {"other": 4}}
    assert value(span, "output") == {"sum": 3}
    assert tracer.get_last_trace()[0].parent_id == span.span_id
    assert (add.__name__, add.__doc__) == ("add", "Adds.")


def test_a_bare_decorator_takes_the_name_of_the_function(tracer: Tracer) -> None:
    @operation
    def search(query: str) -> None: ...

    tracer.trace_run(search, "x")
    span = only_operation(tracer)
    assert span.attributes["sharpen.operation.name"] == "search"
    assert value(span, "output") is None


async def test_a_coroutine_function_is_recorded_until_it_has_ended(tracer: Tracer) -> None:
    @operation
    async def fetch(url: str) -> str:
        await asyncio.sleep(0)
        emit_message("inside")
        return url.upper()

    assert asyncio.iscoroutinefunction(fetch)
    assert await tracer.trace_run_async(fetch, "a") == "A"
    span = only_operation(tracer)
    assert (value(span, "input"), value(span, "output")) == ({"url": "a"}, "A")
    assert tracer.get_last_trace()[0].parent_id == span.span_id


def test_methods_are_recorded_without_the_words_of_their_object(tracer: Tracer) -> None:
    class Tool:
        @operation
        def use(self, what: str) -> str:
            return what

    tracer.trace_run(Tool().use, "hammer")
    assert value(only_operation(tracer), "input")["what"] == "hammer"
    assert "object at 0x" not in only_operation(tracer).attributes["sharpen.operation.input"]


def test_a_block_is_recorded_with_what_it_says(tracer: Tracer) -> None:
    def agent() -> None:
        with operation(name="choose", of=2) as step:
            step.set_input("a", "b", hint="c")
            step.set_output("b")
            step.set_attributes({"seen": {"twice": True}})

    tracer.trace_run(agent)
    span = only_operation(tracer)
    assert value(span, "input") == {"0": "a", "1": "b", "hint": "c"}
    assert value(span, "output") == "b"
    assert (span.attributes["of"], span.attributes["seen.twice"]) == (2, True)


async def test_a_block_may_be_async(tracer: Tracer) -> None:
    async def agent() -> None:
        async with operation(name="wait") as step:
            step.set_input(1)

    await tracer.trace_run_async(agent)
    assert value(only_operation(tracer), "input") == 1


def test_an_error_passes_through_and_is_recorded(tracer: Tracer) -> None:
    @operation
    def fail() -> None:
        raise KeyError("x")

    def agent() -> None:
        with pytest.raises(KeyError):
            fail()
        with raises(ValueError, "y"), operation(name="block"):
            raise ValueError("y")

    tracer.trace_run(agent)
    first, second = tracer.get_last_trace()
    assert (first.status.description, second.status.description) == ("KeyError: 'x'", "ValueError: y")
    assert "sharpen.operation.output" not in first.attributes


def test_a_generator_is_recorded_when_it_has_ended_and_takes_what_is_sent(tracer: Tracer) -> None:
    @operation
    def count(limit: int) -> Iterator[Any]:
        got = yield 1
        yield got
        return limit

    def agent() -> list[Any]:
        items = count(2)
        found = [next(items), items.send("sent")]  # type: ignore[attr-defined]
        emit_message("between")
        return [*found, *items]

    assert tracer.trace_run(agent) == [1, "sent"]
    message, span = tracer.get_last_trace()
    assert message.parent_id is None
    assert value(span, "input") == {"limit": 2}
    assert span.start_time is not None
    assert message.start_time is not None
    assert span.start_time < message.start_time < (span.end_time or 0)


async def test_an_async_generator_is_recorded_with_its_error(tracer: Tracer) -> None:
    @operation
    async def stream(limit: int) -> AsyncIterator[int]:
        for number in range(limit):
            yield number
        raise ValueError("dry")

    async def agent() -> list[int]:
        return [item async for item in stream(2)]

    with raises(ValueError, "dry"):
        await tracer.trace_run_async(agent)
    assert only_operation(tracer).status.description == "ValueError: dry"


def test_outside_a_rollout_an_operation_is_just_the_function() -> None:
    @operation(name="plain")
    def double(x: int) -> int:
        return 2 * x

    assert double(2) == 4
    with operation(name="block") as step:
        step.set_input(1)
        step.set_output(2)
        step.set_attributes({"a": 1})


def test_without_content_only_the_name_is_recorded() -> None:
    tracer = OtelTracer(capture_content=False)

    @operation
    def tell(secret: str) -> str:
        return secret

    tracer.trace_run(tell, "secret")
    assert only_operation(tracer).attributes == {"sharpen.operation.name": "tell"}


class Opaque:
    def __repr__(self) -> str:
        raise AssertionError("nobody asks for my words")


def endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"a": Opaque()}, {"a": "<tests.emitter.test_operation.Opaque>"}),
        ([1, {2, 3}], [1, "<builtins.set>"]),
        ({(1, 2): "x"}, {"(1, 2)": "x"}),
        (b"raw", "<builtins.bytes>"),
        (endless(), "<builtins.dict>"),
    ],
)
def test_what_json_cannot_hold_is_described_by_its_type(given: Any, written: Any) -> None:
    assert json.loads(as_json(given)) == written


def test_numbers_that_are_not_finite_do_not_spoil_the_json() -> None:
    text = as_json({"a": math.nan, "b": 1})
    assert json.loads(text, parse_constant=pytest.fail)["b"] == 1


@pytest.mark.parametrize("make", [lambda: operation(3), lambda: operation(name=3)], ids=["function", "name"])
def test_what_is_no_function_or_name_is_refused(make: Any) -> None:
    with pytest.raises(InvalidInputError):
        make()


def test_a_block_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidInputError), operation():
        raise AssertionError("not reached")
