"""The folder that a run writes to, and the small files in it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...files import replacing


def check_output_dir(path: str | os.PathLike[str]) -> Path:
    """The folder, which need not be there yet."""
    folder = Path(path).expanduser()
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"output_dir is {str(path)!r}, which is a file: give a folder")
    return folder


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file by the JSON of a value."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
