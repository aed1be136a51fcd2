"""Messages, objects, exceptions and annotations: written, refused, read back."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from sharpen.emitter import (
    emit_annotation,
    emit_exception,
    emit_message,
    emit_object,
    emit_reward,
    get_message_value,
    get_object_value,
)
from sharpen.errors import InvalidInputError
from sharpen.tracer import DummyTracer, OtelTracer, Tracer
from sharpen.types import Span, TraceStatus
from tests.errors import raises

TRACERS = [OtelTracer(), DummyTracer()]


@pytest.fixture(params=TRACERS, ids=lambda each: type(each).__name__)
def tracer(request: pytest.FixtureRequest) -> Tracer:
    found: Tracer = request.param
    return found


def test_a_message_is_recorded_and_read_back(tracer: Tracer) -> None:
    core = tracer.trace_run(emit_message, "grüße")
    [span] = tracer.get_last_trace()
    assert span.name == "sharpen.message"
    assert get_message_value(span) == get_message_value(core) == "grüße"


@pytest.mark.parametrize(
    ("emit", "value"), [(emit_message, "hi"), (emit_object, {"a": 1}), (emit_exception, ValueError("no"))]
)
def test_attributes_of_the_user_stand_beside_what_is_emitted(tracer: Tracer, emit: Any, value: Any) -> None:
    plain = emit(value, propagate=False).attributes
    hostile = dict.fromkeys(plain, "other")  # what is emitted stays
    tracer.trace_run(emit, value, attributes={"step": 3, "tags": {"who": "me"}, **hostile})
    [span] = tracer.get_last_trace()
    assert span.attributes == {"step": 3, "tags.who": "me", **plain}
    with raises(InvalidInputError, "step"):
        emit(value, {"step": object()}, propagate=False)


@pytest.mark.parametrize("value", [None, 3, b"bytes", ["a"]])
def test_a_message_is_text(value: Any) -> None:
    with raises(InvalidInputError, "emit_object"):
        emit_message(value)


@pytest.mark.parametrize(
    "value", ["text", "", 3, 2.5, True, None, [], {}, [1, "a", None], {"a": {"b": [1, {"c": False}]}}, 2**80]
)
def test_an_object_is_recorded_and_comes_back_equal(tracer: Tracer, value: Any) -> None:
    tracer.trace_run(emit_object, value)
    [span] = tracer.get_last_trace()
    assert span.name == "sharpen.object"
    assert span.attributes["sharpen.object.type"] == type(value).__name__
    assert get_object_value(span) == value
    assert type(get_object_value(span)) is type(value)


@dataclass
class Point:
    x: int


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    "value", [Point(1), {1, 2}, b"bytes", math.nan, {"a": math.inf}, endless(), {"a": object()}, {(1, 2): 3}]
)
def test_an_object_that_json_cannot_hold_is_refused_with_the_way_out(tracer: Tracer, value: Any) -> None:
    with pytest.raises(InvalidInputError):
        tracer.trace_run(emit_object, value)
    assert tracer.get_last_trace() == []


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)
def test_every_json_value_comes_back(value: Any) -> None:
    assert get_object_value(emit_object(value, propagate=False)) == value


def test_readers_give_none_for_other_spans() -> None:
    span = emit_reward(1.0, propagate=False)
    assert get_message_value(span) is None
    assert get_object_value(span) is None
    assert get_message_value(Span.from_attributes(attributes={"sharpen.message.body": 3})) is None


class AgentProblem(RuntimeError):
    """A problem of this test."""


def test_an_exception_is_recorded_with_type_message_and_stack(tracer: Tracer) -> None:
    def agent() -> None:
        try:
            raise AgentProblem("too hot")
        except AgentProblem as error:
            emit_exception(error)

    tracer.trace_run(agent)
    [span] = tracer.get_last_trace()
    assert span.name == "sharpen.exception"
    assert span.status == TraceStatus("ERROR", "AgentProblem: too hot")
    assert span.attributes["exception.type"] == "tests.emitter.test_emitters.AgentProblem"
    assert span.attributes["exception.message"] == "too hot"
    assert "raise AgentProblem" in span.attributes["exception.stacktrace"]


def test_an_exception_that_was_never_raised_can_be_emitted_too() -> None:
    core = emit_exception(ValueError("odd"), propagate=False)
    assert core.attributes["exception.type"] == "ValueError"
    assert core.attributes["exception.stacktrace"] == "ValueError: odd\n"


@pytest.mark.parametrize("value", ["error", ValueError, None])
def test_only_exceptions_are_emitted_as_exceptions(value: Any) -> None:
    with pytest.raises(InvalidInputError):
        emit_exception(value)


def test_an_annotation_is_flattened_to_dotted_keys(tracer: Tracer) -> None:
    nested = {"a": 1, "b": {"c": {"d": "x"}, "e": None}, "f": [1, 2], "g": [{"h": 1}, {"h": 2}], "i": {}, "j": []}
    tracer.trace_run(emit_annotation, nested)
    [span] = tracer.get_last_trace()
    assert span.name == "sharpen.annotation"
    assert span.attributes == {
        "a": 1,
        "b.c.d": "x",
        "b.e": None,
        "f": [1, 2],
        "g.0.h": 1,
        "g.1.h": 2,
        "i": {},
        "j": [],
    }


def test_an_annotation_that_is_flat_already_stays_as_it_is() -> None:
    flat = {"a.b": 1, "a.c": "x"}
    assert emit_annotation(flat, propagate=False).attributes == flat
    assert emit_annotation({}, propagate=False).attributes == {}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("text", ()),
        ([("a", 1)], ()),
        ({"a": {"b": object()}}, ("a.b",)),
        ({"a": math.nan}, ("a", "nan")),
        ({"a": [1, math.inf]}, ("a.1", "inf")),
        ({1: "x"}, (1,)),
        ({"a": {"": 1}}, ("a",)),
        ({"a": {"b": 1}, "a.b": 2}, ("a.b",)),
        ({"a": endless()}, ("a",)),
    ],
)
def test_a_bad_annotation_is_refused_with_the_place(value: Any, named: tuple[object, ...]) -> None:
    with raises(InvalidInputError, *named):
        emit_annotation(value)
