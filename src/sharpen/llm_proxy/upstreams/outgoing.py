"""What goes out to an upstream for a call: the client's bytes, changed only where they must be."""

import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from ...chat.wire import may_hold_halves, with_fields
from ..calls import Api, Call
from ..models.keys import resolve, variable_of
from ..models.model_entry import ModelEntry
from ..models.sampling import missing_defaults

ANTHROPIC_VERSION = "2023-06-01"
CONNECTION_HEADERS = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_KEY_HEADERS = frozenset(("authorization", "x-api-key", "api-key", "x-goog-api-key"))
ROLLOUT_HEADER, ATTEMPT_HEADER = "x-sharpen-rollout-id", "x-sharpen-attempt-id"
_NOT_PASSED_ON = (
    CONNECTION_HEADERS
    | _KEY_HEADERS
    | {"host", "content-length", "cookie", "accept-encoding", "expect", ROLLOUT_HEADER, ATTEMPT_HEADER}
)
# Of the answer: cookies and rules of the upstream's host mean nothing to a client of the gateway.
_NOT_PASSED_BACK = CONNECTION_HEADERS | {"set-cookie", "alt-svc", "strict-transport-security"}


def changes_of(call: Call, entry: ModelEntry) -> dict[str, Any]:
    """Fields of the request that the entry sets: another name of the model, defaults that are missing."""
    changes = missing_defaults(call.api, call.request, entry.defaults)
    model = entry.upstream_model(call.model)
    return changes if model == call.model else {"model": model, **changes}


def body_with(call: Call, changes: Mapping[str, Any]) -> bytes:
    """The client's bytes with these fields. Nothing else of them changes where the fields are new."""
    if not changes:
        return call.body
    body = call.body.rstrip()
    if not call.request or any(name in call.request for name in changes) or not body.endswith(b"}"):
        if may_hold_halves(body):
            return with_fields(body, dict(changes))
        return msgspec.json.encode({**call.request, **changes})
    return body[:-1] + b"," + msgspec.json.encode(changes)[1:]


def headers_for(call: Call, entry: ModelEntry, *, passes_keys: bool, is_same_body: bool) -> list[tuple[str, str]]:
    """The client's headers without its connection and its key, and those of the entry."""
    headers = {name: value for name, value in call.headers.items() if name not in _NOT_PASSED_ON}
    for name in call.headers.get("connection", "").split(","):
        headers.pop(name.strip().lower(), None)
    if not is_same_body:
        headers.pop("content-encoding", None)
    headers.setdefault("content-type", "application/json")
    headers["accept-encoding"] = "identity"
    if entry.provider == "anthropic" and call.api == "messages":
        headers.setdefault("anthropic-version", ANTHROPIC_VERSION)
    headers |= credentials(call.headers, call.api, entry, passes_keys=passes_keys)
    return list(headers.items())


def place_headers(call: Call) -> list[tuple[str, str]]:
    """Whose call it is, for an engine of ours: it samples the same again when the rollout is repeated."""
    if call.place is None:
        return []
    return [(ROLLOUT_HEADER, quote(call.place.rollout_id)), (ATTEMPT_HEADER, quote(call.place.attempt_id))]


def credentials(client: Mapping[str, str], api: Api, entry: ModelEntry, *, passes_keys: bool) -> dict[str, str]:
    """The headers that open the upstream: the entry's, or with `passes_keys` the client's own."""
    found: dict[str, str] = {}
    if entry.api_key is not None:
        key = resolve(entry.api_key, what=f"api_key of {entry.model_name}")
        if api == "messages":
            found["x-api-key"] = key
        if api != "messages" or entry.provider != "anthropic":
            found["authorization"] = f"Bearer {key}"
    elif passes_keys:
        found = {name: value for name, value in client.items() if name in _KEY_HEADERS}
    for name, value in entry.headers.items():
        found[name.lower()] = resolve(value, what=f"headers[{name!r}] of {entry.model_name}")
    return found


def secrets_of(client: Mapping[str, str], entry: ModelEntry | None) -> list[str]:
    """What nobody may read of a call that somebody repeats: the keys that were sent with it, and headers of the entry.

    Short ones, and plain words such as `anything`, stand in for a key that nobody asks for: they open nothing.
    """
    found = [word for name in _KEY_HEADERS if name in client for word in client[name].split()]
    if entry is not None:
        written = [entry.api_key or "", *entry.headers.values()]
        texts = [_read(text) for text in written]
        found += [part for text in texts for part in (text, text.partition(" ")[2])]
    return sorted({each for each in found if _may_be_secret(each)}, key=len, reverse=True)


def _read(text: str) -> str:
    variable = variable_of(text)
    return (text if variable is None else os.environ.get(variable, "")).strip()


def _may_be_secret(text: str) -> bool:
    return len(text) >= 8 and not (text.isalpha() and len(text) < 16)


def passed_back(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Headers of an answer that concern the client."""
    return [(name, value) for name, value in headers if name not in _NOT_PASSED_BACK]
