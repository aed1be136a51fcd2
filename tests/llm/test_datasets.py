"""Data sets: where rows come from, and the form they get."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import ConfigError, MissingExtraError
from sharpen.llm import (
    DatasetError,
    GSM8KDataset,
    RowError,
    create_accuracy_reward,
    create_math_dataset,
    create_rl_dataset,
    create_sft_dataset,
    format_math_dataset,
    preview_dataset,
)
from tests.errors import raises
from tests.llm.internals import ListDataset, as_dataset, check_columns

from .conftest import PROBLEMS

SUMS = [{"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"} for n in range(10)]


def write_lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


# -- rows --------------------------------------------------------------------------------------------


def test_sft_rows_hold_a_question_and_a_worked_answer(data_folder: Path) -> None:
    dataset = create_sft_dataset(path=data_folder)
    assert (len(dataset), sorted(dataset.column_names)) == (4, ["completion", "prompt"])
    asked, answered = dataset[0]["prompt"], dataset[0]["completion"]
    assert [message["role"] for message in asked + answered] == ["user", "assistant"]
    assert PROBLEMS[0]["question"] in asked[0]["content"]
    assert answered[0]["content"] == "She bakes 3*12 = 36 rolls.\n\nFinal Answer: 36"


def test_rl_rows_hold_a_question_and_the_truth(data_folder: Path) -> None:
    dataset = create_rl_dataset(path=data_folder)
    assert sorted(dataset.column_names) == ["full_answer", "ground_truth", "prompt", "question"]
    assert [row["ground_truth"] for row in dataset] == ["36", "1,200", "-5", "15"]
    assert [row["question"] for row in dataset] == [problem["question"] for problem in PROBLEMS]
    assert [row["full_answer"] for row in dataset] == [problem["answer"] for problem in PROBLEMS]


def test_sft_and_rl_ask_alike(data_folder: Path) -> None:
    sft, rl = create_sft_dataset(path=data_folder), create_rl_dataset(path=data_folder)
    assert [row["prompt"] for row in sft] == [row["prompt"] for row in rl]


def test_what_sft_teaches_is_what_the_reward_pays(data_folder: Path) -> None:
    sft, rl = create_sft_dataset(path=data_folder), create_rl_dataset(path=data_folder)
    rewards = create_accuracy_reward()(
        [row["completion"] for row in sft], ground_truth=[row["ground_truth"] for row in rl]
    )
    assert rewards == [1.0] * 4


@pytest.mark.parametrize(
    ("answer", "completion", "truth"),
    [
        ("2+2=4. #### 4", "2+2=4.\n\nFinal Answer: 4", "4"),
        ("4", "Final Answer: 4", "4"),
        (4, "Final Answer: 4", "4"),
        (0.5, "Final Answer: 0.5", "0.5"),
        ("$1,200", "Final Answer: $1,200", "$1,200"),
        ("Paris", "Final Answer: Paris", "Paris"),
        ("We add 2 and 2.\nThe answer is 4.", "We add 2 and 2.\nThe answer is 4.\n\nFinal Answer: 4", "4"),
    ],
)
def test_answers_of_other_data_sets_are_understood(answer: object, completion: str, truth: str) -> None:
    rows = [{"question": "What is it?", "answer": answer}]
    assert create_sft_dataset(dataset=rows)[0]["completion"][0]["content"] == completion
    assert create_rl_dataset(dataset=rows)[0]["ground_truth"] == truth


def test_rows_in_their_form_stay_as_they_are() -> None:
    sft = [{"prompt": "2+2?", "completion": "4"}, {"prompt": "3+3?", "completion": "6"}]
    assert list(create_sft_dataset(dataset=sft)) == sft
    rl = create_rl_dataset(dataset=SUMS)
    assert list(format_math_dataset(rl, "rl")) == list(rl)


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        ([*SUMS[:3], {"question": "?"}], "answer"),
        ([*SUMS[:3], {"answer": "1"}], "question"),
        ([*SUMS[:3], {}], "question"),
        ([*SUMS[:3], {"question": None, "answer": "1"}], "question"),
        ([*SUMS[:3], {"question": "  ", "answer": "1"}], "question"),
        ([*SUMS[:3], {"question": ["?"], "answer": "1"}], "question"),
        ([*SUMS[:3], {"question": "?", "answer": True}], "answer"),
        ([*SUMS[:3], {"question": "?", "answer": "Well. ####  "}], "answer"),
        ([*SUMS[:3], {"question": "?", "answer": "Nobody\nknows"}], "answer"),
    ],
)
@pytest.mark.parametrize("format_type", ["sft", "rl"])
def test_a_row_that_cannot_be_used_is_named(rows: list[dict[str, Any]], column: str, format_type: str) -> None:
    with raises(RowError, 3, column) as caught:
        format_math_dataset(rows, format_type)
    assert (caught.value.row, caught.value.column) == (3, column)


def test_a_gap_in_rows_that_have_their_form_is_named() -> None:
    with raises(RowError, 1, "completion"):
        create_sft_dataset(dataset=[{"prompt": "a", "completion": "b"}, {"prompt": "c"}])


def test_columns_can_be_checked() -> None:
    check_columns(SUMS, ["question", "answer"])
    with raises(RowError, 0, "chosen"):
        check_columns(SUMS, ["question", "chosen"], source="my data")


def test_an_unknown_format_is_refused() -> None:
    with raises(ConfigError, "format_type", "dpo", "sft", "rl"):
        format_math_dataset(SUMS, "dpo")


# -- sources -----------------------------------------------------------------------------------------


def a_list(_: Path) -> Any:
    return SUMS


def a_generator(_: Path) -> Any:
    return (row for row in SUMS)


def a_list_dataset(_: Path) -> Any:
    return ListDataset(SUMS)


def a_file(folder: Path) -> Any:
    return write_lines(folder / "sums.jsonl", SUMS)


def a_name_of_a_file(folder: Path) -> Any:
    return str(a_file(folder))


def a_folder(folder: Path) -> Any:
    write_lines(folder / "train.jsonl", SUMS)
    return folder


def a_hugging_face_dataset(_: Path) -> Any:
    return pytest.importorskip("datasets").Dataset.from_list(SUMS)


SOURCES = [a_list, a_generator, a_list_dataset, a_file, a_name_of_a_file, a_folder, a_hugging_face_dataset]


@pytest.mark.parametrize("make", SOURCES)
def test_rows_come_from_many_sources(make: Callable[[Path], Any], tmp_path: Path) -> None:
    dataset = create_rl_dataset(dataset=make(tmp_path))
    assert [row["question"] for row in dataset] == [row["question"] for row in SUMS]


@pytest.mark.parametrize("make", SOURCES)
def test_max_samples_takes_the_first_rows(make: Callable[[Path], Any], tmp_path: Path) -> None:
    dataset = create_rl_dataset(max_samples=3, dataset=make(tmp_path))
    assert [row["ground_truth"] for row in dataset] == ["0", "2", "4"]
    assert len(create_rl_dataset(max_samples=99, dataset=make(tmp_path))) == 10


@pytest.mark.parametrize("max_samples", [0, -1, True])
def test_a_max_samples_that_cannot_work_is_refused(max_samples: int) -> None:
    with raises(ConfigError, "max_samples", max_samples):
        create_sft_dataset(max_samples=max_samples, dataset=SUMS)


@pytest.mark.parametrize("make", [each for each in SOURCES if each is not a_folder])
def test_any_source_is_a_data_set(make: Callable[[Path], Any], tmp_path: Path) -> None:
    dataset = as_dataset(make(tmp_path), max_samples=4)
    assert (len(dataset), dataset.column_names, dataset[1]) == (4, ["question", "answer"], SUMS[1])


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ([], ()),
        (["text"], (0, "text")),
        ({"train": SUMS, "test": SUMS}, ("test",)),
        (42, ()),
    ],
)
def test_what_is_no_data_set_is_refused(source: Any, named: tuple[object, ...]) -> None:
    with raises(DatasetError, *named):
        create_sft_dataset(dataset=source)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", ()),
        (b'{"question": "?"\n', (1, "rows.jsonl")),
        (b'{"a": 1}\n\n[1, 2]\n', (3, "rows.jsonl")),
        (b'{"a": 1}\n{"a": "\xff"}\n', (2, "rows.jsonl")),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(
    tmp_path: Path, content: bytes, named: tuple[object, ...]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with raises(DatasetError, *named):
        as_dataset(path)


def test_blank_lines_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n\n  \n{"a": 2}')
    assert list(as_dataset(path)) == [{"a": 1}, {"a": 2}]


def test_a_missing_file_or_split_is_named(tmp_path: Path) -> None:
    with raises(DatasetError, "none.jsonl"):
        create_sft_dataset(dataset=str(tmp_path / "none.jsonl"))
    write_lines(tmp_path / "dev.jsonl", SUMS)
    with raises(DatasetError, "train"):
        create_sft_dataset(dataset=tmp_path)


def test_a_split_that_would_do_nothing_is_refused(tmp_path: Path) -> None:
    with raises(DatasetError, "test"):
        create_sft_dataset("test", dataset=SUMS)
    with raises(DatasetError, "test"):
        create_sft_dataset("test", dataset=a_file(tmp_path))
    assert len(create_sft_dataset("sums", dataset=a_file(tmp_path))) == 10


def test_a_path_beside_another_data_set_is_refused(data_folder: Path) -> None:
    with raises(ConfigError, "path=", "GSM8K"):
        create_sft_dataset(dataset=SUMS, path=data_folder)


@pytest.mark.usefixtures("without_hugging_face")
def test_a_name_of_the_hub_without_the_package_says_what_to_do() -> None:
    for create in (create_sft_dataset, create_rl_dataset, GSM8KDataset):
        with raises(MissingExtraError, "openai/gsm8k", "sharpen[llm]", "path=", "SHARPEN_DATA"):
            create()
    with raises(MissingExtraError, "someone/sums"):
        create_math_dataset("someone/sums")


# -- the model ---------------------------------------------------------------------------------------


def model_folder(folder: Path, *, template: str | None = None, file: str | None = None) -> str:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}), encoding="utf-8")
    if file:
        (folder / file).write_text("{{ messages }}", encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("has", [{"template": "{{ messages }}"}, {"file": "chat_template.jinja"}])
def test_a_model_with_a_chat_template_will_do(tmp_path: Path, has: dict[str, str]) -> None:
    rows = create_rl_dataset(model_name=model_folder(tmp_path, **has), dataset=SUMS)
    assert (
        list(rows) == list(create_rl_dataset(dataset=SUMS)) == list(create_rl_dataset(model_name="a/b", dataset=SUMS))
    )


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    for create in (
        lambda name: create_rl_dataset(model_name=name, dataset=SUMS),
        lambda name: format_math_dataset(SUMS, "rl", name),
        lambda name: create_math_dataset(SUMS, model_name=name),
    ):
        with pytest.raises(ConfigError):
            create(model_folder(tmp_path))


def test_a_model_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        create_rl_dataset(model_name=str(tmp_path / "none"), dataset=SUMS)
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError):
        create_rl_dataset(model_name=str(tmp_path), dataset=SUMS)


# -- preview -----------------------------------------------------------------------------------------


def test_a_preview_shows_the_first_rows(capsys: pytest.CaptureFixture[str]) -> None:
    preview_dataset(create_rl_dataset(dataset=SUMS), num_samples=2)
    shown = capsys.readouterr().out
    assert shown.startswith("10 rows: prompt, ground_truth, question, full_answer\n")
    assert "row 0" in shown
    assert "question: What is 1 + 1?" in shown
    assert "row 2" not in shown


def test_a_preview_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    preview_dataset([{"text": "long " * 1000}])
    assert len(capsys.readouterr().out) < 300
    with raises(ConfigError, "num_samples", 0):
        preview_dataset(SUMS, num_samples=0)
