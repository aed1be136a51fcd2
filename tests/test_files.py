"""Files that stay whole."""

import os
from pathlib import Path

import pytest

from sharpen.files import CsvTable, append_json, keep_json_lines, read_csv, read_json_lines, replacing


def test_a_file_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file"]


def test_an_error_in_the_block_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write_half() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with replacing(path) as one, replacing(path) as other:
        one.write_text("one")
        other.write_text("other")
    assert path.read_text() == "one"


def test_a_line_after_one_that_was_cut_off_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append_json(path, {"n": 1})
    with open(path, "a") as file:
        file.write('{"n": 2, "te')
    append_json(path, {"n": 3, "text": "\ud800 ü"})
    assert [line["n"] for line in read_json_lines(path)] == [1, 3]
    keep_json_lines(path, lambda line: line["n"] > 1)
    assert [line["n"] for line in read_json_lines(path)] == [3]


def test_a_table_resumes_after_a_row_and_keeps_what_needs_quotes(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    table = CsvTable(path)
    for step in (1, 2, 3):
        table.append({"step": step, 'a "b", c': "x\ny"})
    again = CsvTable(path)
    again.resume("step", 2)
    again.append({"step": 3, "new": 0.5})
    assert read_csv(path) == (
        ["step", 'a "b", c', "new"],
        [["1", "x\ny", ""], ["2", "x\ny", ""], ["3", "", "0.5"]],
    )


def test_a_foreign_table_is_not_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("other,columns\n1,2\n")
    table = CsvTable(path)
    table.resume("step", 2)
    table.append({"step": 3})
    assert path.read_text() == "step\n3\n"
