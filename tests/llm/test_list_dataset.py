"""The light data set has the habits of a Hugging Face `Dataset`."""

from collections.abc import Callable
from typing import Any

import pytest

from sharpen.errors import MissingExtraError
from tests.errors import raises
from tests.llm.internals import ListDataset, to_hugging_face

ROWS = [{"question": f"q{number}", "answer": number} for number in range(5)]


def light(rows: list[dict[str, Any]]) -> Any:
    return ListDataset(rows)


def hugging_face(rows: list[dict[str, Any]]) -> Any:
    pytest.importorskip("datasets")
    return to_hugging_face(rows)


@pytest.fixture(params=[light, hugging_face])
def dataset(request: pytest.FixtureRequest) -> Any:
    make: Callable[[list[dict[str, Any]]], Any] = request.param
    return make(ROWS)


def test_rows_are_found_by_number(dataset: Any) -> None:
    assert len(dataset) == 5
    assert (dataset[0], dataset[-1]) == (ROWS[0], ROWS[-1])
    with pytest.raises(IndexError):
        dataset[5]


def test_columns_are_found_by_name(dataset: Any) -> None:
    assert dataset.column_names == ["question", "answer"]
    assert list(dataset["answer"]) == [0, 1, 2, 3, 4]


def test_a_column_that_is_not_there_is_named() -> None:
    with raises(KeyError, "reward"):
        light(ROWS)["reward"]


def test_a_slice_gives_columns(dataset: Any) -> None:
    assert dataset[1:3] == {"question": ["q1", "q2"], "answer": [1, 2]}


def test_it_can_be_walked_again_and_again(dataset: Any) -> None:
    assert list(dataset) == list(dataset) == ROWS


def test_rows_can_be_selected(dataset: Any) -> None:
    assert list(dataset.select([3, 1])) == [ROWS[3], ROWS[1]]
    assert list(dataset.select(range(2))) == ROWS[:2]


def test_rows_can_be_mapped(dataset: Any) -> None:
    assert list(dataset.map(lambda row: {"answer": row["answer"] * 2}))[2] == {"question": "q2", "answer": 4}
    numbered = dataset.map(lambda row, index: {"row": index}, with_indices=True, remove_columns=["question", "answer"])
    assert list(numbered) == [{"row": index} for index in range(5)]


def test_a_change_to_a_row_stays_outside(dataset: Any) -> None:
    dataset[0]["answer"] = 99
    for row in dataset:
        row["answer"] = 99
    assert list(dataset) == ROWS


def test_a_column_that_a_row_lacks_is_none() -> None:
    dataset = ListDataset([{"a": 1}, {"b": 2}])
    assert dataset.column_names == ["a", "b"]
    assert (dataset["a"], dataset[:]) == ([1, None], {"a": [1, None], "b": [None, 2]})
    assert repr(dataset) == "ListDataset(2 rows: a, b)"


@pytest.mark.usefixtures("without_hugging_face")
def test_without_the_package_a_hugging_face_data_set_names_the_extra() -> None:
    with raises(MissingExtraError, "sharpen[llm]"):
        to_hugging_face(ROWS)
