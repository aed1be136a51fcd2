"""Small files that are there whole or not at all."""

from pathlib import Path
from typing import Any

import msgspec

from ..errors import ConfigError
from ..files import open_private, replacing


def write_json(path: Path, value: Any) -> None:
    """Replace a file by the JSON of a value, for its owner alone.

    A crash at any moment leaves the old file or the new one.
    """
    data = msgspec.json.format(msgspec.json.encode(value), indent=2)
    with replacing(path) as temporary, open(temporary, "wb", opener=open_private) as file:
        file.write(data + b"\n")


def read_json(path: Path) -> Any:
    """The value in a file; a damaged one is named."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        raise ConfigError(f"{str(path)!r} is damaged: {error}") from error
