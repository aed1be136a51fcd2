"""Data sets for fine-tuning: GSM8K and your own.

SFT rows have `prompt` and `completion`, RL rows `prompt`, `ground_truth`, `question` and `full_answer`; prompts and
completions are chat messages. Your own data may be a list of dicts, a JSON Lines file, a folder with one such file for
each split, a Hugging Face `Dataset`, or a name on the hub, with columns `question` and `answer`, or already in one of
these formats.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .errors import DatasetError
from .gsm8k import GSM8KDataset, check_split_of_file, read_gsm8k
from .math_rows import COLUMNS, FormatType, Tokenizer, check_format, format_row
from .sources import (
    Dataset,
    ListDataset,
    Row,
    Source,
    as_dataset,
    check_columns,
    make_dataset,
    read_from_hub,
    read_rows,
    read_split,
    to_hugging_face,
)

__all__ = [
    "Dataset",
    "GSM8KDataset",
    "ListDataset",
    "as_dataset",
    "check_columns",
    "create_math_dataset",
    "create_rl_dataset",
    "create_sft_dataset",
    "format_math_dataset",
    "preview_dataset",
    "to_hugging_face",
]

_WIDTH_OF_A_PREVIEW = 200


def create_sft_dataset(
    split: str = "train",
    max_samples: int | None = None,
    *,
    dataset: Source = "gsm8k",
    path: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Return rows for SFT, with `prompt` and `completion`.

    Args:
        split: The split to read.
        max_samples: The number of rows to use, from the start; all by default.
        dataset: GSM8K, or another data set.
        path: A local folder or JSON Lines file of GSM8K.
    """
    return create_math_dataset(dataset, split, max_samples, "sft", path=path)


def create_rl_dataset(
    split: str = "train",
    max_samples: int | None = None,
    model_name: str | None = None,
    *,
    dataset: Source = "gsm8k",
    path: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Return rows for RL, with `prompt`, `ground_truth`, `question` and `full_answer`.

    The trainer applies the chat template. If `model_name` is given, its folder is checked for one.
    """
    return create_math_dataset(dataset, split, max_samples, "rl", model_name=model_name, path=path)


def create_math_dataset(
    dataset_name: Source = "gsm8k",
    split: str = "train",
    max_samples: int | None = None,
    format_type: str = "sft",
    *,
    model_name: str | None = None,
    tokenizer: Tokenizer | None = None,
    path: str | os.PathLike[str] | None = None,
) -> Dataset:
    """Return GSM8K or another data set, formatted for `format_type`: "sft" or "rl"."""
    wanted = check_format(format_type)
    if model_name is not None:
        check_chat_template(model_name)
    return _formatted(_rows(dataset_name, split, max_samples, path), wanted, tokenizer)


def format_math_dataset(
    dataset: Source, format_type: str = "sft", model_name: str | None = None, *, tokenizer: Tokenizer | None = None
) -> Dataset:
    """Format rows with `question` and `answer` for `format_type`; rows already in that format stay unchanged."""
    wanted = check_format(format_type)
    if model_name is not None:
        check_chat_template(model_name)
    return _formatted(read_rows(dataset), wanted, tokenizer)


def preview_dataset(dataset: Source, num_samples: int = 3) -> None:
    """Print the first `num_samples` rows."""
    if num_samples < 1:
        raise ConfigError(f"num_samples is {num_samples}: use 1 or more")
    shown = as_dataset(dataset)
    lines = [f"{len(shown)} rows: {', '.join(shown.column_names)}"]
    for number in range(min(num_samples, len(shown))):
        lines += ["", f"row {number}"]
        lines += [f"  {name}: {_short(value)}" for name, value in shown[number].items()]
    sys.stdout.write("\n".join(lines) + "\n")


def _rows(source: Source, split: str, max_samples: int | None, path: str | os.PathLike[str] | None) -> list[Row]:
    if isinstance(source, str) and source in ("gsm8k", "openai/gsm8k"):
        return read_gsm8k(split, max_samples=max_samples, path=path)
    if path is not None:
        raise ConfigError(f"path= is the location of GSM8K, but the data set is {source!r:.80}: pass one of the two")
    if isinstance(source, str | os.PathLike):
        return _rows_by_name(os.fspath(source), split, max_samples)
    if split != "train":
        raise DatasetError(f"split is {split!r}, but the data set was passed as rows, which have no splits: omit split")
    return read_rows(source, max_samples=max_samples)


def _rows_by_name(name: str, split: str, max_samples: int | None) -> list[Row]:
    path = Path(name).expanduser()
    if path.is_dir():
        return read_split(path, split, max_samples=max_samples)
    if path.is_file() or path.suffix in (".jsonl", ".json") or name.startswith((".", "/", "~")):
        check_split_of_file(path, split)
        return read_rows(path, max_samples=max_samples)
    return read_from_hub(name, split, max_samples=max_samples)


def _formatted(rows: list[Row], format_type: FormatType, tokenizer: Tokenizer | None) -> Dataset:
    columns = COLUMNS[format_type]
    if all(column in rows[0] for column in columns):
        check_columns(rows, columns)
        if tokenizer is not None:
            raise ConfigError("the rows are already formatted, so tokenizer would have no effect: omit it")
        return make_dataset(rows)
    return make_dataset([format_row(row, number, format_type, tokenizer=tokenizer) for number, row in enumerate(rows)])


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= _WIDTH_OF_A_PREVIEW else text[: _WIDTH_OF_A_PREVIEW - 1] + "…"


# -- chat templates -----------------------------------------------------------------------------------


def check_chat_template(model_name: str) -> None:
    """A model folder has a chat template. A name of the hub is left to the trainer: nothing is downloaded here."""
    folder = Path(model_name).expanduser()
    if not folder.is_dir():
        if model_name.startswith((".", "/", "~")):
            raise ConfigError(
                f"model_name is {model_name!r}, but that folder does not exist: pass the folder of the model to train"
            )
        return
    settings = folder / "tokenizer_config.json"
    if not settings.is_file() or any(
        (folder / name).exists() for name in ("chat_template.jinja", "chat_template.json")
    ):
        return
    try:
        template = json.loads(settings.read_text(encoding="utf-8")).get("chat_template")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"cannot read {str(settings)!r}: {error}") from error
    if not template:
        raise ConfigError(
            f"the model in {model_name!r} has no chat template, so it cannot read chat messages: use an "
            "instruction-tuned model, or add a chat_template.jinja to its folder"
        )
