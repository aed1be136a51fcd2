"""Demonstrations in templates of all kinds: where they stand, and that nothing in them is taken for a part of one."""

from typing import Any

import pytest

from sharpen import PromptTemplate
from tests.algorithm.internals import Demonstration, why_unshowable, with_demonstrations, without_demos


def demo(answer: str = "four", *, input: str = "said", number: int = 1, **values: str) -> Demonstration:
    return Demonstration(f"ro-{number}", values, input, answer, 1.0)


TWO = [demo("four", question="2+2?"), demo("six", question="3+3?")]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            "Add.\n\nQuestion: {question}\nAnswer:",
            "Add.\n\nQuestion: 2+2?\nAnswer: four\n\nQuestion: 3+3?\nAnswer: six\n\nQuestion: {question}\nAnswer:",
        ),
        # A part about the task that is a line of a paragraph becomes a paragraph of its own.
        ("Add.\nQ: {question}", "Add.\n\nQ: 2+2?\nfour\n\nQ: 3+3?\nsix\n\nQ: {question}"),
        ("{question} =", "2+2? = four\n\n3+3? = six\n\n{question} ="),
        ("{question}", "2+2?\nfour\n\n3+3?\nsix\n\n{question}"),
        ("Add {question}: ", "Add 2+2?: four\n\nAdd 3+3?: six\n\nAdd {question}: "),
        # What follows the question is a part of what the model answers to.
        (
            "Add.\n\n{question}\n\nBe brief.",
            "Add.\n\n2+2?\n\nBe brief.\nfour\n\n3+3?\n\nBe brief.\nsix\n\n{question}\n\nBe brief.",
        ),
        # Values in LaTeX.
        (r"\textbf{question}", "\\textbf{2+2?}\nfour\n\n\\textbf{3+3?}\nsix\n\n\\textbf{question}"),
        # A place for them.
        ("A\n\n{demos}\n\nB\n\nQ: {question}", "A\n\nQ: 2+2?\nfour\n\nQ: 3+3?\nsix\n\nB\n\nQ: {question}"),
        ("<d>{demonstrations}</d>\nQ: {question}", "<d>Q: 2+2?\nfour\n\nQ: 3+3?\nsix</d>\nQ: {question}"),
        (
            "Q: {question}\n\nLike this:\n{examples}",
            "Q: {question}\n\nLike this:\nInput: 2+2?\nOutput: four\n\nInput: 3+3?\nOutput: six",
        ),
        # Braces that are no fields stay.
        ('Give {"a": 1}.\n\n{question}', 'Give {"a": 1}.\n\n2+2?\nfour\n\n3+3?\nsix\n\n{question}'),
    ],
)
def test_demonstrations_are_filled_copies_before_the_task_or_at_their_place(template: str, expected: str) -> None:
    assert with_demonstrations(PromptTemplate(template), TWO).template == expected


def test_a_template_without_values_ends_with_examples() -> None:
    shown = [demo("four", input="2+2?"), demo("six", input="3+3?")]
    expected = "Add.\n\nExamples:\n\nInput: 2+2?\nOutput: four\n\nInput: 3+3?\nOutput: six"
    assert with_demonstrations(PromptTemplate("Add.\n"), shown).template == expected


def test_several_values_are_shown_together() -> None:
    found = with_demonstrations(
        PromptTemplate("Text: {text}\n\nQ: {question}\nA:"), [demo("x", text="T", question="?")]
    )
    assert found.template == "Text: T\n\nQ: ?\nA: x\n\nText: {text}\n\nQ: {question}\nA:"


def test_a_long_part_about_the_task_is_not_repeated() -> None:
    template = PromptTemplate("Q: {question}\n" + "Mind this. " * 200)
    found = with_demonstrations(template, TWO).template
    assert found.startswith("Examples:\n\nInput: 2+2?\nOutput: four\n\nInput: 3+3?\nOutput: six\n\nQ: {question}\n")
    assert found.count("Mind this.") == 200


# -- nothing to show ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("A\n\n{demos}\n\nB", "A\n\nB"),
        ("A\n{demos}\nB", "A\nB"),
        ("{demos}\n\nB", "B"),
        ("A\n\n{demos}", "A"),
        ("A {demos} B", "A  B"),
        ("A\n\n{question}", "A\n\n{question}"),
        ("{{demos}}", "{{demos}}"),
    ],
)
def test_without_demonstrations_their_place_leaves_no_gap(template: str, expected: str) -> None:
    assert without_demos(PromptTemplate(template)).template == expected
    assert with_demonstrations(PromptTemplate(template), []).template == expected


# -- hostile demonstrations --------------------------------------------------------------------------

