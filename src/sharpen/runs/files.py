"""Small files that are there whole or not at all."""

import os
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError


def write_json(path: Path, value: Any) -> None:
    """Replace a file by the JSON of a value. A crash at any moment leaves the old file or the new one."""
    data = msgspec.json.format(msgspec.json.encode(value), indent=2)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def read_json(path: Path) -> Any:
    """The value in a file; a damaged one is named."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise ConfigError(f"{str(path)!r} is damaged: {error}") from error


def _sync_folder(folder: Path) -> None:
    """A rename survives a loss of power only once its folder has been synced."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
