"""With the package `datasets` installed, data sets are its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sharpen.llm import DatasetError, create_rl_dataset, create_sft_dataset, format_math_dataset
from sharpen.llm.datasets import to_hugging_face

datasets = pytest.importorskip("datasets")


def test_data_sets_are_those_of_the_package(data_folder: Path) -> None:
    for dataset in (create_sft_dataset(path=data_folder), create_rl_dataset(path=data_folder)):
        assert isinstance(dataset, datasets.Dataset)
        assert to_hugging_face(dataset) is dataset


def test_a_data_set_of_the_package_can_be_formatted(data_folder: Path) -> None:
    raw = datasets.Dataset.from_json(str(data_folder / "gsm8k" / "train.jsonl"), cache_dir=str(data_folder / "cache"))
    assert list(format_math_dataset(raw, "rl")) == list(create_rl_dataset(path=data_folder))
    both = datasets.DatasetDict({"train": raw, "test": raw})
    with pytest.raises(DatasetError, match="choose one of its splits: train, test"):
        format_math_dataset(both, "rl")


def test_a_column_of_mixed_kinds_is_refused() -> None:
    with pytest.raises(DatasetError, match="mixes kinds of values"):
        to_hugging_face([{"a": 1}, {"a": "one"}])


def test_a_hub_that_cannot_be_reached_is_a_clear_error(tmp_path: Path) -> None:
    code = "from sharpen.llm import create_sft_dataset\ncreate_sft_dataset(max_samples=3)"
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "SHARPEN_DATA": ""}
    run = subprocess.run([sys.executable, "-c", code], env=offline, capture_output=True, text=True, check=False)
    assert "DatasetError: the data set 'openai/gsm8k' (split 'train') cannot be loaded from the hub" in run.stderr
