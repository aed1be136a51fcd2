"""Fields of a request that may hold a key. They are passed on and never written down."""

import re
from typing import Any

_SECRET = re.compile(
    r"(?i)api[-_]?key|authorization|secret|password|credential|cookie|headers$|(access|auth|bearer)[-_]?token"
)


def is_secret(name: str) -> bool:
    """By the name of the field, such as the `authorization` and the `headers` of an MCP server."""
    return _SECRET.search(name) is not None


def without_secrets(value: Any) -> Any:
    """The same value without fields that may hold a key, however deep they lie."""
    if isinstance(value, dict):
        return {key: without_secrets(below) for key, below in value.items() if not is_secret(str(key))}
    if isinstance(value, list):
        return [without_secrets(each) for each in value]
    return value
