"""Rewards: written in every form, refused when they are none, read back."""

import logging
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from sharpen.emitter import (
    emit_message,
    emit_reward,
    find_final_reward,
    find_reward_spans,
    get_reward_value,
    get_rewards_from_span,
    is_reward_span,
    reward,
)
from sharpen.errors import InvalidInputError
from sharpen.tracer import DummyTracer, OtelTracer, Tracer
from sharpen.types import Span, SpanCoreFields
from tests.emitter.internals import tracer_base
from tests.errors import raises

TRACERS = [OtelTracer(), DummyTracer()]


@pytest.fixture(params=TRACERS, ids=lambda each: type(each).__name__)
def tracer(request: pytest.FixtureRequest) -> Tracer:
    found: Tracer = request.param
    return found


def test_a_number_is_the_primary_reward(tracer: Tracer) -> None:
    core = tracer.trace_run(emit_reward, 0.5)
    [span] = tracer.get_last_trace()
    assert span.name == core.name == "sharpen.reward"
    assert span.attributes == core.attributes == {"sharpen.reward.0.name": "primary", "sharpen.reward.0.value": 0.5}
    assert isinstance(core, SpanCoreFields)


def test_several_dimensions_are_numbered_with_the_primary_one_first(tracer: Tracer) -> None:
    tracer.trace_run(emit_reward, {"speed": 1, "truth": 0.25, "style": 0.5}, primary_key="truth")
    [span] = tracer.get_last_trace()
    assert span.attributes["sharpen.reward.0.name"] == "truth"
    assert get_reward_value(span) == 0.25
    found = get_rewards_from_span(span)
    assert [(each.name, each.value) for each in found] == [("truth", 0.25), ("speed", 1.0), ("style", 0.5)]


def test_a_dict_with_one_dimension_needs_no_primary_key() -> None:
    assert get_rewards_from_span(emit_reward({"truth": 1}, propagate=False)) == [("truth", 1.0)]


def test_a_number_may_have_a_name() -> None:
    assert get_rewards_from_span(emit_reward(2, primary_key="score", propagate=False)) == [("score", 2.0)]


def test_further_attributes_stand_beside_the_reward() -> None:
    core = emit_reward(1.0, attributes={"judge": {"model": "tiny", "votes": [1, 0]}}, propagate=False)
    assert core.attributes["judge.model"] == "tiny"
    assert core.attributes["judge.votes"] == [1, 0]
    assert get_reward_value(core) == 1.0


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (math.nan, ("nan",)),
        (math.inf, ("inf",)),
        (-math.inf, ("-inf",)),
        (10**400, ("finite",)),
        (True, ("True",)),
        ("1.0", ("'1.0'",)),
        (None, ("None",)),
        (1j, ("1j",)),
        (Decimal("1"), ("Decimal",)),
        ([1.0], ("[1.0]",)),
        ({}, ()),
        ({"a": math.nan}, ("a", "nan")),
        ({"a": True}, ("a", "True")),
        ({1: 1.0}, (1,)),
        ({"": 1.0}, ()),
        ({"a": 1, "b": 2}, ("primary_key",)),
    ],
)
def test_what_is_no_finite_number_is_refused_with_the_value(
    value: Any, named: tuple[object, ...], tracer: Tracer
) -> None:
    with raises(InvalidInputError, *named):
        tracer.trace_run(emit_reward, value)
    assert tracer.get_last_trace() == []


def test_a_primary_key_that_is_not_there_is_refused_with_those_that_are() -> None:
    with raises(InvalidInputError, "primary_key", "c", "a", "b"):
        emit_reward({"a": 1, "b": 2}, primary_key="c", propagate=False)


class Float32(float):
    """A number of another library."""


@pytest.mark.parametrize("value", [Float32(0.5), Fraction(1, 2), 0.5])
def test_real_numbers_of_other_types_are_taken_as_floats(value: Any) -> None:
    found = get_reward_value(emit_reward(value, propagate=False))
    assert found == 0.5
    assert type(found) is float


def test_without_propagation_the_span_is_only_built(tracer: Tracer) -> None:
    core = tracer.trace_run(emit_reward, 1.0, propagate=False)
    assert get_reward_value(core) == 1.0
    assert tracer.get_last_trace() == []


