"""A copy of a store file, also of one in use.

SQLite copies one moment of the file while others go on writing. The copy appears under its name only when it is whole
and has been checked; what a killed backup left half-written is removed by the next one into the same folder.
"""

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from ..errors import StoreFileError
from ..files import remove_leftovers, replacing
from .sqlite.schema import ReadOnlyFile, make_private, open_files, version_of

BUSY_SECONDS = 10.0


def backup_store(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy the store file `source` to `target`, a file that is not there yet."""
    source, target = Path(source), Path(target)
    file = ReadOnlyFile(source, busy_seconds=BUSY_SECONDS)
    _check_free(target)
    if not target.parent.is_dir():
        raise StoreFileError(f"the folder {str(target.parent)!r} for the backup does not exist: create it first")
    try:
        remove_leftovers(target.parent)
        with replacing(target) as temporary:
            make_private(temporary)
            _copy(file, temporary)
            while file.has_changed():  # it was taken to stand still, and someone began to write
                _copy(file, temporary)
            check_copy(temporary)
            _check_free(target)  # someone may have put a file there meanwhile
    except (sqlite3.Error, OSError) as error:
        if isinstance(error, StoreFileError):
            raise
        raise StoreFileError(f"could not back up {str(source)!r} to {str(target)!r}: {error}") from error


def _check_free(target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise StoreFileError(
            f"{str(target)!r} already exists and a backup does not overwrite files: choose another name"
        )


def _copy(file: ReadOnlyFile, temporary: Path) -> None:
    reader, writer = file.connect(), sqlite3.connect(temporary, isolation_level=None)
    is_open = open_files.add(file.path)
    try:
        # It is thrown away if anything fails, so that it needs no journal beside it.
        writer.execute("PRAGMA journal_mode = OFF")
        writer.execute("PRAGMA synchronous = OFF")
        reader.backup(writer)  # in one step: with several, each write of others would restart it
    finally:
        writer.close()
        reader.close()
        open_files.remove(is_open)


def check_copy(path: Path) -> None:
    """Refuse a store file that is not whole. Nobody else may have it open."""
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?immutable=1", uri=True, isolation_level=None)
    try:
        version_of(connection, path)
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    finally:
        connection.close()
    if found != "ok":
        raise StoreFileError(f"{str(path)!r} is damaged ({found}): the store it was copied from may be damaged too")
