"""Values in the form that JSON has, and files of them that are there whole or not at all."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import replacing


def write_json(path: Path, value: Mapping[str, Any], *, indent: int | None = None) -> None:
    """Put a file in the place of the one before, in one move."""
    with replacing(path) as temporary:
        temporary.write_bytes(as_json(value, indent=indent).encode("utf-8", "backslashreplace"))


def as_json(value: Any, *, indent: int | None = None) -> str:
    """The value as JSON that every reader takes."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=indent)


def plain(value: Any) -> Any:
    """The value in numbers, texts, lists and dicts. A number that JSON lacks becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if callable(getattr(value, "item", None)):  # a number of numpy or torch
        return plain(value.item())
    return str(value)
