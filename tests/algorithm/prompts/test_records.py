"""The files of a search in the folder of its run."""

from pathlib import Path

import pytest

from sharpen.errors import ConfigError
from sharpen.types import PromptTemplate
from tests.algorithm.internals import (
    Candidate,
    CandidateBook,
    best_diff,
    draw_tree,
    read_records,
    write_records,
)
from tests.errors import raises

from .books import HOSTILE, chain, hostile_book, small_book


def test_the_records_of_a_search_are_four_files(tmp_path: Path) -> None:
    book = small_book()
    folder = tmp_path / "run" / "prompts"
    write_records(folder, book)
    texts = {path.name: path.read_bytes().decode() for path in folder.iterdir()}
    assert texts.pop("candidates.json").startswith('{\n  "format": 1,')
    assert texts == {
        "best_prompt.txt": book.best.template.template,
        "best_prompt.diff": best_diff(book),
        "candidates.txt": draw_tree(book) + "\n",
    }


@pytest.mark.parametrize("book", [small_book(), hostile_book(), chain(50)], ids=["small", "hostile", "chain"])
def test_what_is_written_is_read_again(tmp_path: Path, book: CandidateBook) -> None:
    write_records(tmp_path / "prompts", book)
    for folder in (tmp_path / "prompts", tmp_path):  # its own folder, and the folder of the run
        again = read_records(folder)
        assert (list(again), again.best_version) == (list(book), book.best_version)


def test_the_text_of_the_best_prompt_is_exact(tmp_path: Path) -> None:
    book = CandidateBook()
    book.add(Candidate("v0", {"p": PromptTemplate(HOSTILE)}))
    write_records(tmp_path, book)
    assert (tmp_path / "best_prompt.txt").read_bytes() == HOSTILE.encode()


def test_several_prompts_have_a_file_each_whatever_they_are_called(tmp_path: Path) -> None:
    names = ["planner", "../etc/passwd", "a/b", "A_b", "a b", ""]
    book = CandidateBook()
    book.add(Candidate("v0", {name: PromptTemplate(f"prompt {name}") for name in names}))
    write_records(tmp_path / "prompts", book)
    files = {path.name: path.read_text() for path in (tmp_path / "prompts").glob("best_prompt.*.txt")}
    assert sorted(files.values()) == sorted(f"prompt {name}" for name in names)
    assert files["best_prompt.planner.txt"] == "prompt planner"
    assert len({name.lower() for name in files}) == len(names)
    assert [path.name for path in tmp_path.iterdir()] == ["prompts"]


def test_records_are_written_over_and_leave_nothing_behind(tmp_path: Path) -> None:
    book = small_book()
    write_records(tmp_path, book)
    book.best_version = "v0"
    write_records(tmp_path, book)
    assert read_records(tmp_path).best.version == "v0"
    assert (tmp_path / "best_prompt.diff").read_text() == ""
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_without_candidates_is_a_clear_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ConfigError):
            read_records(folder)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[]", b'{"format": 1}', b"[" * 100_000])
def test_damaged_records_are_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "candidates.json").write_bytes(data)
    with raises(ConfigError, "candidates.json"):
        read_records(tmp_path)


def test_a_cut_off_file_is_damaged_at_every_place(tmp_path: Path) -> None:
    write_records(tmp_path, small_book())
    path = tmp_path / "candidates.json"
    data = path.read_bytes().rstrip()
    for length in range(0, len(data), 37):
        path.write_bytes(data[:length])
        with pytest.raises(ConfigError):
            read_records(tmp_path)
