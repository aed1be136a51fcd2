"""The grammar of f-string templates: what is filled, what is text, and what is an error."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from sharpen import PromptTemplate
from sharpen.errors import InvalidInputError, MissingValueError
from tests.errors import raises
from tests.types.internals import Field, escape_fields, parse_fields, with_text_fields

PIECES = st.lists(
    st.sampled_from(
        ["{", "}", "{{", "}}", "x", "_1", "_", ".y", "[0]", ":", ":>9", "!r", " ", '"', "\\", "\\a", "\n", "{x}", "题"]
    )
).map("".join)


@pytest.mark.parametrize(
    ("template", "values", "expected"),
    [
        # Values.
        ("{greeting}, {name}! {name}?", {"greeting": "Hi", "name": "Ann"}, "Hi, Ann! Ann?"),
        ("{问题}", {"问题": "为什么"}, "为什么"),
        (r"Q:\n{x}", {"x": 1}, r"Q:\n1"),
        # Values are not templates.
        ("{a} {b}", {"a": "{b}", "b": "{a}"}, "{b} {a}"),
        ("{a}", {"a": '{"x": {y}} {{z}} \\boxed{a}'}, '{"x": {y}} {{z}} \\boxed{a}'),
        # Doubled braces.
        ("{{x}}", {}, "{x}"),
        ("{{x}}", {"x": 1}, "{x}"),
        ("{{{x}}}", {"x": 1}, "{1}"),
        ("{{{{x}}}}", {"x": 1}, "{{x}}"),
        ("{{x:.2f}} {{x!r}} {{x.y}} {{x[0]}}", {"x": 1}, "{x:.2f} {x!r} {x.y} {x[0]}"),
        ("{{x} {x}}", {"x": 1}, "{1 1}"),
        ('{"a": {{x}}}', {"x": 1}, '{"a": {x}}'),
        # LaTeX.
        (r"\boxed{answer} {q}", {"q": 1}, r"\boxed{answer} 1"),
        (r"\frac{a}{b}", {}, r"\frac{a}{b}"),
        (r"\frac{a}{{b}}", {}, r"\frac{a}{b}"),
        (r"\frac{{a}}{b}", {}, r"\frac{a}{b}"),
        (r"\frac{\sqrt{a}}{b}", {}, r"\frac{\sqrt{a}}{b}"),
        (r"\frac{1}{b}{c}", {}, r"\frac{1}{b}{c}"),
        (r"\sqrt[3]{x} \section*{title} \begin{array}{cc}", {}, r"\sqrt[3]{x} \section*{title} \begin{array}{cc}"),
        (r"\\boxed{answer}", {}, r"\\boxed{answer}"),
        (r"\text{x:y} \ref{eq.one}", {}, r"\text{x:y} \ref{eq.one}"),
        (r"\boxed{{{answer}}}", {"answer": 42}, r"\boxed{42}"),
        # An argument keeps its braces when it is filled.
        (r"\frac{a}{b}", {"a": 1}, r"\frac{1}{b}"),
        (r"\boxed{answer} \textbf{q}", {"answer": 7, "q": "x"}, r"\boxed{7} \textbf{x}"),
        (r"\textbf{Problem:}{q}", {"q": 7}, r"\textbf{Problem:}{7}"),
        (r"\label{eq:{name}}", {"name": 7}, r"\label{eq:7}"),
        # Subscripts and superscripts; file names look the same.
        (
            r"x^{n} x_{i} \sum_{i=1}^{n} \mathrm{x}_{i} (a)^{b}",
            {},
            r"x^{n} x_{i} \sum_{i=1}^{n} \mathrm{x}_{i} (a)^{b}",
        ),
        ("report_{name}.csv 2^{n}", {"name": "ann", "n": 3}, "report_ann.csv 2^3"),
        ("__{x}__ _{x}_", {"x": 1}, "__1__ _1_"),
        # JSON, code and other braces.
        ('{"name": {x}}', {}, '{"name": {x}}'),
        ('{"name": {x}}', {"x": 3}, '{"name": 3}'),
        ('{"a":{"b":{x}}}', {}, '{"a":{"b":{x}}}'),
        ('[{"a": "{x}"}, {}, {"b": {y: 1}}]', {"x": 1}, '[{"a": "1"}, {}, {"b": {y: 1}}]'),
        ("```js\nfunction f() { return {x}; }\n```", {}, "```js\nfunction f() { return {x}; }\n```"),
        ("```yaml\n{name:\n  first}\n```", {}, "```yaml\n{name:\n  first}\n```"),
        ("{} {0} { x } {a b} {a-b} {wow!} {1x} {", {"x": 1}, "{} {0} { x } {a b} {a-b} {wow!} {1x} {"),
        ("} {x} {", {"x": 1}, "} 1 {"),
        ("{x} " * 3, {"x": ""}, "   "),
        ("", {"x": 1}, ""),
    ],
)
def test_a_template_reads_as_the_rules_say(template: str, values: dict[str, Any], expected: str) -> None:
    assert PromptTemplate(template).format(**values) == expected


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("Which date? {txt}", "txt"),
        ("{text} and {txt}", "txt"),
        ("{{{txt}}}", "txt"),
        ("{{ stray {txt}", "txt"),
        (r"\frac{a} {txt}", "txt"),
        (r"\ {txt}", "txt"),
        (r"Q:\n{txt}", "txt"),
        ("_{txt}_", "txt"),
        ("__{txt}__", "txt"),
        ("```py\nprint(f'{name}')\n```", "name"),
        ("{问题}", "问题"),
    ],
)
def test_a_field_without_a_value_is_named_with_the_nearest_name_given(template: str, name: str) -> None:
    with pytest.raises(MissingValueError) as caught:
        PromptTemplate(template).format(text="noon", z="")
    message = str(caught.value)
    assert f"{{{name}}}" in message
    if name == "txt":
        assert "'text'" in message
        assert "'z'" not in message


def test_a_missing_value_is_the_error_that_str_format_raises() -> None:
    with pytest.raises(KeyError):
        PromptTemplate("{a}").format()


@pytest.mark.parametrize(
    "field",
    [
        "{x:.2f}",
        "{x:>9}",
        "{x: string}",
        "{x!r}",
        "{x!s:>9}",
        "{x.y}",
        "{x[0]}",
        "{x[k].y}",
        "{x:{w}}",
        "{x:>{w}.{p}f}",
    ],
)
@pytest.mark.parametrize("values", [{}, {"x": 1.0}, {"x": 1.0, "w": 2, "p": 3}])
def test_a_field_that_is_not_plain_is_an_error(field: str, values: dict[str, float]) -> None:
    with raises(InvalidInputError, field):
        PromptTemplate(f"Price: {field}").format(**values)


@pytest.mark.parametrize("template", [r"\text{x:.2f}", '{"a": {x:.2f}}', '{"a": {x.y}}'])
def test_a_field_that_is_not_plain_is_an_error_wherever_its_value_is_given(template: str) -> None:
    with pytest.raises(InvalidInputError):
        PromptTemplate(template).format(x=1)


@given(PIECES, st.sampled_from([{}, {"x": "{x}"}, {"x": 1, "_1": 2, "题": 3}]))
def test_an_escaped_text_comes_out_as_it_is(text: str, values: dict[str, Any]) -> None:
    assert PromptTemplate(escape_fields(text)).format(**values) == text
    assert PromptTemplate(f"{{q}}\n{escape_fields(text)}\n{{q}}").format(q="?", **values) == f"?\n{text}\n?"


@given(st.lists(st.sampled_from(["{x}", "{{x}}", "{{{x}}}", "{y}", " ", "a", "\n"])).map("".join))
def test_plain_and_doubled_fields_mean_what_they_mean_to_str_format(text: str) -> None:
    assert PromptTemplate(text).format(x=1, y="b") == text.format(x=1, y="b")


@pytest.mark.parametrize(
    "part", ["{a", "{", "}", "{a:", "{a:{b}", "{a:{", "a_{", "{a[", "\\a[", "\\a{b}", "{{a}}", "{ "]
)
def test_a_long_template_of_braces_takes_no_time(part: str) -> None:
    # A pattern that backtracks would run into the time-out of the tests.
    text = part * 50_000
    assert len(PromptTemplate(text).format(a=1, b=1)) <= len(text)


@given(PIECES)
def test_optional_fields_made_text_read_as_they_do_without_values(text: str) -> None:
    as_text = with_text_fields(text, lambda field: True)
    try:
        expected = PromptTemplate(text).format()
    except (InvalidInputError, MissingValueError):
        return
    assert PromptTemplate(as_text).format(x=1, _1=2, **{"题": 3}) == expected
    assert not [piece for piece in parse_fields(as_text) if isinstance(piece, Field)]
