"""Templates: whatever they write, nothing in it hides or turns the text around."""

from pathlib import Path

from tests.dashboard.internals import environment


def written(template: str, **context: object) -> str:
    return environment().from_string(template).render(context)


def test_hidden_characters_are_spelt_out_wherever_they_come_from() -> None:
    assert written("{{ name }}", name="a\u202eb<\x1b") == "a\\u202eb&lt;\\x1b"
    assert written("{{ path }}", path=Path("a\u202eb")) == "a\\u202eb"
    assert written("{{ number }} {{ text }}", number=3, text="two\nlines") == "3 two\nlines"


def test_markup_is_not_touched_twice_and_values_that_are_sent_back_stay_exact() -> None:
    assert written("{% macro m(x) %}<b>{{ x }}</b>{% endmacro %}{{ m('<') }}") == "<b>&lt;</b>"
    assert written("{{ name|exact }}", name="a\u202e<") == "a\u202e&lt;"
