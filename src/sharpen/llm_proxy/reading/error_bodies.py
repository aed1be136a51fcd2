"""Errors as upstreams tell them, in words that may be written down."""

import re
from typing import Any

import msgspec

from ..lenient_json import decode, mended

_MAX_LENGTH = 1000
# Some upstreams repeat the key that they refuse.
_SECRET = re.compile(r"(?i)\b(bearer\s+)\S+|\b((?:sk|pk|rk|hf|gsk|xai|nvapi)[-_]|AIza)[\w\-*.]{6,}")


def error_in_body(status: int, body: bytes) -> str:
    """The reason of an answer that is an error, whatever the dialect of its body."""
    try:
        message = mended(error_message(decode(body)))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        message = body[: 4 * _MAX_LENGTH].decode("utf-8", "replace").strip()
    return f"the upstream answered {status}: {_safe(message)}" if message else f"the upstream answered {status}"


def error_in_stream(error: Any) -> str:
    """The reason of an error that came inside an answer."""
    return f"the upstream failed: {_safe(error_message(error) or 'no reason was given')}"


def error_message(value: Any) -> str:
    """OpenAI has `error.message`, Anthropic too, vLLM once had `message`, FastAPI has `detail`."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return ""
    inner = next((value[key] for key in ("error", "message", "detail") if value.get(key)), "")
    return error_message(inner) or _as_text(inner) or str(value.get("code") or "")


def _as_text(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode() if isinstance(value, list) and value else ""
    except (TypeError, ValueError, OverflowError, RecursionError):
        return ""


def _safe(message: str) -> str:
    # Cut first: the search is linear, but a body may be long.
    shown = message if len(message) <= _MAX_LENGTH else message[:_MAX_LENGTH] + "…"
    return _SECRET.sub(lambda found: f"{found[1] or found[2]}***", shown)
