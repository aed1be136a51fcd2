"""Values against the table: what a check takes is what the schema says."""

import json
import math
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings, strategies as st

from tests.errors import raises
from tests.llm.internals import ACTIONS, Parameter

PARAMETERS = [each for action in ACTIONS.values() for each in action.parameters]

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 2**33),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", " ", "auto", "sft", "grpo", "minimal", "accuracy", "all", "x"]),
    st.lists(st.sampled_from(["", "q_proj"]), max_size=2),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)


@given(parameter=st.sampled_from(PARAMETERS), value=VALUES)
@settings(max_examples=200, deadline=None)
def test_the_check_takes_exactly_what_the_schema_takes(parameter: Parameter, value: Any) -> None:
    if value is None:
        return  # null is "left out", which the call decides, not the value
    is_valid = jsonschema.Draft202012Validator(parameter.schema()).is_valid(value)
    try:
        parameter.check(value)
        is_taken = True
    except ValueError:
        is_taken = False
    assert is_taken == is_valid


@pytest.mark.parametrize("value", [True, "3", 2.5, 0, -1, [3], {"a": 1}, math.inf, math.nan, 10**400])
def test_a_count_takes_only_whole_numbers_from_its_least_on(value: Any) -> None:
    with raises(ValueError, "batch_size", 1):
        Parameter("batch_size", ("integer",), "", minimum=1, maximum=2**31 - 1).check(value)


def test_a_whole_number_written_as_a_float_is_a_whole_number() -> None:
    value = Parameter("batch_size", ("integer",), "", minimum=1).check(3.0)
    assert value == 3
    assert isinstance(value, int)


@pytest.mark.parametrize("value", ["", "  ", "a\x00b", "half \ud83d"])
def test_a_text_that_no_file_can_hold_is_refused(value: str) -> None:
    with pytest.raises(ValueError):
        Parameter("dataset", ("string",), "").check(value)


def test_a_choice_names_all_choices() -> None:
    with raises(ValueError, "precision", "fp8", "fp32", "bf16", "fp16"):
        Parameter("precision", ("string",), "", choices=("auto", "fp32", "bf16", "fp16")).check("fp8")


def test_names_or_a_list_may_be_given_where_both_are_said() -> None:
    modules = ACTIONS["train"].parameter("lora_target_modules")
    assert modules is not None
    assert modules.check("full") == "full"
    assert modules.check(["q_proj"]) == ["q_proj"]
    with pytest.raises(ValueError):
        modules.check("most")


def test_every_default_passes_its_own_check() -> None:
    checked = [each for each in PARAMETERS if each.default is not None]
    assert checked
    for each in checked:
        assert each.check(each.default) == each.default


def test_schemas_are_json() -> None:
    for each in PARAMETERS:
        assert json.loads(json.dumps(each.schema()))["description"]
