"""With the package `datasets` installed, data sets are its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sharpen.llm import DatasetError, RowError, create_rl_dataset, create_sft_dataset, format_math_dataset
from tests.errors import raises
from tests.llm.internals import to_hugging_face

datasets = pytest.importorskip("datasets")


def test_data_sets_are_those_of_the_package(data_folder: Path) -> None:
    for dataset in (create_sft_dataset(path=data_folder), create_rl_dataset(path=data_folder)):
        assert isinstance(dataset, datasets.Dataset)
        assert to_hugging_face(dataset) is dataset


def test_a_data_set_of_the_package_can_be_formatted(data_folder: Path) -> None:
    raw = datasets.Dataset.from_json(str(data_folder / "gsm8k" / "train.jsonl"), cache_dir=str(data_folder / "cache"))
    assert list(format_math_dataset(raw, "rl")) == list(create_rl_dataset(path=data_folder))
    both = datasets.DatasetDict({"train": raw, "test": raw})
    with raises(DatasetError, "test"):
        format_math_dataset(both, "rl")


@pytest.mark.parametrize(
    ("values", "row", "named"),
    [
        ([1, 2, "one", 3], 2, (0,)),
        (["a", None, 1], 2, (0,)),
        ([None, 1, True], 2, (1,)),
        (["a", ["b"]], 1, (0,)),
        ([{"n": 1}, {"n": 2.5}, {"n": "x"}], 2, ("n", 0)),
        ([[{"content": "a"}]] * 5 + [[{"content": ["a"]}]], 5, (0,)),
        ([[1], [1, "a"]], 1, (0,)),
        ([["a", 1]], 0, ()),
    ],
)
def test_a_column_of_mixed_kinds_is_refused_by_row_and_column(
    values: list[object], row: int, named: tuple[object, ...]
) -> None:
    rows = [{"right": "yes", "kind": value} for value in values]
    with raises(RowError, row, "kind", *named) as caught:
        to_hugging_face(rows)
    assert (caught.value.row, caught.value.column) == (row, "kind")


@given(count=st.integers(1, 40), data=st.data())
def test_the_first_row_of_another_kind_is_found(count: int, data: st.DataObject) -> None:
    place = data.draw(st.integers(1, count))
    rows = [{"a": number if number < place else "text"} for number in range(count + 1)]
    with pytest.raises(RowError) as caught:
        to_hugging_face(rows)
    assert caught.value.row == place


def test_a_text_that_cannot_be_encoded_is_named() -> None:
    for broken in ("half \ud83d", [{"role": "user", "content": "half \ud83d"}]):
        whole = "whole" if isinstance(broken, str) else [{"role": "user", "content": "whole"}]
        with raises(RowError, 2, "b", "ud83d"):
            to_hugging_face([{"a": "x", "b": value} for value in (whole, whole, broken, whole)])


@pytest.mark.parametrize("value", [2**70, object(), {1: 2}])
def test_a_value_that_no_table_holds_is_named(value: object) -> None:
    with raises(RowError, 1, "a"):
        to_hugging_face([{"a": None}, {"a": value}])


def test_a_hub_that_cannot_be_reached_is_a_clear_error(tmp_path: Path) -> None:
    code = "from sharpen.llm import create_sft_dataset\ncreate_sft_dataset(max_samples=3)"
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "SHARPEN_DATA": ""}
    run = subprocess.run([sys.executable, "-c", code], env=offline, capture_output=True, text=True, check=False)
    assert "DatasetError: the data set 'openai/gsm8k' (split 'train') cannot be loaded from the hub" in run.stderr
