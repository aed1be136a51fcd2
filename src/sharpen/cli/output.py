"""What a command prints: tables and lines for people, one JSON value for programs.

Standard output holds the result and nothing else; notes and errors go to standard error. With `--json` a command
calls `value` exactly once and draws nothing. Colours are used where a terminal shows them, and `NO_COLOR`,
`FORCE_COLOR` and `--no-color` are obeyed. Text that came from agents cannot steer the terminal: it passes `plain`.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TextIO

from ..logging import UNSAFE, plain
from .columns import Column, fit

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

_NOTHING = "-"
_UNBOUNDED = 100_000  # columns: a pipe has no width, so nothing is cut off
_USUAL = 80


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """Add `--json` and `--no-color`."""
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print the result as one JSON value")
    group.add_argument("--no-color", action="store_true", help="do not use colours (same as setting NO_COLOR)")


def one_line(text: str) -> str:
    """`plain`, on one line."""
    return " ".join(plain(text).split())


class Output:
    """Where a command prints."""

    def __init__(self, *, is_json: bool = False, no_color: bool = False) -> None:
        self.is_json = is_json
        self._no_color = no_color

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Output":
        """Return the output that the options of a command ask for."""
        return cls(is_json=getattr(arguments, "json", False), no_color=getattr(arguments, "no_color", False))

    def value(self, value: object) -> None:
        """Print the result as JSON: any value that JSON can hold, also structs and paths."""
        _write(sys.stdout, _json(value, indent=2 if _is_terminal(sys.stdout) else 0) + "\n")

    def line(self, text: str = "") -> None:
        """Print a line of the result."""
        _write(sys.stdout, plain(text) + "\n")

    def note(self, text: str) -> None:
        """Print a line to standard error."""
        _write(sys.stderr, plain(text) + "\n")

    def rich(self, renderable: "RenderableType") -> None:
        """Print anything that rich can render; a `str` is read as markup, so text from agents must be a `Text`."""
        _write(sys.stdout, self._drawn(renderable))

    def table(
        self, columns: Sequence[str | Column], rows: Sequence[Sequence[object]], *, title: str | None = None
    ) -> None:
        """Print a table. Numbers are aligned right, None is a dash, a `Text` keeps its style. In a narrow terminal the
        columns decide what is shortened or left out."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        wanted = [each if isinstance(each, Column) else Column(each) for each in columns]
        cells = [[_cell(value) for value in row] for row in rows]
        widths = [_widest(column.name, [row[number] for row in cells]) for number, column in enumerate(wanted)]
        fitted = fit(wanted, widths, _width())
        caption = None if title is None else Text(plain(title), style="bold")
        table = Table(box=box.SIMPLE_HEAD, title=caption, title_justify="left", pad_edge=False, show_edge=False)
        for number, width in fitted.widths.items():
            column, is_cut = wanted[number], wanted[number].least is not None and not wanted[number].wraps
            justify = _justify([row[number] for row in rows])
            overflow: Literal["ellipsis", "fold"] = "ellipsis" if is_cut else "fold"
            table.add_column(Text(plain(column.name)), justify=justify, width=width, no_wrap=is_cut, overflow=overflow)
        for row in cells:
            table.add_row(*(row[number] for number in fitted.widths))
        self.rich(table)
        if fitted.left_out:
            self.note(f"columns hidden in this narrow terminal: {', '.join(fitted.left_out)} (--json has everything)")

    def _drawn(self, renderable: "RenderableType") -> str:
        """Render in memory, so that all writing happens in one place, which handles a closed pipe."""
        from rich.console import Console

        has_color = uses_color(sys.stdout, no_color=self._no_color)
        drawing = io.StringIO()
        console = Console(
            file=drawing,
            width=_width(),
            force_terminal=has_color,
            no_color=not has_color,
            highlight=False,
            emoji=False,
            soft_wrap=False,
        )
        console.print(renderable)
        return "\n".join(line.rstrip() for line in drawing.getvalue().split("\n"))


def uses_color(stream: TextIO, *, no_color: bool = False) -> bool:
    """Whether to use colours: decided by `--no-color`, NO_COLOR, FORCE_COLOR, then whether it is a terminal."""
    if no_color or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return _is_terminal(stream) and os.environ.get("TERM") != "dumb"


# -- writing -----------------------------------------------------------------------------------------


def _width() -> int:
    """Return the width of the terminal; the variable COLUMNS overrides it."""
    if not _is_terminal(sys.stdout):
        return _UNBOUNDED
    told = os.environ.get("COLUMNS", "")
    try:
        return (int(told) if told.isdecimal() else os.get_terminal_size(sys.stdout.fileno()).columns) or _USUAL
    except OSError:  # a terminal without a size
        return _USUAL


def _is_terminal(stream: TextIO) -> bool:
    return not stream.closed and stream.isatty()


def _write(stream: TextIO, text: str) -> None:
    """Write and flush, so that output appears at once; characters the stream cannot encode become question marks."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()


def _json(value: object, *, indent: int) -> str:
    import json

    import msgspec

    simple = msgspec.to_builtins(value, str_keys=True, enc_hook=_simple)
    try:
        encoded = msgspec.json.encode(simple)
    except UnicodeEncodeError:  # a lone surrogate, as in a file name that is not UTF-8
        return json.dumps(simple, indent=indent or None)
    text = (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
    return UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)  # which JSON reads as the same


def _simple(value: object) -> object:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


# -- cells -------------------------------------------------------------------------------------------


def _cell(value: object) -> "Text":
    from rich.text import Text

    return value if isinstance(value, Text) else Text(_shown(value))


def _widest(name: str, cells: Sequence["Text"]) -> int:
    return max(len(name), *(cell.cell_len for cell in cells), 1)


def _shown(value: object) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return one_line(str(value))


def _justify(cells: Sequence[object]) -> Literal["left", "right"]:
    filled = [each for each in cells if each is not None]
    are_numbers = bool(filled) and all(isinstance(each, int | float) and not isinstance(each, bool) for each in filled)
    return "right" if are_numbers else "left"
