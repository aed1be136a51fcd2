"""Text of models made safe to show."""

import unicodedata

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

from tests.algorithm.internals import clipped, escaped, one_line

ANY_TEXT = st.text(st.characters(exclude_categories=[]))
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def hidden_in(text: str) -> list[str]:
    return [char for char in text if unicodedata.category(char) in HIDDEN]


@given(ANY_TEXT)
def test_one_line_has_no_hidden_character_and_single_spaces(text: str) -> None:
    shown = one_line(text)
    assert not hidden_in(shown)
    assert shown == " ".join(shown.split())


def test_one_line_keeps_the_words() -> None:
    assert one_line(" a\n\tb\u00a0c\x1b[31m\u200bd\u2028e ") == "a b c [31md e"


@given(ANY_TEXT)
def test_escaped_text_has_no_hidden_character(text: str) -> None:
    assert not hidden_in(escaped(text))


def test_escaped_text_spells_hidden_characters_and_keeps_the_rest() -> None:
    assert escaped("é日{x}\\ \x1b\t\n\u202e\ud800", keep="\t") == "é日{x}\\ \\x1b\t\\n\\u202e\\ud800"


@pytest.mark.parametrize(("width", "text"), [(20, "hello 日本語"), (9, "hello 日…"), (8, "hello…"), (1, "…"), (0, "")])
def test_clipped_text_fits_and_says_that_there_is_more(width: int, text: str) -> None:
    assert clipped("hello 日本語", width) == text
    assert cell_len(text) <= width
