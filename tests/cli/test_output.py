"""What commands print."""

import argparse
import io
import json
import sys
from pathlib import Path

import msgspec
import pytest
from rich.text import Text

from sharpen.logging import plain
from tests.cli.internals import Output, add_output_options, one_line, uses_color

Captured = pytest.CaptureFixture[str]


class Point(msgspec.Struct):
    x: int
    where: Path


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def parsed(*options: str) -> Output:
    parser = argparse.ArgumentParser()
    add_output_options(parser)
    return Output.of(parser.parse_args(options))


def test_options_decide_who_is_answered() -> None:
    assert parsed("--json").is_json
    assert not parsed().is_json
    assert not Output.of(argparse.Namespace()).is_json


def test_a_value_is_one_line_of_json_in_a_pipe(capsys: Captured) -> None:
    parsed("--json").value({"point": Point(1, Path("a/b")), 2: [None, float("nan")]})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"point": {"x": 1, "where": "a/b"}, "2": [None, None]}


def test_json_steers_no_terminal_and_says_the_same(capsys: Captured) -> None:
    text = "\x7f\x9b31m\u202e\u2066\x1b[2J \u00e9\n"
    parsed("--json").value({"text": text})
    out = capsys.readouterr().out
    assert not set(out) & set("\x7f\x9b\u202e\u2066\x1b")
    assert json.loads(out) == {"text": text}


def test_a_name_that_is_no_utf8_has_a_json_form(capsys: Captured) -> None:
    parsed("--json").value({"name": "a\udcff"})
    assert json.loads(capsys.readouterr().out) == {"name": "a\udcff"}


def test_a_table_is_not_cut_in_a_pipe(capsys: Captured) -> None:
    parsed().table(("name", "reward", "note"), [("x" * 300, 0.123456, None), ("b", 10.0, "two\nlines")], title="All")
    title, head, _, first, second, *_ = capsys.readouterr().out.splitlines()
    assert title.strip() == "All"
    assert head.split() == ["name", "reward", "note"]
    assert first.split() == ["x" * 300, "0.1235", "-"]
    assert second.split() == ["b", "10", "two", "lines"]


def test_a_table_without_rows_has_its_head(capsys: Captured) -> None:
    parsed().table(("name",), [])
    assert "name" in capsys.readouterr().out


def test_markup_in_a_cell_is_only_text(capsys: Captured) -> None:
    parsed().table(("[bold]head",), [("[red]not red[/red]",), ("\x1b[31mred",)])
    out = capsys.readouterr().out
    assert "[bold]head" in out
    assert "[red]not red[/red]" in out
    assert "\\x1b[31mred" in out


def test_control_characters_are_shown_harmlessly() -> None:
    assert plain("a\x1b]0;title\x07b\tc\r\nd\re\x9b1m\u202e") == "a\\x1b]0;title\\x07b\tc\nd\\x0de\\x9b1m\\u202e"
    assert one_line(" a\n\n b\x00 ") == "a b\\x00"


def test_lines_go_out_and_notes_beside(capsys: Captured) -> None:
    out = parsed()
    out.line("answer \x1b[0m")
    out.note("beside \x1b[0m")
    assert capsys.readouterr() == ("answer \\x1b[0m\n", "beside \\x1b[0m\n")


def test_a_stream_that_holds_no_such_character_gets_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    parsed().line("é ok")
    assert raw.getvalue() == b"? ok\n"


@pytest.mark.parametrize(
    ("variables", "no_color", "stream", "expected"),
    [
        ({}, False, Terminal(), True),
        ({}, False, io.StringIO(), False),
        ({}, True, Terminal(), False),
        ({"NO_COLOR": "1"}, False, Terminal(), False),
        ({"NO_COLOR": ""}, False, Terminal(), True),
        ({"FORCE_COLOR": "1"}, False, io.StringIO(), True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, Terminal(), False),
        ({"TERM": "dumb"}, False, Terminal(), False),
    ],
)
def test_colours_are_for_who_can_see_them(
    variables: dict[str, str],
    no_color: bool,
    stream: io.StringIO,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert uses_color(stream, no_color=no_color) is expected


def test_a_style_reaches_a_terminal_only(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    parsed().rich(Text("red", style="red"))
    monkeypatch.setenv("FORCE_COLOR", "1")
    parsed().rich(Text("red", style="red"))
    parsed("--no-color").rich(Text("red", style="red"))
    assert capsys.readouterr().out == "red\n\x1b[31mred\x1b[0m\nred\n"
