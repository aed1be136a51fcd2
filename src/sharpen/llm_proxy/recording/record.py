"""A record: a file of exchanges, one JSON line each, that a gateway writes and a replay answers from.

A line is handed to the system in one piece when its exchange has ended. A crash can tear only the last one: it is
left out when the file is read, and cut off when the file is opened to go on. One gateway at a time writes to a file.
"""

import fcntl
import os
import threading
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, overload

import msgspec

from ...errors import ConfigError
from .exchanges import Exchange, Tape, key_of

__all__ = ["RecordFile", "Tape", "WrittenRecord", "key_of"]

VERSION = 1


class _Head(msgspec.Struct, frozen=True):
    """The first line, so that no other file is taken for a record, or written to."""

    sharpen_record: int


_HEAD = msgspec.json.encode(_Head(VERSION)) + b"\n"
_BLOCK_BYTES = 65536
_line_of = msgspec.json.Encoder().encode
_exchange_in = msgspec.json.Decoder(Exchange).decode


class RecordFile:
    """A record that is open to be written. A file that is there already is gone on with."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._handle: int | None = _open(self.path)
        try:
            _take(self._handle, self.path)
            self._size = _mend(self._handle, self.path)
        except BaseException:
            self.close()
            raise

    def append(self, exchange: Exchange) -> None:
        """Add an exchange. A line that cannot be written whole (a full disk) leaves the file as it was: OSError."""
        line = _line_of(exchange) + b"\n"
        with self._lock:
            if self._handle is None:
                raise ValueError(f"the record {str(self.path)!r} is closed")
            try:
                _write(self._handle, line)
            except OSError:
                os.ftruncate(self._handle, self._size)
                raise
            self._size += len(line)

    def close(self) -> None:
        """Let others write to the file."""
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __enter__(self) -> "RecordFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WrittenRecord(Sequence[Exchange]):
    """The exchanges of a record in the order in which they ended. Only their places are kept in memory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._places = array("q")
        self._file = _open_to_read(self.path)
        try:
            _check_head(self._first_line(), self.path)
            self._places.extend(self._find())
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Exchange: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Exchange]: ...
    def __getitem__(self, index: int | slice) -> Exchange | Sequence[Exchange]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return self._parse(self._line_at(self._places[index]), index % len(self) + 2)

    def close(self) -> None:
        self._file.close()

    def _first_line(self) -> bytes:
        line = self._file.readline()
        if not line:
            raise ConfigError(f"the record {str(self.path)!r} is empty: record calls first")
        return line

    def _find(self) -> Iterator[int]:
        place = self._file.tell()
        for line in self._file:
            if line.endswith(b"\n"):
                yield place
            place += len(line)

    def _line_at(self, place: int) -> bytes:
        """Read without moving the file's position, so that several threads may look at once."""
        parts: list[bytes] = []
        while not parts or (parts[-1] and b"\n" not in parts[-1]):
            parts.append(os.pread(self._file.fileno(), _BLOCK_BYTES, place + len(parts) * _BLOCK_BYTES))
        return b"".join(parts).partition(b"\n")[0]

    def _parse(self, line: bytes, number: int) -> Exchange:
        try:
            return _exchange_in(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"line {number} of the record {str(self.path)!r} is damaged ({error}): remove the line, or record again"
            ) from None


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"the record {str(path)!r} cannot be written: {error.strerror}") from None


def _open_to_read(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise ConfigError(f"the record {str(path)!r} cannot be read: {error.strerror}") from None


def _take(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"the record {str(path)!r} is being written by another gateway: use a separate file for each gateway"
        ) from None


def _mend(handle: int, path: Path) -> int:
    """Cut a torn line off and write the head of a new file; gives the size."""
    start = os.pread(handle, len(_HEAD) + 100, 0)
    if _HEAD.startswith(start):
        os.ftruncate(handle, 0)
        _write(handle, _HEAD)
        return len(_HEAD)
    _check_head(start.partition(b"\n")[0], path)
    size = _end_of_last_line(handle)
    os.ftruncate(handle, size)
    return size


def _end_of_last_line(handle: int) -> int:
    end = os.fstat(handle).st_size
    while end:
        start = max(0, end - _BLOCK_BYTES)
        found = os.pread(handle, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _check_head(line: bytes, path: Path) -> None:
    try:
        version = msgspec.json.decode(line, type=_Head).sharpen_record
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ConfigError(
            f"{str(path)!r} is not a record of a gateway: its first line is not the header of one"
        ) from None
    if version != VERSION:
        raise ConfigError(f"the record {str(path)!r} has version {version}; this Sharpen reads version {VERSION}")


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
