"""Files that stay whole."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.files import (
    CsvTable,
    append_json,
    keep_json_lines,
    last_json_line,
    read_csv,
    read_json,
    read_json_lines,
    remove_folder,
    remove_leftovers,
    replacing,
    replacing_folder,
    write_json,
)
from tests.errors import raises


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


# -- folders -----------------------------------------------------------------------------------------


def fill(folder: Path, version: int) -> None:
    (folder / "below").mkdir()
    (folder / "version").write_text(str(version))
    (folder / "below" / "version").write_text(str(version))


def version_in(folder: Path) -> int:
    versions = {(folder / "version").read_text(), (folder / "below" / "version").read_text()}
    assert len(versions) == 1
    return int(versions.pop())


def test_a_folder_is_replaced_at_the_end_of_the_block(tmp_path: Path) -> None:
    path = tmp_path / "parent" / "step_1"
    for version in (1, 2):
        with replacing_folder(path) as folder:
            fill(folder, version)
            assert not path.exists() or version_in(path) == 1
        assert version_in(path) == version
    assert os.listdir(path.parent) == ["step_1"]


def test_an_error_in_the_block_keeps_the_old_folder(tmp_path: Path) -> None:
    path = tmp_path / "step_1"
    with replacing_folder(path) as folder:
        fill(folder, 1)

    def write_half() -> None:
        with replacing_folder(path) as folder:
            fill(folder, 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert version_in(path) == 1
    assert os.listdir(tmp_path) == ["step_1"]
    remove_folder(path)
    remove_folder(path)
    assert os.listdir(tmp_path) == []


def ended_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


@pytest.mark.parametrize("has_new", [False, True])
def test_a_folder_that_stood_aside_gets_its_name_back(tmp_path: Path, has_new: bool) -> None:
    pid = ended_process()
    for name in (f".step_1.{pid}-0.old", f".step_1.{pid}-0.tmp", f".other.{os.getpid()}-0.tmp", ".mine"):
        (tmp_path / name).mkdir()
        fill(tmp_path / name, 1)
    if has_new:
        (tmp_path / "step_1").mkdir()
        fill(tmp_path / "step_1", 2)
    remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".mine", f".other.{os.getpid()}-0.tmp", "step_1"]
    assert version_in(tmp_path / "step_1") == (2 if has_new else 1)


WRITER = """
import sys
from pathlib import Path
from sharpen.files import replacing_folder

path = Path(sys.argv[1])
for version in range(int(sys.argv[2]), 1_000_000):
    with replacing_folder(path) as folder:
        (folder / "below").mkdir()
        (folder / "version").write_text(str(version))
        (folder / "below" / "version").write_text(str(version))
    print(version, flush=True)
"""


def test_a_killed_writer_leaves_the_old_folder_or_the_new_one(tmp_path: Path) -> None:
    rng, path, version = random.Random(7), tmp_path / "step_1", 0
    for _ in range(5):
        command = [sys.executable, "-c", WRITER, str(path), str(version + 1)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        reported = int(writer.stdout.readline())
        time.sleep(rng.uniform(0, 0.02))
        writer.send_signal(signal.SIGKILL)
        reported = int((writer.communicate()[0].split() or [reported])[-1])
        remove_leftovers(tmp_path)
        version = version_in(path)
        assert version in (reported, reported + 1)
        assert os.listdir(tmp_path) == ["step_1"]


# -- JSON --------------------------------------------------------------------------------------------


@dataclass
class Point:
    x: int
    y: float


def test_json_is_written_whole_and_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"point": Point(1, float("nan")), "text": "ü"})
    assert read_json(path) == {"point": {"x": 1, "y": None}, "text": "ü"}
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(TypeError):
        write_json(path, {"x": object()})
    assert read_json(path, kind=dict)["text"] == "ü"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("text", ['"\\ud800"', "NaN", '\ufeff{"a": 1}', "123456789012345678901234567890"])
def test_what_other_writers_of_json_produce_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    assert repr(read_json(tmp_path / "a.json")) == repr(json.loads(text.removeprefix("\ufeff")))


@pytest.mark.parametrize(
    ("data", "place"),
    [(b'{"a": 1,\n "b": }', "line 2 column 7"), (b"", "line 1 column 1"), (b'{"a": "\xff"}', ""), (b"[" * 200_000, "")],
    ids=["syntax", "empty", "encoding", "depth"],
)
def test_a_file_that_is_not_json_is_named_with_the_place(tmp_path: Path, data: bytes, place: str) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(InvalidInputError) as caught:
        read_json(path, error=InvalidInputError)
    assert "a.json" in str(caught.value)
    assert place in str(caught.value)


def test_a_file_with_another_kind_of_value_says_which(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[1]")
    with raises(ConfigError, "a.json", "list", "dict"):
        read_json(tmp_path / "a.json", kind=dict)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "absent.json")


def test_lines_that_must_be_whole_are_named_by_number(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b'{"n": 1}\n\n{"n": 2}')
    assert [line["n"] for line in read_json_lines(path, error=InvalidInputError)] == [1, 2]
    for bad in (b"{oops}\n", b"[1]\n"):
        path.write_bytes(b'{"n": 1}\n' + bad)
        with raises(InvalidInputError, "line 2", "lines"):
            list(read_json_lines(path, error=InvalidInputError))
        assert [line["n"] for line in read_json_lines(path)] == [1]


def test_the_last_line_is_found_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    assert last_json_line(path) == {}
    for n in range(50):
        append_json(path, {"n": n, "kind": "odd" if n % 2 else "even", "filling": "x" * 100}, is_private=True)
    with open(path, "a") as file:
        file.write('{"n": 99')
    assert path.stat().st_mode & 0o777 == 0o600
    assert last_json_line(path)["n"] == 49
    assert last_json_line(path, lambda line: line["kind"] == "even", tail_bytes=10)["n"] == 48
    assert last_json_line(path, lambda line: line["n"] == 0, tail_bytes=10)["n"] == 0
    assert last_json_line(path, lambda line: False) == {}


def test_numbers_that_json_lacks_are_texts_in_lines(tmp_path: Path) -> None:
    values: dict[str, Any] = {"a": float("nan"), "b": [float("-inf")], "c": {"d": float("inf")}}
    append_json(tmp_path / "lines", values)
    assert list(read_json_lines(tmp_path / "lines")) == [{"a": "nan", "b": ["-inf"], "c": {"d": "inf"}}]


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
