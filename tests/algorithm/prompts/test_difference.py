"""What changed between two prompts."""

import shutil
import subprocess
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from sharpen.types import PromptTemplate
from tests.algorithm.internals import (
    Candidate,
    CandidateBook,
    best_diff,
    coloured_diff,
    prompt_diff,
    show_best_diff,
)

from .books import chain, small_book

OLD = PromptTemplate("Answer the question.\n\nQuestion: {question}\n")
NEW = PromptTemplate("Answer the question in one word.\n\nQuestion: {question}\n")


def test_a_diff_is_unified_and_names_its_sides() -> None:
    assert prompt_diff(OLD, NEW) == (
        "--- seed\n+++ best\n@@ -1,3 +1,3 @@\n"
        "-Answer the question.\n+Answer the question in one word.\n \n Question: {question}\n"
    )
    assert prompt_diff(OLD, NEW, names=("v1", "v2")).startswith("--- v1\n+++ v2\n")


def test_equal_prompts_have_no_diff() -> None:
    assert prompt_diff(OLD, OLD) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [("a\nb", "a\nc\n"), ("a\n", "a"), ("", "x\ny"), ("x", ""), ("\n\n", "\n")],
)
def test_a_diff_can_be_applied(tmp_path: Path, old: str, new: str) -> None:
    git = shutil.which("git")
    assert git, "the test applies its diff with git"
    path = tmp_path / "prompt"
    path.write_text(old, encoding="utf-8", newline="")
    diff = prompt_diff(PromptTemplate(old), PromptTemplate(new), names=("a/prompt", "b/prompt"))
    subprocess.run([git, "apply", "--unidiff-zero"], input=diff, text=True, cwd=tmp_path, check=True)
    assert path.read_text(encoding="utf-8") == new


def test_hidden_characters_are_spelt_out() -> None:
    diff = prompt_diff(PromptTemplate("red\n"), PromptTemplate("\x1b[31mred\u202e\r\tx\n"))
    assert "+\\x1b[31mred\\u202e\\r\tx\n" in diff
    assert "\x1b" not in diff


def test_only_a_line_feed_ends_a_line() -> None:
    diff = prompt_diff(PromptTemplate("a\x0bb\u2028c\n"), PromptTemplate("a\x0bb\u2028d\n"))
    assert diff.endswith("@@ -1 +1 @@\n-a\\x0bb\\u2028c\n+a\\x0bb\\u2028d\n")


def test_texts_that_look_the_same_when_spelt_out_still_differ() -> None:
    assert prompt_diff(PromptTemplate("\x1b"), PromptTemplate("\\x1b")).count("\\x1b") == 2


def test_the_best_is_compared_with_the_seed_of_its_book() -> None:
    diff = best_diff(small_book())
    assert diff.startswith("--- seed (v0)\n+++ best (v4)\n")
    assert "+Think first, and check.\n" in diff


def test_several_prompts_have_their_diffs_under_their_names() -> None:
    book = CandidateBook()
    book.add(Candidate("v0", {"a": PromptTemplate("1\n"), "b": PromptTemplate("2\n"), "c": PromptTemplate("3\n")}))
    book.add(Candidate("v1", {"a": PromptTemplate("1\n"), "b": PromptTemplate("4\n"), "d": PromptTemplate("5\n")}))
    book.best_version = "v1"
    diff = best_diff(book)
    assert [line for line in diff.split("\n") if line.startswith("+++")] == [
        *("+++ best (v1): b", "+++ best (v1): c", "+++ best (v1): d")
    ]
    assert "-3\n" in diff
    assert "+5\n" in diff


# -- on the screen -----------------------------------------------------------------------------------


def drawn(old: PromptTemplate, new: PromptTemplate) -> str:
    screen = Console(file=StringIO(), force_terminal=True, color_system="standard", width=80)
    screen.print(coloured_diff(old, new))
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()


def test_the_words_that_changed_stand_out() -> None:
    text = coloured_diff(OLD, NEW)
    assert text.plain == prompt_diff(OLD, NEW).removesuffix("\n")
    marked = [text.plain[span.start : span.end] for span in text.spans if span.style == "black on green"]
    assert marked == [" in one word"]
    assert not [span for span in text.spans if span.style == "black on red"]


def test_lines_that_are_quite_different_are_not_marked_all_over() -> None:
    text = coloured_diff(PromptTemplate("one thing\n"), PromptTemplate("Quite, another; matter!\n"))
    assert {str(span.style) for span in text.spans} <= {"bold", "cyan", "red", "green"}


def test_the_screen_shows_markup_as_text_and_sends_no_foreign_escape() -> None:
    shown = drawn(OLD, PromptTemplate("[red]Answer[/red] \x1b]0;title\x07\n"))
    assert "[red]" in shown
    assert "[/red]" in shown
    assert "\x1b]0" not in shown
    assert "\x07" not in shown
    assert "\x1b[32m" in shown


def test_showing_a_diff_prints_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    show_best_diff(small_book())
    show_best_diff(chain(1))
    out, err = capsys.readouterr()
    assert out == ""
    assert "+Think first, and check." in err
    assert "no difference: best (v0) is the same as seed (v0)" in err


def test_a_long_prompt_is_compared_without_its_words() -> None:
    old, new = (PromptTemplate(" ".join(f"{start}word{i}" for i in range(5_000))) for start in "ab")
    assert not [span for span in coloured_diff(old, new).spans if "on" in str(span.style).split()]
