"""Secrets that stand in a configuration as they are. They are used, and never written down: in a kept configuration
a reference stands for them, whose variable has to be set before the run is repeated."""

import re

from ...secrets import looks_secret, without_secrets
from .sources import Path_

# What people write where a server wants any key at all.
_NO_SECRETS = re.compile(r"(?:env:.*|empty|none|null|dummy|unused|not-?needed|no-?key|fake|local|test|x*|\*+)", re.I)
_PLAIN_HEADERS = re.compile(r"content-type|accept.*|user-agent|x-title|(?:http-)?referer", re.I)
_URL = re.compile(r"[\w+.-]+://\S+")
_DATA = ("_dataset", "_states")


def reference_for(path: Path_, value: object) -> str | None:
    """The reference that is kept in the place of a value; None where it is no secret. Tasks are data, and stay."""
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
