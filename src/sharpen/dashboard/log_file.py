"""The log of a run as entries: read from its end, a piece at a time."""

import re
from pathlib import Path
from typing import BinaryIO, Literal, get_args

import msgspec

Level = Literal["debug", "info", "warning", "error", "critical"]
LEVELS: tuple[Level, ...] = get_args(Level)
PIECE_BYTES = 256 * 1024
MOST = 400
MOST_PIECES = 16  # for a search: 4 MB at once, and a link to continue
_HEAD = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?) (?P<level>[A-Z]+)\s+(?:\[(?P<who>[^\]]{1,80})\] )?"
    r"(?P<room>[\w.]+): (?P<words>.*)"
)


class LogEntry(msgspec.Struct):
    """One entry; a traceback belongs to the line before it."""

    level: Level
    time: str = ""
    who: str = ""
    room: str = ""
    words: str = ""
    place: int = 0
    """Its offset in the file, in bytes."""


class LogPiece(msgspec.Struct, frozen=True):
    """Entries in order, and the offset from which the file was read: older entries end there."""

    entries: list[LogEntry]
    start: int
    size: int


def read_log(path: Path, *, before: int | None = None, level: Level = "debug", text: str = "") -> LogPiece:
    """Return the last entries before an offset, of at least a level, that contain a text.

    If few do, more than one piece of the file is read.
    """
    least, wanted = LEVELS.index(level), text.lower()
    found: list[LogEntry] = []
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        start = size if before is None else min(before, size)
        for _ in range(MOST_PIECES if wanted or least else 1):
            entries, start = _entries_before(file, start)
            found = [each for each in entries if _matches(each, least, wanted)] + found
            if len(found) >= MOST or start == 0:
                break
    if len(found) > MOST:
        found = found[-MOST:]
        start = found[0].place  # older than the first one shown
    return LogPiece(found, start, size)


def _matches(entry: LogEntry, least: int, wanted: str) -> bool:
    return LEVELS.index(entry.level) >= least and wanted in entry.words.lower()


def _entries_before(file: BinaryIO, end: int) -> tuple[list[LogEntry], int]:
    """Return the entries of the piece that ends at an offset, and the offset at which it begins."""
    start = max(end - PIECE_BYTES, 0)
    file.seek(start)
    data = file.read(end - start)
    if start > 0:
        first = data.find(b"\n", 0, len(data) - 1) + 1  # a partial line belongs to the piece before
        start, data = start + first, data[first:]
    return parse(data, start), start


def parse(data: bytes, start: int = 0) -> list[LogEntry]:
    """Return the entries of some lines; a line without a head, as in a traceback, belongs to the entry before it."""
    entries: list[LogEntry] = []
    place = start
    for raw in data.splitlines(keepends=True):
        line = raw.decode("utf-8", "replace").rstrip("\r\n")
        head = _HEAD.fullmatch(line)
        if head is not None:
            named = head["level"].lower()
            level: Level = named if named in LEVELS else "info"
            entries.append(LogEntry(level, head["time"], head["who"] or "", head["room"], head["words"], place))
        elif entries:
            entries[-1].words += f"\n{line}"
        elif line:
            entries.append(LogEntry("info", words=line, place=place))
        place += len(raw)
    return entries
