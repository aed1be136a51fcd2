"""Folders to write to before the files take their places; a process that is killed leaves nothing for good."""

import itertools
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = re.compile(r"\..+\.(\d+)-\d+\.tmpdir")
_counter = itertools.count()


@contextmanager
def temporary_folder(parent: Path, label: str) -> Iterator[Path]:
    """A new folder in `parent`, gone after the block if it was not moved away. Leftovers of dead processes go too."""
    parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(parent)
    folder = parent / f".{label}.{os.getpid()}-{next(_counter)}.tmpdir"
    try:
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(parent: Path) -> None:
    for path in parent.glob(".*.tmpdir"):
        match = _NAME.fullmatch(path.name)
        if match and not _is_alive(int(match[1])):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
