"""Fields of a request that may hold a key. They are passed on and never written down."""

import re
from typing import Any
from urllib.parse import unquote_plus

_SECRET = re.compile(
    r"(?i)api[-_]?key|authorization|secret|password|credential|cookie|headers$|(access|auth|bearer)[-_]?token"
)


def is_secret(name: str) -> bool:
    """By the name of the field, such as the `authorization` and the `headers` of an MCP server."""
    return _SECRET.search(name) is not None


def query_without_secrets(query: str) -> str:
    """A URL's query without fields that may hold a key, as it was written."""
    fields = (field for field in query.split("&") if field)
    return "&".join(field for field in fields if not _is_secret_in_query(unquote_plus(field.partition("=")[0])))


def _is_secret_in_query(name: str) -> bool:
    """There a key is often just named `key`, and signatures open doors too."""
    return is_secret(name) or name.lower() in ("key", "token", "sig", "signature", "code")


def without_secrets(value: Any) -> Any:
    """The same value without fields that may hold a key, however deep they lie."""
    if isinstance(value, dict):
        return {key: without_secrets(below) for key, below in value.items() if not is_secret(str(key))}
    if isinstance(value, list):
        return [without_secrets(each) for each in value]
    return value
