"""The folder that a run writes to, and the small files in it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import ConfigError, describe


def check_output_dir(path: str | os.PathLike[str]) -> Path:
    """The folder, which need not be there yet. It stays the same when the program changes its working directory."""
    folder = Path(path).expanduser().absolute()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"output_dir is {str(path)!r}, which is a file: pass a folder")
    return folder


@contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Make a folder to write to; it goes again if the block leaves it empty."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir is {str(folder)!r}, which cannot be created: {describe(error)}") from error
    try:
        yield
    finally:
        with suppress(OSError):  # there is something in it, as there should be
            folder.rmdir()
