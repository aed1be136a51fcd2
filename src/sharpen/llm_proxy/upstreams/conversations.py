"""Which upstream a conversation belongs to, found without remembering: rendezvous hashing by weight.

Only what stays when turns are appended counts, so that a conversation keeps its upstream, and with it the cache of its
prefix: the model, the attempt and its role, and the messages up to the first of the user. The prompts of `completions`
and the items of `responses` change as a whole from turn to turn; those of an attempt stay together by their place.
"""

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import msgspec

from ..calls import Call

_MOST_CHARACTERS = 4096


def key_of(call: Call) -> bytes:
    """The same for all turns of a conversation."""
    place = None if call.place is None else (call.place.rollout_id, call.place.attempt_id, call.place.role)
    return msgspec.json.encode([call.model, place, _opening(call)])


def share_of(key: bytes, upstream_id: str, weight: float) -> float:
    """How much an upstream wants a conversation; the highest gets it, by chance in proportion to its weight."""
    digest = hashlib.blake2b(key + upstream_id.encode(), digest_size=8).digest()
    chance = (int.from_bytes(digest, "big") + 1) / (2**64 + 1)
    return -weight / math.log(chance)


def _opening(call: Call) -> Any:
    request = call.request
    if call.api == "embeddings":
        return hashlib.blake2b(call.body, digest_size=8).hexdigest()  # no prefix is kept: spread them
    if call.api in ("chat", "messages"):
        return [_text(request.get("system")), *_up_to_the_user(request.get("messages"))]
    if call.place is not None:
        return None
    if call.api == "completions":
        return _cut(request.get("prompt"))[:256]
    asked = request.get("input")
    return [_text(request.get("instructions")), *(_up_to_the_user(asked) if isinstance(asked, list) else [_cut(asked)])]


def _up_to_the_user(messages: Any) -> Iterable[str]:
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            return
        yield _text(message.get("content"))
        if message.get("role") == "user":
            return


def _text(content: Any) -> str:
    """The words of a message. Marks that move from turn to turn, such as `cache_control`, are none."""
    if isinstance(content, list):
        return "".join(_part(part) for part in content)[:_MOST_CHARACTERS]
    return _cut(content)


def _part(part: Any) -> str:
    if isinstance(part, dict):
        text = part.get("text")
        kept = {name: value for name, value in part.items() if name != "cache_control"}
        return text if isinstance(text, str) else _cut(kept)
    return _cut(part)


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text[:_MOST_CHARACTERS]
