"""The settings of a run, flat: `{"a": {"b": 1}}` as `{"a.b": 1}`, for services that take nothing else."""

from collections.abc import Mapping
from typing import Any

Scalar = str | bool | int | float


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Scalar]:
    """Every value under the path that leads to it; what is no plain value becomes its text."""
    found: dict[str, Scalar] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value if isinstance(value, str | bool | int | float) else str(value)
    return found
