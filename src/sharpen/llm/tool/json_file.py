"""Reading the JSON files of the tool."""

import json
from pathlib import Path
from typing import Any

from .errors import JobError


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no file, and a JobError where it holds none."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise JobError(f"cannot read {str(path)!r} ({error}): remove it, or its folder") from error
    if not isinstance(value, dict):
        raise JobError(f"{str(path)!r} does not contain a JSON object: remove it, or its folder")
    return value
