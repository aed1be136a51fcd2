"""What rows may hold, and how long they are."""

from typing import Any

import pytest

from sharpen.llm import RowError
from tests.llm.internals import check_texts, prompt_lengths, row_lengths

from ..tiny_models import tiny_tokenizer

ASKED = [{"role": "user", "content": "How many?"}]
SAID = [{"role": "assistant", "content": "7"}]


@pytest.mark.parametrize(
    ("prompt", "completion", "column", "words"),
    [
        (5, "7", "prompt", "it is 5"),
        ([], SAID, "prompt", "a list of chat messages"),
        (["How many?"], SAID, "prompt", "'role' and 'content'"),
        ([{"content": "How many?"}], SAID, "prompt", "'role' and 'content'"),
        (ASKED, 7, "completion", "it is 7"),
        (ASKED, "7", "completion", "prompt and completion are one a text"),
        ("How many?", SAID, "completion", "one form for both"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(prompt: Any, completion: Any, column: str, words: str) -> None:
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": prompt, "completion": completion}]
    with pytest.raises(RowError, match=rf"row 1 of dataset .*'{column}'.*{words}"):
        check_texts(rows, ["prompt", "completion"], source="dataset")


def test_texts_and_messages_pass() -> None:
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": ASKED, "completion": [{**SAID[0], "tool_calls": None}]}]
    check_texts(rows, ["prompt", "completion"], source="dataset")


def test_what_the_template_cannot_write_is_named() -> None:
    rows = [{"prompt": ASKED, "completion": SAID}, {"prompt": [{"role": "user", "content": 5}], "completion": SAID}]
    with pytest.raises(RowError, match=r"row 1 .*chat template cannot write it"):
        row_lengths(rows, tiny_tokenizer())


def test_lengths_are_those_of_the_template_as_it_is_used() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] }}{% if shouts %}!!!{% endif %}"
    plain, shouted = prompt_lengths([ASKED], tokenizer), prompt_lengths([ASKED], tokenizer, {"shouts": True})
    assert shouted[0] > plain[0]
