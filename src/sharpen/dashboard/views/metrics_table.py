"""The metrics of a run as CSV, read from its file twice: for the columns, and for the rows."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

_MOST_COLUMNS = 1_000
_MOST_LINE = 1_000_000
# A spreadsheet takes a cell that begins with one of these as a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def metrics_csv(path: Path) -> Iterator[str]:
    """Yield the header, then a line for each complete line of the file."""
    columns = _columns(path)
    yield _line([_cell(name) for name in columns])
    for row in _rows(path):
        yield _line([_cell(row.get(name)) for name in columns])


def _columns(path: Path) -> list[str]:
    found: dict[str, None] = {}
    for row in _rows(path):
        for name in row:
            if len(found) < _MOST_COLUMNS:
                found.setdefault(name)
    return list(found)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with open(path, "rb") as file:
        while line := file.readline(_MOST_LINE):
            try:
                yield msgspec.json.decode(line, type=dict[str, Any])
            except (msgspec.DecodeError, RecursionError):
                continue  # a crash cut it off


def _line(cells: list[str]) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerow(cells)
    return written.getvalue()


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float):
        return "" if value is None else str(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"'{text}" if text.startswith(_FORMULA) else text