def test_outside_a_rollout_the_value_is_returned_and_one_warning_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracer_base, "_warned", type(tracer_base._warned)())
    with caplog.at_level(logging.WARNING, "sharpen"):
        assert get_reward_value(emit_reward(1.0)) == 1.0
        emit_reward(2.0)
        emit_message("three")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "outside a rollout" in caplog.text


# -- the decorator -----------------------------------------------------------------------------------


def test_a_scoring_function_emits_what_it_returns_and_returns_it_unchanged(tracer: Tracer) -> None:
    @reward
    def score(answer: str, *, right: str) -> int:
        """Says whether it is right."""
        return int(answer == right)

    value = tracer.trace_run(score, "a", right="a")
    assert (value, type(value)) == (1, int)
    assert find_final_reward(tracer.get_last_trace()) == 1.0
    assert (score.__name__, score.__doc__) == ("score", "Says whether it is right.")


async def test_an_async_scoring_function_too(tracer: Tracer) -> None:
    @reward(primary_key="truth")
    async def score() -> dict[str, float]:
        return {"speed": 2.0, "truth": 1.0}

    assert await tracer.trace_run_async(score) == {"speed": 2.0, "truth": 1.0}
    assert find_final_reward(tracer.get_last_trace()) == 1.0


def test_what_a_scoring_function_does_stands_below_its_reward(tracer: Tracer) -> None:
    @reward
    def judged() -> float:
        emit_message("asking the judge")
        return 0.5

    tracer.trace_run(judged)
    message, scored = tracer.get_last_trace()
    assert message.parent_id == scored.span_id
    assert find_final_reward([message, scored]) == 0.5


def test_a_scoring_function_that_fails_or_returns_no_number_is_not_silent(tracer: Tracer) -> None:
    @reward
    def nothing() -> None:
        return None

    @reward
    def broken() -> float:
        raise KeyError("x")

    with raises(InvalidInputError, "None"):
        tracer.trace_run(nothing)
    with pytest.raises(KeyError):
        tracer.trace_run(broken)
    with pytest.raises(InvalidInputError):
        reward(3)  # type: ignore[type-var]


# -- readers -----------------------------------------------------------------------------------------


def as_spans(cores: list[SpanCoreFields]) -> list[Span]:
    return [Span.from_core_fields(core, rollout_id="ro", attempt_id="at", sequence_id=1) for core in cores]


@pytest.mark.parametrize("form", [list, as_spans], ids=["core fields", "spans"])
def test_the_last_reward_is_the_final_one(form: Callable[[list[SpanCoreFields]], list[Any]]) -> None:
    first, last = emit_reward(1.0, propagate=False), emit_reward({"a": 3.0}, propagate=False)
    message = emit_message("reward", propagate=False)
    spans = form([message, first, message, last, message])
    assert find_final_reward(spans) == 3.0
    assert [get_reward_value(span) for span in find_reward_spans(spans)] == [1.0, 3.0]
    assert [is_reward_span(span) for span in spans] == [False, True, False, True, False]
    assert get_rewards_from_span(spans[0]) == []


def test_no_spans_no_reward() -> None:
    assert find_final_reward([]) is None
    assert find_reward_spans([]) == []


@pytest.mark.parametrize("value", [None, "1.0", True, [1.0]])
def test_an_attribute_that_is_no_number_is_no_reward(value: Any) -> None:
    span = Span.from_attributes(attributes={"sharpen.reward.0.value": value})
    assert get_reward_value(span) is None
    assert not is_reward_span(span)


def test_a_reward_written_by_others_is_read_by_its_attribute() -> None:
    span = Span.from_attributes(name="anything", attributes={"sharpen.reward.0.value": 2})
    assert get_reward_value(span) == 2.0
    assert get_rewards_from_span(span) == [("primary", 2.0)]


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1), st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5
    ).flatmap(lambda found: st.tuples(st.just(found), st.sampled_from(sorted(found))))
)
def test_all_dimensions_come_back(given_reward: tuple[dict[str, float], str]) -> None:
    values, primary = given_reward
    core = emit_reward(values, primary_key=primary, propagate=False)
    assert dict(get_rewards_from_span(core)) == values
    assert get_rewards_from_span(core)[0].name == primary
    assert get_reward_value(core) == values[primary]
