"""GSM8K: grade-school word problems with worked answers, from local files or the hub."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import DatasetError
from .math_rows import Tokenizer, check_format, format_row
from .sources import Dataset, Row, check_max_samples, make_dataset, read_from_hub, read_rows, read_split

DATA_VARIABLE = "SHARPEN_DATA"
_HUB_NAME = "openai/gsm8k"
_FOLDERS = ("", "gsm8k", "main")


class GSM8KDataset:
    """GSM8K, formatted for SFT or RL. `path` is its folder, or one of its JSON Lines files.

    With a transformers tokenizer, prompts and completions are strings rendered by its chat template. Without one they
    are chat messages, to which the trainer applies the template of its model.
    """

    def __init__(
        self,
        split: str = "train",
        max_samples: int | None = None,
        format_type: str = "sft",
        tokenizer: Tokenizer | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.split = split
        self.format_type = check_format(format_type)
        rows = read_gsm8k(split, max_samples=max_samples, path=path)
        self.dataset = make_dataset(
            [format_row(row, number, self.format_type, tokenizer=tokenizer) for number, row in enumerate(rows)]
        )

    def get_dataset(self) -> Dataset:
        """Return the rows as a data set."""
        return self.dataset

    @property
    def column_names(self) -> list[str]:
        return self.dataset.column_names

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.dataset)

    def __getitem__(self, key: Any) -> Any:
        return self.dataset[key]


def read_gsm8k(
    split: str = "train", *, max_samples: int | None = None, path: str | os.PathLike[str] | None = None
) -> list[Row]:
    """Rows with `question` and `answer`: from `path`, else from the folder in `SHARPEN_DATA`, else from the hub."""
    check_max_samples(max_samples)
    place = path or os.environ.get(DATA_VARIABLE)
    if not place:
        return read_from_hub(_HUB_NAME, split, config="main", max_samples=max_samples)
    place = Path(place).expanduser()
    if place.is_file():
        check_split_of_file(place, split)
        return read_rows(place, max_samples=max_samples)
    return read_split(_folder_of(place, split), split, max_samples=max_samples)


def check_split_of_file(path: Path, split: str) -> None:
    """One file is one split. `train`, the default, may name any; another name must be that of the file."""
    if split not in ("train", path.stem):
        raise DatasetError(f"split is {split!r}, but {str(path)!r} is a single file: omit split, or pass its folder")


def _folder_of(place: Path, split: str) -> Path:
    folders = [place / name for name in _FOLDERS if (place / name).is_dir()]
    found = [folder for folder in folders if (folder / f"{split}.jsonl").is_file()]
    found = found or [folder for folder in folders if any(folder.glob("*.jsonl"))]
    if not found:
        raise DatasetError(
            f"GSM8K was not found in {str(place)!r}: pass a folder with {split}.jsonl or gsm8k/{split}.jsonl "
            f"as path=, or set the environment variable {DATA_VARIABLE} to it"
        )
    return found[0]
