"""Fields of a request that may hold a key. They are passed on and never written down."""

import re
from collections.abc import Mapping
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
    top = [value]
    left: list[Any] = [top]  # copies whose own values are still those of the original; no depth is too deep for it
    while left:
        copy = left.pop()
        for place, below in list(copy.items() if isinstance(copy, dict) else enumerate(copy)):
            if isinstance(below, dict):
                copy[place] = {key: each for key, each in below.items() if not is_secret(str(key))}
            elif isinstance(below, list):
                copy[place] = list(below)
            if isinstance(below, dict | list):
                left.append(copy[place])
    return top[0]


_KEY_HOLDERS = ("tools", "mcp_servers")


def without_keys(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request without the keys that it opens servers with: in its own fields, and in those of its tools.

    What lies deeper, such as the `password` among the arguments of a tool, is content.
    """
    kept = _without_key_fields(request)
    for name in _KEY_HOLDERS:
        if isinstance(kept.get(name), list):
            kept[name] = [_without_key_fields(each) if isinstance(each, dict) else each for each in kept[name]]
    return kept


def _without_key_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if not is_secret(str(name))}
