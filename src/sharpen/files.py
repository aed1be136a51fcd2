"""Files that stay whole: replaced at once, or grown by whole lines.

`replacing` swaps a file; `append_json` and `CsvTable` add lines in one write each. What a crash cut off is left out
when the file is read again.
"""

import csv
import errno
import io
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

_counter = itertools.count()
_RUST_CODE = re.compile(r"\(os error (\d+)\)")
_TEMPORARY = re.compile(r"\..*\.(\d+)-\d+\.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; it takes the place of `path` at the end of the block, or is removed after an error.

    A crash at any moment, also of the machine, leaves the old file or the new one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{next(_counter)}.tmp")
    try:
        yield temporary
        if not temporary.is_symlink():
            sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """An opener for `open`: a file that it makes can be read by its owner alone."""
    return os.open(path, flags, 0o600)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a file could not be written for want of room (on the disk, or within a quota or a limit), also where
    another error was raised from that one."""
    if error is None:
        return False
    code = error.errno if isinstance(error, OSError) else None
    # safetensors and tokenizers (which raises plain Exception) have the code in the text alone.
    is_of_rust = type(error) is Exception or type(error).__name__ == "SafetensorError"
    if is_of_rust and (told := _RUST_CODE.search(str(error))) is not None:
        code = int(told[1])
    return code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or is_disk_full(error.__cause__)


def sync(path: Path) -> None:
    """Have the disk keep a file, or the names in a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def folder_size(folder: Path) -> int:
    """The bytes of all files in a folder and below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def size_in_words(size_bytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes / 1e3:.1f} kB"


def remove_leftovers(folder: Path) -> None:
    """Remove what processes that were killed left half-written."""
    for path in folder.glob(".*.tmp"):
        match = _TEMPORARY.fullmatch(path.name)
        if match and not _is_alive(int(match[1])):
            path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# -- JSON lines --------------------------------------------------------------------------------------


def append_json(path: Path, value: Mapping[str, Any]) -> None:
    """Add one line. Numbers that JSON lacks are written as the strings `nan`, `inf` and `-inf`."""
    line = json.dumps(_in_json(value), ensure_ascii=False, allow_nan=False, default=str)
    with open(path, "ab+") as file:
        file.write(b"\n" * _is_cut_off(file) + line.encode("utf-8", "backslashreplace") + b"\n")


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of all whole lines."""
    with open(path, "rb") as file:
        for line in file:
            try:
                value = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                continue  # a crash cut this line off
            if isinstance(value, dict):
                yield value


def keep_json_lines(path: Path, is_kept: Callable[[dict[str, Any]], bool]) -> None:
    """Drop the other lines."""
    lines = [line for line in read_json_lines(path) if is_kept(line)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))


def _is_cut_off(file: BinaryIO) -> bool:
    return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"


def _in_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _in_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(each) for each in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    return value


# -- tables ------------------------------------------------------------------------------------------


class CsvTable:
    """A CSV file that grows by rows. A column that comes later is empty in the rows before.

    The first row of a new table replaces a file that is there; after `resume` the rows go on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._columns: list[str] | None = None

    def append(self, row: Mapping[str, Any]) -> None:
        if self._columns is None:
            self._rewrite(list(row), [])
        elif any(name not in self._columns for name in row):
            self._widen(row)
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            file.write(_csv_line([row.get(name, "") for name in self._columns or []]))

    def resume(self, column: str, last: float) -> None:
        """Go on with the file that is there, after the row in which `column` is `last`; later rows are dropped."""
        if not self.path.exists():
            return
        columns, rows = read_csv(self.path)
        if column not in columns:
            return
        place = columns.index(column)
        self._rewrite(columns, [row for row in rows if _is_up_to(row[place], last)])

    def _widen(self, row: Mapping[str, Any]) -> None:
        columns, rows = read_csv(self.path)
        new = [name for name in row if name not in columns]
        self._rewrite(columns + new, [[*each, *([""] * len(new))] for each in rows])

    def _rewrite(self, columns: list[str], rows: list[list[str]]) -> None:
        with replacing(self.path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
            file.writelines(map(_csv_line, [columns, *rows]))
        self._columns = columns


def read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the rows that are whole."""
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    lines = list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))
    columns = lines[0] if lines else []
    return columns, [row for row in lines[1:] if len(row) == len(columns)]


def _csv_line(values: Sequence[Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


def _is_up_to(text: str, last: float) -> bool:
    try:
        return float(text) <= last
    except ValueError:
        return False