HARMLESS = ['{"a": {"b": [1, 2]}}', "{ question }", "{{question}}", "{}", "{0}", "{other}", "}{", "\\", "{% raw %}"]
HARMLESS += [
    "{question}",
    "a {question} b",
    "{question.text}",
    "{question[0]}",
    "{demos}",
    "{x:.2f}",
    "\\frac{a}{b}",
    "{",
]


@pytest.mark.parametrize("text", HARMLESS)
@pytest.mark.parametrize("engine", ["f-string", "jinja"])
def test_what_is_shown_comes_out_as_it_is(text: str, engine: Any) -> None:
    field = "{question}" if engine == "f-string" else "{{ question }}"
    template = PromptTemplate(f"Add.\n\nQ: {field}\nA:", engine)
    shown = demo(text, question=text)
    assert why_unshowable(template, shown) is None
    filled = with_demonstrations(template, [shown, shown]).format(question="now?")
    assert filled == f"Add.\n\nQ: {text}\nA: {text}\n\nQ: {text}\nA: {text}\n\nQ: now?\nA:"


@pytest.mark.parametrize(
    "text", ["{{ question }}", "{{ 7 * 7 }}", "{% for x in y %}", "{# gone #}", "{{", "%}", "{%- raw -%}"]
)
def test_jinja_takes_what_is_shown_for_text(text: str) -> None:
    template = PromptTemplate("Q: {{ question }}", "jinja")
    shown = demo(text, question=text)
    assert why_unshowable(template, shown) is None
    assert with_demonstrations(template, [shown]).format(question="now?") == f"Q: {text}\n{text}\n\nQ: now?"


@pytest.mark.parametrize("text", ["{% endraw %}", "{%- endraw -%}{{ question }}", "{%endraw%}"])
def test_the_end_of_raw_text_cannot_be_shown_in_jinja(text: str) -> None:
    assert "endraw" in str(why_unshowable(PromptTemplate("{{ question }}", "jinja"), demo(text, question="?")))


# -- Jinja and POML ----------------------------------------------------------------------------------


def test_jinja_shows_them_wherever_it_uses_their_place() -> None:
    template = PromptTemplate(
        "Add.\n{% if examples %}Like this:\n{{ examples | upper }}\n{% endif %}\nQ: {{ question }}", "jinja"
    )
    assert without_demos(template).format(question="now?") == "Add.\n\nQ: now?"
    found = with_demonstrations(template, [demo("four", question="2+2?")])
    assert found.format(question="now?") == "Add.\nLike this:\nQ: 2+2?\nFOUR\n\nQ: now?"
    assert template.format(question="now?") == "Add.\n\nQ: now?"


def test_a_value_behind_a_filter_is_part_of_the_task() -> None:
    found = with_demonstrations(PromptTemplate("Add.\n\nQ: {{ question | upper }}", "jinja"), [demo("f", question="a")])
    assert found.format(question="b") == "Add.\n\nQ: A\nf\n\nQ: B"


@pytest.mark.parametrize(
    "text", ["{% if on %}\n\nQ: {{ question }}\n{% endif %}", "{% if 1 %}\n\nQ: {{ question }}{% endif %}"]
)
def test_a_block_around_the_task_does_not_hide_them(text: str) -> None:
    found = with_demonstrations(PromptTemplate(text, "jinja"), [demo("four", question="2+2?", on="yes")])
    assert "four" in found.format(question="now?", on=False)
    assert found.format(question="now?", on=True).strip().endswith("Q: now?")


def test_poml_shows_them_before_the_task_as_they_are() -> None:
    template = PromptTemplate("<poml>\n<role>Adds ü.</role>\n<p>Q: {{question}}</p>\n</poml>", "poml")
    shown = demo("a < b & {{question}}\n  #lt; </p>", question="2+2?")
    assert why_unshowable(template, shown) is None
    filled = with_demonstrations(template, [shown, TWO[1]]).format(question="now?")
    assert filled == (
        "# Role\n\nAdds ü.\n\nExamples:\n\nInput: 2+2?\nOutput: a < b & {{question}}\n  #lt; </p>\n\n"
        "Input: 3+3?\nOutput: six\n\nQ: now?"
    )


def test_poml_shows_them_at_their_place_and_at_the_end_of_what_is_no_xml() -> None:
    place = PromptTemplate("<poml><p>Like:</p>{{examples}}<p>{{question}}</p></poml>", "poml")
    assert with_demonstrations(place, [demo(question="a")]).template == (
        '<poml><p>Like:</p><p whiteSpace="pre">Input: a\nOutput: four</p>\n<p>{{question}}</p></poml>'
    )
    assert with_demonstrations(PromptTemplate("<poml>a < b</poml>", "poml"), [demo()]).template.endswith(
        "</p>\n</poml>"
    )
