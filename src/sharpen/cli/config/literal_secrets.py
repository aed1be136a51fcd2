"""Literal secrets in a configuration. They are used but never saved: a saved configuration refers to a variable
instead, which has to be set before the run is repeated."""

import re

from ...secrets import looks_secret, without_secrets
from .sources import Path_

# Placeholders for servers that accept any key.
_NO_SECRETS = re.compile(r"(?:env:.*|empty|none|null|dummy|unused|not-?needed|no-?key|fake|local|test|x*|\*+)", re.I)
_PLAIN_HEADERS = re.compile(r"content-type|accept.*|user-agent|x-title|(?:http-)?referer", re.I)
_URL = re.compile(r"[\w+.-]+://\S+")
_DATA = ("_dataset", "_states")


def reference_for(path: Path_, value: object) -> str | None:
    """Return the reference that is saved instead of a value; None if it is not a secret. Tasks are never secrets."""
    if not isinstance(value, str) or _NO_SECRETS.fullmatch(value) or str(path[0]).endswith(_DATA):
        return None
    is_secret = _is_named_so(path) or (_URL.fullmatch(value) is not None and without_secrets(value) != value)
    return "${" + "_".join(["SECRET", *(_as_name(part) for part in path)]) + "}" if is_secret else None


def _is_named_so(path: Path_) -> bool:
    names = [part for part in path if isinstance(part, str)]
    if any(name.lower().endswith("headers") for name in names[:-1]):
        return _PLAIN_HEADERS.fullmatch(names[-1]) is None
    return looks_secret(names[-1])


def _as_name(part: str | int) -> str:
    return re.sub(r"\W", "_", str(part)).upper()
