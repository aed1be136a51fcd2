"""The tasks that a configuration names: a file, an import path, a list in the file itself, or a component.

A file is JSON Lines (`.jsonl`), JSON (`.json`), CSV (`.csv`) or Parquet (`.parquet`), relative to the configuration.
`limit` keeps only that many tasks from the beginning.
"""

import csv
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...checks import did_you_mean
from ...errors import ConfigError, MissingExtraError
from ...secrets import shown
from ...types import Dataset, SizedDataset
from .imports import is_import_path, load
from .sources import Path_
from .specs import Specs

_FILE_KEYS = ("file", "limit")
NO_VALIDATION = ("val_dataset",)
"""Where an empty list has a meaning: the algorithm then does not split validation tasks off the training tasks."""


class Tasks:
    """Reads data sets. `folder` is that of the configuration."""

    def __init__(self, folder: Path, specs: Specs) -> None:
        self._folder, self._specs = folder, specs

    def check(self, given: Any, path: Path_) -> None:
        """Refuse what cannot be a data set, without reading it."""
        if isinstance(given, str):
            if not is_import_path(given):
                self._check_file(given, path)
        elif isinstance(given, Mapping):
            self._check_dict(given, path)
        elif given == [] and path != NO_VALIDATION:
            raise ConfigError(f"{self._specs.at(path)} is an empty list: add tasks")
        elif given is not None and not isinstance(given, list):
            raise ConfigError(
                f"{self._specs.at(path)} is {shown(given)}: use a file, 'module:name', a list of tasks, or a mapping "
                "with 'file' or 'type'"
            )

    def _check_dict(self, given: Mapping[str, Any], path: Path_) -> None:
        limit = given.get("limit")
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ConfigError(f"{self._specs.at((*path, 'limit'))} is {shown(limit)}: use a whole number of at least 1")
        if "type" in given:
            self._specs.check(_without_limit(given), path)
            return
        self._specs.check_names(given, [*_FILE_KEYS, "type"], path, owner=str(path[-1]))
        if not isinstance(given.get("file"), str):
            raise ConfigError(f"{self._specs.at(path)} has neither 'file' nor 'type': set one of them")
        self.check(given["file"], (*path, "file"))

    def _check_file(self, text: str, path: Path_) -> Path:
        file = (self._folder / text).expanduser()
        if file.suffix not in _READERS:
            raise ConfigError(
                f"{self._specs.at(path)} is {text!r}: use a file that ends in {', '.join(_READERS)}, or 'module:name'"
            )
        if not file.is_file():
            near = did_you_mean(file.name, [each.name for each in file.parent.glob("*")])
            raise ConfigError(f"{self._specs.at(path)}: file {str(file)!r} not found.{near}")
        return file

    def read(self, given: Any, path: Path_) -> Dataset[Any] | None:
        """Return the data set."""
        limit = given.get("limit") if isinstance(given, Mapping) else None
        found = self._all(given, path)
        if limit is not None and found is not None:
            found = found[:limit] if isinstance(found, list | tuple | range) else _First(found, limit)
        dataset: Dataset[Any] | None = found
        return dataset

    def _all(self, given: Any, path: Path_) -> Any:
        if isinstance(given, Mapping):
            if "type" not in given:
                return self._all(given["file"], (*path, "file"))
            return self._checked(self._specs.build(_without_limit(given), path), path)
        if not isinstance(given, str):
            return given
        if is_import_path(given):
            found = load(given, self._folder, self._specs.at(path))
            is_function = callable(found) and not isinstance(found, SizedDataset)
            return self._checked(found() if is_function else found, path)
        return _read_file(self._check_file(given, path), self._specs.at(path))

    def _checked(self, found: Any, path: Path_) -> Any:
        if isinstance(found, Mapping | str | bytes) or not isinstance(found, SizedDataset | Iterable):
            raise ConfigError(f"{self._specs.at(path)} returned {shown(found)}, but a data set must be a list of tasks")
        return found


class _First:
    """The first tasks of a data set that has a length; for another one, a list of them."""

    def __new__(cls, dataset: Any, limit: int) -> Any:
        if not isinstance(dataset, SizedDataset):
            return list(itertools.islice(dataset, limit))
        return super().__new__(cls)

    def __init__(self, dataset: Any, limit: int) -> None:
        self._dataset, self._size = dataset, min(limit, len(dataset))

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Any:
        if not -self._size <= index < self._size:
            raise IndexError(index)
        return self._dataset[index % self._size]


def _without_limit(given: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key != "limit"}


# -- files -------------------------------------------------------------------------------------------


def _read_file(path: Path, place: str) -> list[Any]:
    try:
        found = _READERS[path.suffix](path)
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigError(f"{place}: cannot read {str(path)!r}: {error}") from error
    if not isinstance(found, list):
        raise ConfigError(f"{place}: {str(path)!r} contains a {type(found).__name__}, not a list of tasks")
    if not found:
        raise ConfigError(f"{place}: {str(path)!r} contains no tasks")
    return found


def _json_lines(path: Path) -> list[Any]:
    tasks = []
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    tasks.append(json.loads(line))
                except ValueError as error:
                    raise ValueError(f"line {number} is not JSON: {error}") from error
    return tasks


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8-sig"))


def _csv(path: Path) -> list[Any]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise ValueError(f"row {number} does not have as many values as the header has columns")
    return rows


def _parquet(path: Path) -> list[Any]:
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise MissingExtraError.of("pyarrow", extra="parquet", feature="a Parquet file") from None
    rows: list[Any] = parquet.read_table(path).to_pylist()
    return rows


_READERS: dict[str, Callable[[Path], Any]] = {".jsonl": _json_lines, ".json": _json, ".csv": _csv, ".parquet": _parquet}
