"""The data sets that a call may name: registered ones, GSM8K, and JSON Lines files in the base folder.

Rows are read and brought into their form here, before a job begins, so that a bad row is an answer and no dead job.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from ...errors import ConfigError
from ..errors import DatasetError
from ..gsm8k import DATA_VARIABLE, check_split_of_file, read_gsm8k
from ..math_rows import format_row
from ..sources import Row, Source, check_columns, read_from_hub, read_rows, read_split
from .errors import ParameterError
from .workspace import Workspace, check_name, unknown

Form = Literal["raw", "sft", "judged_sft", "rl", "grpo", "dpo"]
"""What rows are for; a judged one has a completion to learn from and the right answer too."""

GSM8K = ("gsm8k", "math", "openai/gsm8k")
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "sft": ("prompt", "completion"),
    "judged_sft": ("prompt", "completion"),
    "rl": ("prompt",),
    "grpo": ("prompt",),
    "dpo": ("prompt", "chosen", "rejected"),
}
_LONGEST_TEXT = 500


class DatasetRegistry:
    """Finds rows by the name of a data set."""

    def __init__(self, workspace: Workspace, *, allow_download: bool) -> None:
        self._workspace = workspace
        self._allow_download = allow_download
        self._registered: dict[str, Source] = {}

    def register(self, name: str, dataset: Source) -> None:
        """Keep a data set under a name. It may be anything that a data set may be, also a path outside."""
        if check_name("data set", name) in GSM8K:
            raise ConfigError(f"the name {name!r} is reserved for GSM8K: choose another")
        if isinstance(dataset, Iterable) and iter(dataset) is dataset:
            dataset = list(dataset)  # it can be gone through only once
        read_rows(dataset, max_samples=1)
        self._registered[name] = dataset

    def names(self) -> list[dict[str, Any]]:
        """The data sets that have a name."""
        found = os.environ.get(DATA_VARIABLE)
        known: list[dict[str, Any]] = []
        if found or self._allow_download:
            known.append({"name": "gsm8k", "from": "files of this machine" if found else "the hub"})
        return known + [{"name": name, "from": "registered"} for name in self._registered]

    def test_split(self, key: str, name: str) -> str | None:
        """The split to measure on where a call names none: `test`, if the data set has splits at all."""
        if name in self._registered or (name not in GSM8K and self._workspace.path(key, name).is_file()):
            return None
        return "test"

    def rows(self, key: str, name: str, split: str | None, form: Form, *, max_samples: int | None = None) -> list[Row]:
        """The rows of a data set in the form that is asked for; `key` is where the call named it."""
        return _formed(self._read(key, name, split, max_samples), form, name)

    def _read(self, key: str, name: str, split: str | None, max_samples: int | None) -> list[Row]:
        if name in self._registered:
            if split is not None:
                raise ParameterError.of(
                    f"{key.removesuffix('dataset')}split",
                    split,
                    f"the data set {name!r} was registered without splits: omit the split",
                )
            return read_rows(self._registered[name], max_samples=max_samples)
        if name in GSM8K:
            return self._read_gsm8k(key, name, split or "train", max_samples)
        path = self._workspace.path(key, name)
        if path.is_dir():
            return read_split(path, split or "train", max_samples=max_samples)
        if path.is_file():
            check_split_of_file(path, split or "train")
            return read_rows(path, max_samples=max_samples)
        return self._read_from_hub(key, name, split or "train", max_samples)

    def _read_gsm8k(self, key: str, name: str, split: str, max_samples: int | None) -> list[Row]:
        if not self._allow_download and not os.environ.get(DATA_VARIABLE):
            raise ParameterError.of(
                key,
                name,
                f"GSM8K is not on this machine and downloads are disabled: set {DATA_VARIABLE} to a folder that "
                "has it, use a JSON Lines file in the base folder, or enable downloads (allow_download=True)",
            )
        return read_gsm8k(split, max_samples=max_samples)

    def _read_from_hub(self, key: str, name: str, split: str, max_samples: int | None) -> list[Row]:
        is_path = name.startswith((".", "/", "~")) or name.endswith((".jsonl", ".json")) or name.count("/") != 1
        if is_path or not self._allow_download:
            known = [each["name"] for each in self.names()]
            why = "" if is_path else "; downloads are disabled (allow_download=True enables them)"
            raise ParameterError.of(key, name, f"no such file, and {unknown('data set', name, known)}{why}")
        return read_from_hub(name, split, max_samples=max_samples)


def _formed(rows: list[Row], form: Form, name: str) -> list[Row]:
    if form == "raw":
        return rows
    if form != "dpo" and "prompt" not in rows[0]:
        return [_math_row(row, number, form) for number, row in enumerate(rows)]
    check_columns(rows, _COLUMNS[form], source=f"the data set {name!r}")
    return rows


def _math_row(row: Row, number: int, form: Form) -> Row:
    learned = format_row(row, number, "sft") if form in ("sft", "judged_sft") else {}
    return learned if form == "sft" else {**learned, **format_row(row, number, "rl")}


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows to a JSON Lines file."""
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        for number, row in enumerate(rows):
            try:
                file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            except (TypeError, ValueError) as error:
                raise DatasetError(
                    f"row {number} of the data set (the first is row 0) cannot be written as JSON: {error}"
                ) from error


def preview(rows: list[Row], count: int) -> list[Any]:
    """The first rows, long texts cut."""
    return [_short(row) for row in rows[:count]]


def column_names(rows: list[Row]) -> list[str]:
    """The names of all columns, in the order in which the rows bring them."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return value[: _LONGEST_TEXT - 1] + "…"
    if isinstance(value, Mapping):
        return {str(name): _short(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    return value
