"""JSON files that are there whole or not at all, and values in the form that JSON has."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...files import replacing
from .errors import JobError


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Put a file in the place of the one before, in one move."""
    with replacing(path) as temporary:
        temporary.write_bytes(as_json(value).encode("utf-8", "backslashreplace"))


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no file, and a JobError where it holds none."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise JobError(f"{str(path)!r} cannot be read ({error}): remove it, or the folder that it is in") from error
    if not isinstance(value, dict):
        raise JobError(f"{str(path)!r} holds no JSON object: remove it, or the folder that it is in")
    return value


def as_json(value: Any) -> str:
    """The value as JSON that every reader takes."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


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
