"""Where rows come from: a list, a JSON Lines file, a folder of them, a Hugging Face `Dataset`, the hub.

The package `datasets` is optional. With it, data sets are its `Dataset`s; without it they are `ListDataset`s, which the
rest of this room treats alike. Rows are taken from the start, so the same `max_samples` are always the same rows.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, cast

from ..checks import is_int
from ..errors import ConfigError, MissingExtraError, describe
from ..files import describe_size
from .column_kinds import REFUSALS, table_error
from .errors import DatasetError, RowError
from .list_dataset import Dataset, ListDataset, Row

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
