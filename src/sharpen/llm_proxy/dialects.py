"""What the gateway itself says to agents, each in the words of the API that it speaks."""

import math
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from .calls import Refusal

Dialect = Literal["openai", "anthropic"]
RawHeaders = list[tuple[bytes, bytes]]

JSON_TYPE = (b"content-type", b"application/json")
_encode = msgspec.json.Encoder().encode
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(refusal: Refusal, dialect: Dialect) -> bytes:
    """The reason as JSON."""
    status, message = refusal.status, refusal.message
    usual = "invalid_request_error" if status < 500 else "api_error"
    if dialect == "anthropic":
        kind = _ANTHROPIC_TYPES.get(status, usual)
        return _encode({"type": "error", "error": {"type": kind, "message": message}})
    kind = _OPENAI_TYPES.get(status, usual)
    return _encode({"error": {"message": message, "type": kind, "param": None, "code": refusal.code}})


def error_headers(refusal: Refusal) -> RawHeaders:
    """When and whether to try again; the SDKs of both APIs follow these."""
    headers = [JSON_TYPE]
    if refusal.retry_after_seconds is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(refusal.retry_after_seconds))))
    if refusal.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if refusal.should_retry else b"false"))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return headers


def models_body(names: Iterable[str]) -> bytes:
    """The models as a list that clients of both APIs read."""
    data = [model_object(name) for name in names]
    ends = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
    return _encode({"object": "list", "data": data, "has_more": False, **ends})


def model_body(name: str) -> bytes:
    return _encode(model_object(name))


def model_object(name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "sharpen-gateway",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
    }
