"""What rows may hold, and how long they are."""

from typing import Any

import pytest

from sharpen.llm import RowError
from tests.errors import raises
from tests.llm.internals import check_texts, prompt_lengths, row_lengths

from ..tiny_models import tiny_tokenizer

ASKED = [{"role": "user", "content": "How many?"}]
SAID = [{"role": "assistant", "content": "7"}]


@pytest.mark.parametrize(
    ("prompt", "completion", "column", "named"),
    [
        (5, "7", "prompt", (5,)),
        ([], SAID, "prompt", ()),
        (["How many?"], SAID, "prompt", ("role", "content")),
        ([{"content": "How many?"}], SAID, "prompt", ("role", "content")),
        (ASKED, 7, "completion", (7,)),
        (ASKED, "7", "completion", ("prompt", "completion")),
        ("How many?", SAID, "completion", ()),
    ],
)
def test_a_row_that_cannot_be_written_is_named(
    prompt: Any, completion: Any, column: str, named: tuple[object, ...]
) -> None:
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": prompt, "completion": completion}]
    with raises(RowError, 1, column, *named):
        check_texts(rows, ["prompt", "completion"], source="dataset")


def test_texts_and_messages_pass() -> None:
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": ASKED, "completion": [{**SAID[0], "tool_calls": None}]}]
    check_texts(rows, ["prompt", "completion"], source="dataset")


def test_what_the_template_cannot_write_is_named() -> None:
    rows = [{"prompt": ASKED, "completion": SAID}, {"prompt": [{"role": "user", "content": 5}], "completion": SAID}]
    with raises(RowError, 1):
        row_lengths(rows, tiny_tokenizer())


def test_lengths_are_those_of_the_template_as_it_is_used() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if shouts %}!!!{% endif %}"
    plain, shouted = prompt_lengths([ASKED], tokenizer), prompt_lengths([ASKED], tokenizer, {"shouts": True})
    assert shouted[0] > plain[0]
