"""The places for values in a prompt, and which rewritten prompts are refused."""

import re
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from sharpen.errors import InvalidInputError
from sharpen.types import PromptTemplate
from tests.algorithm.internals import as_child, optional_names, placeholders, why_unfit
from tests.errors import raises

PARENT = PromptTemplate('Context: {context}\nQuestion: {question}\nReply as {"answer": 1}.')


@pytest.mark.parametrize(
    ("text", "engine", "names"),
    [
        ('{b} and {a} and {b}, {"json": 1}, {{c}}, { d }, {e.f}, {g[0]}, {}, {0}', "f-string", ["b", "a"]),
        ("no place", "f-string", []),
        (r"{question} in \boxed{answer}, \frac{a}{b}", "f-string", ["question"]),
        (r'{q} {"a": {number}}, x_{i}, {{{x}}}', "f-string", ["q", "x"]),
        (
            "{{ b }} {{ a|upper }} {% for x in xs %}{{ x }}{% endfor %} {% set y = 1 %}{{ y }}",
            "jinja",
            ["b", "a", "xs"],
        ),
        ("{% for i in range(n) %}{{ i }}{% endfor %}", "jinja", ["n"]),
        ("{# {{ a }} #}{% raw %}{{ b }}{% endraw %}", "jinja", []),
        ("<p>{{b}} {{ a }} {{b}}</p> {c}", "poml", ["b", "a"]),
        ('<item for="x in xs">{{x}}</item><let name="y">1</let>{{y}}{{z}}', "poml", ["z"]),
    ],
)
def test_placeholders_are_the_values_that_a_template_takes(text: str, engine: Any, names: list[str]) -> None:
    assert placeholders(PromptTemplate(text, engine)) == names


@settings(max_examples=50)
@given(st.lists(st.sampled_from(["{", "}", "a", "b", "_1", ".", "[0]", " ", '"', "{a}", "{{b}}"])).map("".join))
def test_placeholders_are_exactly_what_format_fills(text: str) -> None:
    template = PromptTemplate(text)
    names = placeholders(template, given=optional_names(template))
    try:
        filled = template.format(**{name: f"<{name}>" for name in names})
    except InvalidInputError:
        assert "." in text or "[0]" in text  # one that is not plain
    else:
        assert all(f"<{name}>" in filled for name in names)
        assert set(re.findall("<(.*?)>", filled)) == set(names)


def test_a_jinja_template_that_is_wrong_is_named() -> None:
    with raises(InvalidInputError, "Jinja"):
        placeholders(PromptTemplate("{% if %}", "jinja"))


def test_an_endless_sum_in_a_jinja_template_is_not_worked_out() -> None:
    assert placeholders(PromptTemplate("{{ 9**9**9**9 }} {{ a }}", "jinja")) == ["a"]


@pytest.mark.parametrize(
    "text",
    [
        "Think first.\n" + PARENT.template,
        "{question} {context}",
        "{question} {context} {{something_new}} {{question}} { json }",
        r"{question} {context} \boxed{answer} \frac{a}{b}",
        '{question} {context} {"answer": {number}, "unit": {unit: kg}}',
        '{"context": "{context}", "question": "{question}"}',
        r"{context} \boxed{question}",
    ],
)
def test_a_prompt_that_keeps_its_places_is_fit(text: str) -> None:
    assert why_unfit(as_child(PromptTemplate(text), PARENT), PARENT) is None


@pytest.mark.parametrize(
    "text",
    [
        'Reply as {"answer": "{answer}"}',
        r"Reply as \boxed{answer}",
        r"Reply as \textbf{Answer:}{answer} and x_{answer}",
        'Reply as {"answer": {answer: 5}}',
    ],
)
def test_an_optional_field_that_the_parent_lacks_is_text_whatever_is_given(text: str) -> None:
    parent = PromptTemplate("Question: {question}")
    child = as_child(PromptTemplate(f"{parent.template}\n{text}"), parent)
    assert why_unfit(child, parent, given=["answer"]) is None
    assert child.format(question="2+2?", answer="4") == f"Question: 2+2?\n{text}"
    assert as_child(child, parent) == child


