"""Chat messages of a data set are checked row by row."""

import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sharpen.llm import RowError
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
    ("value", "words"),
    [
        (5, "it is 5: give a text or a list of chat messages"),
        (b"bytes", "it is b'bytes'"),
        ({"role": "user", "content": "a"}, "it is {'role': 'user', 'content': 'a'}: give a text or a list"),
        ([], "empty list of messages"),
        (["How many?"], "message 0 .*is 'How many\\?': a chat message is a dict with 'role' and 'content'"),
        ([*ASKED, {"content": "a"}], "message 2 .*its role is a text"),
        ([{"role": None, "content": "a"}], "its role is a text"),
        ([{"role": 5, "content": "a"}], "its role is a text"),
        ([*ASKED, {"role": "assistant"}], "message 2 .*no 'content', and calls no tools either"),
        ([{"role": "user", "content": None}], "no 'content'"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "no 'content'"),
        ([{"role": "user", "content": 5}], "has the content 5: give a text, or a list of parts"),
        ([{"role": "user", "content": []}], "has the content \\[\\]"),
        ([{"role": "user", "content": ["a"]}], "has the content \\['a'\\]"),
        ([{"role": "user", "content": {"text": "a"}}], "has the content {'text': 'a'}"),
    ],
)
def test_a_value_that_is_no_conversation_is_named_by_row_and_column(value: Any, words: str) -> None:
    with pytest.raises(RowError, match=rf"row 1 of eval_dataset .*'completion': .*{words}") as caught:
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
