"""Why a column cannot become one of a table: where its kind of values changes, or a text cannot be encoded.

Arrow says only that a conversion failed. Its conversion of the first rows is tried again for ever shorter stretches, so
the row is found whatever the reason was.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .errors import DatasetError, RowError

Convert = Callable[[str, Sequence[Any]], object]

REFUSALS = (TypeError, ValueError, OverflowError)
"""What Arrow raises for values that it cannot hold; its own errors are among them."""

_KINDS: dict[type, str] = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    tuple: "a list",
    dict: "an object",
}


def table_error(columns: Mapping[str, Sequence[Any]], convert: Convert, error: Exception) -> DatasetError:
    """The error for columns that `convert` refuses: the first such column and row, and what is wrong there."""
    for name, values in columns.items():
        refusal = _refusal(name, values, convert)
        if refusal is not None:
            row = _first_refused(name, values, convert)
            return RowError.of(row, name, _problem(values, row, refusal))
    return DatasetError(f"the data set cannot be converted to a table: {error}")


def _refusal(name: str, values: Sequence[Any], convert: Convert) -> Exception | None:
    try:
        convert(name, values)
    except REFUSALS as error:
        return error
    return None


def _first_refused(name: str, values: Sequence[Any], convert: Convert) -> int:
    good, bad = 0, len(values)  # so many rows go well, so many do not
    while bad - good > 1:
        middle = (good + bad) // 2
        if _refusal(name, values[:middle], convert) is None:
            good = middle
        else:
            bad = middle
    return bad - 1


def _problem(values: Sequence[Any], row: int, refusal: Exception) -> str:
    if isinstance(refusal, UnicodeEncodeError):
        return (
            f"its text contains an unpaired surrogate, {refusal.object[refusal.start]!r}, which cannot be encoded: "
            "fix the text, or replace such characters with text.encode('utf-8', 'replace').decode()"
        )
    seen: dict[str, tuple[str, int]] = {}
    for number, value in enumerate(values[: row + 1]):
        for path, kind in _kinds(value):
            first, where = seen.setdefault(path, (kind, number))
            if first != kind and number == row:
                what = f"{path} is" if path else "it is"
                before = f"in row {where}" if where != row else "elsewhere in this row"
                return f"the column mixes types: {what} {kind} here and {first} {before}. Use one type"
    return f"it is {values[row]!r:.80}, which cannot be stored in a table: {refusal}"


def _kinds(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The kind of a value and of all that is in it, each with its place."""
    if value is None:
        return
    yield path, _KINDS.get(type(value), f"of type {type(value).__name__}")
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _kinds(each, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _kinds(each, f"{path}[]")