def test_a_child_like_its_parent_is_recognised_whatever_braces_it_has() -> None:
    parent = PromptTemplate(r'{q} {"a": {number}, "b": {unit: kg}} \boxed{answer} x_{i}')
    assert as_child(parent, parent) == parent


def test_an_optional_field_is_a_placeholder_only_if_it_is_given() -> None:
    parent = PromptTemplate('Q: {q}\nReply as JSON: {"answer": {number}}')
    child = PromptTemplate('Q: {q}\nReply as JSON: {"answer": <number>}')
    assert optional_names(parent) == ["number"]
    assert placeholders(parent) == ["q"]
    assert why_unfit(child, parent) is None
    assert placeholders(parent, given=["number"]) == ["q", "number"]
    assert why_unfit(child, parent, given=["number"]) == "it lost {number}"


@pytest.mark.parametrize("text", [r"Solve \textbf{q}", r"\textbf{Problem:}{q}", "x_{q}"])
def test_a_given_value_in_latex_must_be_kept(text: str) -> None:
    parent = PromptTemplate(text)
    assert why_unfit(PromptTemplate("Solve it."), parent, given=["q"]) == "it lost {q}"
    assert why_unfit(PromptTemplate("Solve this: {q}"), parent, given=["q"]) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        (" \n\t\u200b\u00a0", "it is empty"),
        (PARENT.template, "it is the same as its parent"),
        ("  " + PARENT.template.replace("\n", " \r\n"), "it differs from its parent only in white space"),
        ("Context: {context}", "it lost {question}"),
        ("Answer.", "it lost {context} and {question}"),
        ("{context} {{question}}", "it lost {question}"),
        ("{context} {question} {question.text}", "it uses {question.text}, but only plain fields such as {question}"),
        ("{context} {question:.50}", "it lost {question}"),
        ("{context} {question} {price:.2f}", "it uses {price:.2f}, but only plain fields such as {price}"),
        ('{context} {question} {"q": {question!r}}', "it uses {question!r}, but only plain fields"),
        ("{context} {question} {reasoning}", "it uses {reasoning}, which gets no value"),
        ("{context} {question} \ud800", "it contains a lone surrogate"),
        ("{context} {question}" + "x" * 100_000, "it is too long: 100,020 characters"),
    ],
)
def test_a_prompt_that_cannot_work_is_refused_in_words(text: str, why: str) -> None:
    found = why_unfit(as_child(PromptTemplate(text), PARENT), PARENT)
    assert found is not None
    assert found.startswith(why)


def test_a_long_parent_may_have_long_children() -> None:
    parent = PromptTemplate("x" * 10_000)
    assert why_unfit(PromptTemplate("y" * 200_000), parent) is None
    assert why_unfit(PromptTemplate("y" * 200_001), parent) is not None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ question|nosuchfilter }}", "it does not parse"),
        ("{% for %} {{ question }}", "it does not parse"),
        ("{{ " + "(" * 5_000 + " }}", "it does not parse"),
        ("{question}", "it lost {{question}}"),
        ("{{ question }} {{ hint }}", "it uses {{hint}}, which gets no value"),
        ("{% set question = 1 %}{{ question }}", "it lost {{question}}"),
    ],
)
def test_a_jinja_prompt_that_cannot_work_is_refused(text: str, why: str) -> None:
    found = why_unfit(PromptTemplate(text, "jinja"), PromptTemplate("Q: {{ question }}", "jinja"))
    assert found is not None
    assert found.startswith(why)
    assert why_unfit(PromptTemplate("{{ question }}!", "jinja"), PromptTemplate("Q: {{ question }}", "jinja")) is None


def test_a_poml_prompt_that_lost_a_value_is_refused() -> None:
    parent = PromptTemplate("<p>{{question}}</p>", "poml")
    assert why_unfit(PromptTemplate("<p>Question</p>", "poml"), parent) == "it lost {{question}}"
    for code in ('<p if="question">{{question}}</p>', "<p>{{question}} {{ question.length }}</p>"):
        assert "run as code" in str(why_unfit(PromptTemplate(code, "poml"), parent))
    assert "{{hint}}" in str(why_unfit(PromptTemplate("<p>{{question}} {{hint}}</p>", "poml"), parent))
    assert why_unfit(PromptTemplate("<p>Q: {{ question }}</p>", "poml"), parent) is None
