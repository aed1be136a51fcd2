"""Differences of texts."""

from tests.dashboard.internals import text_diff


def _shown(old: str, new: str) -> list[str]:
    signs = {"same": " ", "removed": "-", "added": "+", "skipped": "~"}
    return [
        signs[line.kind] + "".join(f"[{part.text}]" if part.is_changed else part.text for part in line.parts)
        for line in text_diff(old, new).lines
    ]


def test_the_words_that_changed_are_marked() -> None:
    assert _shown("Be brief.\nNow.", "Be very brief.\nNow.") == ["-Be brief.", "+Be[ very] brief.", " Now."]


def test_lines_that_stayed_are_counted_not_shown() -> None:
    lines = [f"line {number}" for number in range(30)]
    assert _shown("\n".join(lines), "\n".join([*lines[:15], "new", *lines[15:]]))[0] == "~12 unchanged lines"


def test_hidden_characters_are_seen_and_equal_texts_have_no_lines() -> None:
    assert "+a\\u202e" in _shown("a", "a\u202e") or "+a[\\u202e]" in _shown("a", "a\u202e")
    assert text_diff("a", "a").is_same


def test_texts_too_long_to_compare_are_named() -> None:
    found = text_diff("a\n" * 5000, "b\n" * 5000)
    assert found.problem is not None
    assert not found.is_same
