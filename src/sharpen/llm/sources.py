"""Where rows come from: a list, a JSON Lines file, a folder of them, a Hugging Face `Dataset`, the hub.

The package `datasets` is optional. With it, data sets are its `Dataset`s; without it they are `ListDataset`s, which all
of `sharpen.llm` treats alike. Rows are taken from the start, so the same `max_samples` are always the same rows.
"""

import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, cast, overload

from ..checks import is_int
from ..errors import ConfigError, MissingExtraError, describe
from ..files import describe_size
from .errors import DatasetError, RowError

Row = dict[str, Any]


class Dataset(Protocol):
    """The protocol of a data set: rows by number, columns by name. A Hugging Face `Dataset` satisfies it."""

    @property
    def column_names(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __getitem__(self, key: Any, /) -> Any: ...


class ListDataset:
    """Rows in memory: `dataset[3]` is a row, `dataset["question"]` a column, `dataset[:3]` the columns of three rows.

    If a row lacks a column, its value there is None.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows: list[Row] = [dict(row) for row in rows]

    @property
    def column_names(self) -> list[str]:
        """The names of the columns, in the order in which they first appear in the rows."""
        return list({name: None for row in self._rows for name in row})

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return (dict(row) for row in self._rows)

    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: slice) -> dict[str, list[Any]]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> Row | dict[str, list[Any]] | list[Any]:
        if isinstance(key, str):
            if key not in self.column_names:
                raise KeyError(f"there is no column {key!r}; the columns are: {', '.join(self.column_names)}")
            return [row.get(key) for row in self._rows]
        if isinstance(key, slice):
            return {name: [row.get(name) for row in self._rows[key]] for name in self.column_names}
        return dict(self._rows[key])

    def __repr__(self) -> str:
        return f"ListDataset({len(self)} rows: {', '.join(self.column_names)})"

    def select(self, indices: Iterable[int]) -> "ListDataset":
        """Return the rows with these indices, in this order."""
        return ListDataset(self._rows[index] for index in indices)

    def map(
        self,
        function: Callable[..., Mapping[str, Any]],
        *,
        with_indices: bool = False,
        remove_columns: Sequence[str] | str | None = None,
    ) -> "ListDataset":
        """Return every row updated with `function(row)`, or with `function(row, index)` if `with_indices` is set."""
        removed = {remove_columns} if isinstance(remove_columns, str) else set(remove_columns or ())
        return ListDataset(
            {name: value for name, value in row.items() if name not in removed}
            | dict(function(dict(row), index) if with_indices else function(dict(row)))
            for index, row in enumerate(self._rows)
        )


# -- kinds of columns ---------------------------------------------------------------------------------


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


# -- where rows come from -----------------------------------------------------------------------------


log = logging.getLogger(__name__)

Source = Dataset | Iterable[Mapping[str, Any]] | str | os.PathLike[str]


def as_dataset(source: Source, *, max_samples: int | None = None) -> Dataset:
    """Any source of rows as a data set: a data set, a list of dicts, or the path of a JSON Lines file."""
    check_max_samples(max_samples)
    if _is_hugging_face(source):
        dataset = cast(Any, source)
        return cast(Dataset, dataset if max_samples is None else dataset.select(range(min(max_samples, len(dataset)))))
    return make_dataset(read_rows(source, max_samples=max_samples))


def read_rows(source: Source, *, max_samples: int | None = None) -> list[Row]:
    """The rows of any source."""
    check_max_samples(max_samples)
    if isinstance(source, str | os.PathLike):
        return _some(read_json_lines(Path(source)), str(source), max_samples)
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        hint = f"choose one of its splits: {', '.join(map(str, source))}" if isinstance(source, Mapping) else ""
        raise DatasetError(
            f"the data set is a {type(source).__name__}: "
            + (hint or "pass a list of dicts, a path or a Hugging Face Dataset")
        )
    return _some(_mappings(source), "the data set", max_samples)


def make_dataset(rows: Sequence[Row]) -> Dataset:
    """A data set of these rows: a Hugging Face `Dataset` where that package is installed."""
    return to_hugging_face(rows) if hugging_face() else ListDataset(rows)


def to_hugging_face(source: Source) -> Any:
    """Convert any source of rows to a Hugging Face `Dataset`, which TRL needs."""
    if _is_hugging_face(source):
        return source
    package = hugging_face()
    if package is None:
        raise MissingExtraError.of("datasets", extra="llm", feature="a Hugging Face Dataset")
    rows = ListDataset(read_rows(source))
    columns = {name: rows[name] for name in rows.column_names}
    try:
        return package.Dataset.from_dict(columns)
    except REFUSALS as error:
        raise table_error(columns, lambda name, some: package.Dataset.from_dict({name: some}), error) from error


def hugging_face() -> Any | None:
    """The package `datasets`, if it is there; a folder of that name beside the user's script is not it."""
    if find_spec("datasets") is None:
        return None
    package = import_module("datasets")
    return package if hasattr(package, "Dataset") else None


def check_columns(
    dataset: Iterable[Mapping[str, Any]], columns: Sequence[str], *, source: str = "the data set"
) -> None:
    """Check that every row has these columns; raise RowError for the first row and column that is missing."""
    for number, row in enumerate(dataset):
        for column in columns:
            value_of(row, number, column, source=source)


def value_of(row: Mapping[str, Any], number: int, column: str, *, source: str = "the data set") -> Any:
    """A value that must be there."""
    value = row.get(column)
    if value is None:
        has = ", ".join(name for name in row if row[name] is not None) or "none"
        raise RowError.of(number, column, f"it is missing; the columns of this row are: {has}", source=source)
    return value


def check_max_samples(max_samples: int | None) -> None:
    if max_samples is not None and (not is_int(max_samples) or max_samples < 1):
        raise ConfigError(f"max_samples is {max_samples!r}: use an integer of at least 1, or None for all rows")


# -- files -------------------------------------------------------------------------------------------


def read_json_lines(path: Path) -> Iterator[Row]:
    """The objects of a file with one JSON object a line."""
    if not path.is_file():
        raise DatasetError(f"file {str(path)!r} does not exist: pass the path of a JSON Lines file")
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield _parsed(line, f"line {number} of {path}")


def read_split(folder: Path, split: str, *, max_samples: int | None = None) -> list[Row]:
    """The rows of one split in a folder of JSON Lines files: `train.jsonl`, `test.jsonl`."""
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        found = ", ".join(sorted(each.stem for each in folder.glob("*.jsonl"))) or "none"
        raise DatasetError(f"there is no split {split!r} in {str(folder)!r}; available splits: {found}")
    return read_rows(path, max_samples=max_samples)


def read_from_hub(name: str, split: str, *, config: str | None = None, max_samples: int | None = None) -> list[Row]:
    """The rows of one split of a data set on the hub."""
    package = hugging_face()
    if package is None:
        raise MissingExtraError(
            f"loading the data set {name!r} from the hub needs the package 'datasets': pip install "
            "'sharpen[llm]', or use local files: a folder or a JSON Lines file as path= or in SHARPEN_DATA"
        )
    try:
        _announce(package, name, config)
        dataset = package.load_dataset(name, config, split=split)
    except Exception as error:
        raise DatasetError(
            f"the data set {name!r} (split {split!r}) cannot be loaded from the hub: check the name and the network, "
            f"or use local files with path= or the environment variable SHARPEN_DATA. {describe(error)}"
        ) from error
    return read_rows(dataset, max_samples=max_samples)


def _announce(package: Any, name: str, config: str | None) -> None:
    """Log how much has to be downloaded of a data set."""
    from huggingface_hub import HfFileSystem

    builder = package.load_dataset_builder(name, config)
    if os.path.exists(builder.cache_dir):
        return
    files = [file for files in (builder.config.data_files or {}).values() for file in files]
    size_bytes = sum(HfFileSystem().size(file) or 0 for file in files if file.startswith("hf://"))
    log.warning("downloading the data set %r from the hub: %s in %d files", name, describe_size(size_bytes), len(files))


def _parsed(line: bytes, place: str) -> Row:
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except ValueError as error:
        raise DatasetError(f"{place} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise DatasetError(f"{place} is a JSON {type(value).__name__}, not an object: {line.strip()[:80]!r}")
    return value


def _mappings(rows: Iterable[Any]) -> Iterator[Row]:
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DatasetError(f"row {number} of the data set (the first is row 0) is {row!r:.80}: use a dict")
        yield dict(row)


def _some(rows: Iterable[Row], source: str, max_samples: int | None) -> list[Row]:
    found = list(islice(rows, max_samples))
    if not found:
        raise DatasetError(f"{source} has no rows")
    return found


def _is_hugging_face(source: object) -> bool:
    return (
        type(source).__module__.partition(".")[0] == "datasets"
        and hasattr(source, "column_names")
        and hasattr(source, "select")
    )
