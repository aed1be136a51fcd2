"""The group of a rollout, in a column of its own: searches find it by an index."""

import hashlib
from typing import Any

import msgspec

LONGEST = 500  # bytes; an index takes no more than some 2,000


class _Metadata(msgspec.Struct):
    group: Any = None


def group_name(metadata: str | None) -> str | None:
    """The JSON text of the group that this metadata, itself a JSON text, names; JSON, since a group may hold a NUL."""
    if metadata is None or '"group":' not in metadata:
        return None
    group = msgspec.json.decode(metadata, type=_Metadata).group
    return group_key(group) if isinstance(group, str) else None


def group_key(group: str) -> str:
    """The group as the column holds it: its JSON text, or what stands for one that is too long for an index."""
    text = msgspec.json.encode(group)
    return text.decode() if len(text) <= LONGEST else hashlib.sha256(text).hexdigest()
