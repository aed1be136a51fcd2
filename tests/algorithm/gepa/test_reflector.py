"""What is made of the answer of a reflecting model."""

import pytest

from sharpen.algorithm.gepa.reflector import split_answer


@pytest.mark.parametrize(
    ("answer", "text", "reflection"),
    [
        ("It was rude.\n```\nBe kind to {x}.\n```", "Be kind to {x}.", "It was rude."),
        ("```text\nBe kind.\n```\nThat should do.", "Be kind.", "That should do."),
        ("Why.\n```\nWrite:\n```py\nx\n```\nDone.\n```", "Write:\n```py\nx\n```\nDone.", "Why."),
        ("Be kind.", "Be kind.", ""),
        ("It was rude.\n```\nBe kind.", "Be kind.", "It was rude."),
        ("``````", "", ""),
    ],
)
def test_the_new_text_stands_between_the_fences(answer: str, text: str, reflection: str) -> None:
    assert split_answer(answer) == (text, reflection)
