"""Files that are never half-written: replaced as a whole, or extended by whole lines; and JSON in them.

`replacing` swaps a file and `replacing_folder` a folder: both are written under another name, synced and renamed.
`append_json` and `CsvTable` add lines in one write each; a line that a crash cut off is skipped by readers.
"""

import csv
import errno
import io
import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, overload

from .errors import ConfigError, SharpenError

T = TypeVar("T")

_counter = itertools.count()
_RUST_CODE = re.compile(r"\(os error (\d+)\)")
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.(?P<pid>\d+)-\d+\.(?P<kind>tmp|old)")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to. At the end of the block it replaces `path`; after an error it is removed.

    A crash at any moment, also of the machine, leaves the old file or the new one.
    """
    temporary = _beside(path, "tmp")
    try:
        yield temporary
        if not temporary.is_symlink():
            sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill. At the end of the block it replaces `path`; after an error it is removed.

    A crash at any moment leaves the old folder or the new one, once `remove_leftovers` has run: a folder cannot be
    replaced in one step, so for a moment the old one has another name.
    """
    temporary, aside = _beside(path, "tmp"), _beside(path, "old")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for each in temporary.rglob("*"):
            if not each.is_symlink():
                sync(each)
        sync(temporary)
        if path.exists():
            path.rename(aside)
        temporary.rename(path)
    except BaseException:
        if aside.exists() and not path.exists():
            aside.rename(path)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(path.parent)
    shutil.rmtree(aside, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder, if it exists. A crash meanwhile leaves no part of it under its name."""
    if path.exists():
        shutil.rmtree(path.rename(_beside(path, "tmp")), ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left half-written, and rename a folder back that was being replaced."""
    for path in folder.glob(".*"):
        match = _TEMPORARY.fullmatch(path.name)
        if match is None or is_alive(int(match["pid"])):
            continue
        if match["kind"] == "old" and not (target := folder / match["name"]).exists():
            path.rename(target)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{next(_counter)}.{kind}")


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, as an opener for `open`; a new file can be read only by its owner."""
    return os.open(path, flags, 0o600)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a file could not be written because the disk, a quota or a limit was full; also for an error that was
    raised from such a one."""
    if error is None:
        return False
    code = error.errno if isinstance(error, OSError) else None
    # safetensors and tokenizers (which raises plain Exception) have the code only in their text.
    is_of_rust = type(error) is Exception or type(error).__name__ == "SafetensorError"
    if is_of_rust and (match := _RUST_CODE.search(str(error))) is not None:
        code = int(match[1])
    return code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or is_disk_full(error.__cause__)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in a folder and below it."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def describe_size(size_bytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes / 1e3:.1f} kB"


def is_alive(pid: int) -> bool:
    """Return whether a process of this machine has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# -- JSON --------------------------------------------------------------------------------------------


@overload
def read_json(path: Path, *, error: type[SharpenError] = ...) -> Any: ...
@overload
def read_json(path: Path, *, kind: type[T], error: type[SharpenError] = ...) -> T: ...
def read_json(path: Path, *, kind: type[Any] = object, error: type[SharpenError] = ConfigError) -> Any:
    """Return the value in a JSON file.

    Args:
        path: The file; a missing one is a FileNotFoundError.
        kind: What the value must be, such as `dict`.
        error: What a file that cannot be parsed raises. It names the file, and the line and column.
    """
    import msgspec

    data = path.read_bytes()
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            value = json.loads(data)  # also reads NaN and lone surrogates, and names line and column
        except (ValueError, RecursionError) as problem:
            raise error(f"{str(path)!r} is not valid JSON: {problem}") from problem
    if not isinstance(value, kind):
        raise error(f"{str(path)!r} holds a JSON {type(value).__name__}, not a {kind.__name__}")
    return value


def write_json(path: Path, value: Any) -> None:
    """Replace a file with the JSON of a value (also of structs and dataclasses), readable only by its owner.

    A crash at any moment leaves the old file or the new one. A number that JSON cannot express is written as null.
    """
    import msgspec

    data = msgspec.json.format(msgspec.json.encode(value), indent=2)
    with replacing(path) as temporary, open(temporary, "wb", opener=open_private) as file:
        file.write(data + b"\n")


def append_json(path: Path, value: Mapping[str, Any], *, is_private: bool = False) -> None:
    """Add one line. Numbers that JSON cannot express are written as the strings `nan`, `inf` and `-inf`."""
    line = json.dumps(_plain(value), ensure_ascii=False, allow_nan=False, default=str)
    with open(path, "ab+", opener=open_private if is_private else None) as file:
        file.write(b"\n" * _is_cut_off(file) + line.encode("utf-8", "backslashreplace") + b"\n")


def read_json_lines(path: Path, *, error: type[SharpenError] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one JSON object a line.

    Without an `error`, lines that are cut off or damaged are skipped, as a crash leaves them. With one, the first such
    line raises it, with the file and the number of the line; blank lines are allowed.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if error is None and not line.endswith(b"\n"):
                continue
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as problem:
                if error is not None:
                    raise error(f"line {number} of {str(path)!r} is not valid JSON: {problem}") from problem
                continue
            if isinstance(value, dict):
                yield value
            elif error is not None:
                kind = type(value).__name__
                raise error(f"line {number} of {str(path)!r} is a JSON {kind}, not an object: {line.strip()[:80]!r}")


def last_json_line(
    path: Path, is_wanted: Callable[[dict[str, Any]], bool] | None = None, *, tail_bytes: int = 65536
) -> dict[str, Any]:
    """Return the newest whole line that is wanted, read from the end of the file; or an empty dict."""
    if not path.exists():
        return {}
    start = max(os.path.getsize(path) - tail_bytes, 0)
    with open(path, "rb") as file:
        file.seek(start)
        lines = file.read().split(b"\n")[:-1]  # whatever follows the last line end was cut off
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and (is_wanted is None or is_wanted(found)):
            return found
    return last_json_line(path, is_wanted, tail_bytes=16 * tail_bytes) if start else {}


def keep_json_lines(path: Path, is_kept: Callable[[dict[str, Any]], bool]) -> None:
    """Remove the lines for which `is_kept` is False."""
    lines = [line for line in read_json_lines(path) if is_kept(line)]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    with replacing(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))


def _is_cut_off(file: BinaryIO) -> bool:
    return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    return value


# -- tables ------------------------------------------------------------------------------------------


class CsvTable:
    """A CSV file to which rows are added. A column that is added later is empty in earlier rows.

    The first row of a new table replaces an existing file; after `resume`, rows are appended to it.
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
        """Continue an existing file after the row in which `column` is `last`; later rows are removed."""
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
    """Return the names of the columns and the complete rows."""
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
