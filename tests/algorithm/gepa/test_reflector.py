"""What is made of the answer of a reflecting model."""

import pytest

from sharpen import PromptTemplate
from tests.algorithm.internals import split_answer, what_to_keep


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


def test_the_model_is_told_which_places_for_values_to_keep() -> None:
    assert "{a}, {b}:" in what_to_keep(PromptTemplate("{a} and {b} and {{c}}"))
    assert "jinja template" in what_to_keep(PromptTemplate("{% for x in xs %}{{ x }}{% endfor %}", "jinja"))
    assert "values xs too" in what_to_keep(PromptTemplate("{% for x in xs %}{{ x }}{% endfor %}", "jinja"))
    assert what_to_keep(PromptTemplate("nothing")) == ""
    assert what_to_keep(PromptTemplate(r"\boxed{answer}")) == ""
    assert "{q}:" in what_to_keep(PromptTemplate(r"\textbf{q} \boxed{answer}"), given=["q"])
