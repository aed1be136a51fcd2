"""Chat messages of a data set are checked row by row."""

import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sharpen.llm import RowError
from tests.errors import raises
from tests.llm.internals import check_prompt

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
CALLS = [{"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "add"}}]}]


@pytest.mark.parametrize(
    "value",
    [
        "How many?",
        "",
        ASKED,
        tuple(ASKED),
        [{"role": "user", "content": [{"type": "text", "text": "How many?"}]}],
        [*ASKED, *CALLS, {"role": "tool", "content": "12", "tool_calls": None}],
        [{"role": "user", "content": ""}],
    ],
)
def test_texts_and_messages_pass(value: Any) -> None:
    check_prompt(value, 0, "prompt")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (5, (5,)),
        (b"bytes", ()),
        ({"role": "user", "content": "a"}, ("role", "user", "content", "a")),
        ([], ()),
        (["How many?"], (0, "How many?", "role", "content")),
        ([*ASKED, {"content": "a"}], (2,)),
        ([{"role": None, "content": "a"}], ()),
        ([{"role": 5, "content": "a"}], ()),
        ([*ASKED, {"role": "assistant"}], (2, "content")),
        ([{"role": "user", "content": None}], ("content",)),
        ([{"role": "assistant", "content": None, "tool_calls": []}], ("content",)),
        ([{"role": "user", "content": 5}], (5,)),
        ([{"role": "user", "content": []}], ()),
        ([{"role": "user", "content": ["a"]}], ("a",)),
        ([{"role": "user", "content": {"text": "a"}}], ("text", "a")),
    ],
)
def test_a_value_that_is_no_conversation_is_named_by_row_and_column(value: Any, named: tuple[object, ...]) -> None:
    with raises(RowError, 1, "eval_dataset", "completion", *named) as caught:
        check_prompt(value, 1, "completion", source="eval_dataset")
    assert (caught.value.row, caught.value.column) == (1, "completion")


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), inner)
    ),
    max_leaves=12,
)


@given(value=JSON)
def test_any_value_passes_or_is_refused_in_words(value: Any) -> None:
    try:
        check_prompt(value, 0, "prompt")
    except RowError:
        return
    assert isinstance(value, str) or all(isinstance(message["role"], str) for message in value)


def test_ten_thousand_rows_take_no_time_worth_mentioning() -> None:
    began = time.process_time()
    for row in range(20_000):
        check_prompt(ASKED, row, "prompt")
    assert time.process_time() - began < 2
