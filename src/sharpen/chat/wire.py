"""JSON as networks send it: half characters, values of any type, fields that hold keys, and errors of servers.

Some servers write one half of an emoji's escape into one event and the other half into the next, which strict parsers
refuse. Texts are decoded with their halves, put together, and only then repaired.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar
from urllib.parse import unquote_plus

import msgspec

T = TypeVar("T")

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_decode_any = msgspec.json.Decoder().decode
# No server counts further; a store's numbers end at 64 bits.
_MAX_COUNT = 2**53


# -- half characters -----------------------------------------------------------------------------------


def may_hold_halves(data: bytes) -> bool:
    """Return True if the bytes hold the escape of half a character; its other half may stand beside it."""
    return b"\\u" in data and _HALF.search(data) is not None


def decode(data: bytes | str) -> Any:
    """Decode JSON and keep half characters as they are. Other errors are msgspec's, or a ValueError."""
    try:
        return _decode_any(data)
    except msgspec.DecodeError:
        raw = data.encode() if isinstance(data, str) else data
        if not may_hold_halves(raw):
            raise
        return _parse(raw)


def decoder_of(kind: type[T], *, strict: bool = True) -> Callable[[bytes], T]:
    """Return a function that decodes JSON into this type and keeps half characters as they are."""
    decode_strictly = msgspec.json.Decoder(kind, strict=strict).decode

    def read(data: bytes) -> T:
        try:
            return decode_strictly(data)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if not may_hold_halves(data):
                raise
            return msgspec.convert(_parse(data), kind, strict=strict)

    return read


def with_fields(body: bytes, fields: dict[str, Any]) -> bytes:
    """Return the JSON object with these fields set; half characters in it stay what they are."""
    return json.dumps(_parse(body) | fields).encode()


def mended(value: Any) -> Any:
    """Return the value with halves joined into characters; a half without its other half is replaced."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {mended(key): mended(each) for key, each in value.items()}
    if isinstance(value, list):
        return [mended(each) for each in value]
    return value


def _parse(data: bytes) -> Any:
    return json.loads(data.decode(), parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# -- values of any type --------------------------------------------------------------------------------


def dicts(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a list; nothing for any other value."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def count(value: Any) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value <= _MAX_COUNT else 0


def json_text(value: Any) -> str:
    """Return text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def weights_version_of(*places: Any) -> str | None:
    """Return the version of the weights that sampled, under the names that engines give it."""
    for place in places:
        if isinstance(place, dict):
            for found in (place.get("weights_version"), place.get("weight_version")):
                if isinstance(found, str | int) and found != "":
                    return str(found)
    return None


# -- fields that may hold a key: they are passed on and never written down -----------------------------

_KEY_NAME = re.compile(
    r"(?i)api[-_]?key|authorization|secret|password|credential|cookie|headers$|(access|auth|bearer)[-_]?token"
)
_KEY_HOLDERS = ("tools", "mcp_servers")


def is_secret(name: str) -> bool:
    """Return True for the name of a field that may hold a key, such as `authorization` or `headers`."""
    return _KEY_NAME.search(name) is not None


def query_without_secrets(query: str) -> str:
    """Return a URL's query without fields that may hold a key, otherwise as it was written."""
    fields = (field for field in query.split("&") if field)
    return "&".join(field for field in fields if not _is_secret_in_query(unquote_plus(field.partition("=")[0])))


def _is_secret_in_query(name: str) -> bool:
    """There a key is often just named `key`, and signatures grant access too."""
    return is_secret(name) or name.lower() in ("key", "token", "sig", "signature", "code")


def without_secrets(value: Any) -> Any:
    """Return a copy without fields that may hold a key, at any depth."""
    top = [value]
    left: list[Any] = [top]  # copies whose own values are still those of the original; a loop, for any depth
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


def without_keys(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request without the keys for other servers: in its own fields, and in those of its tools.

    What lies deeper, such as the `password` among the arguments of a tool, is content.
    """
    kept = _without_key_fields(request)
    for name in _KEY_HOLDERS:
        if isinstance(kept.get(name), list):
            kept[name] = [_without_key_fields(each) if isinstance(each, dict) else each for each in kept[name]]
    return kept


def _without_key_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if not is_secret(str(name))}


# -- errors as servers send them -----------------------------------------------------------------------

_MAX_ERROR_LENGTH = 1000
# Some servers repeat the key that they refuse.
_KEY_VALUE = re.compile(r"(?i)\b(bearer\s+)\S+|\b((?:sk|pk|rk|hf|gsk|xai|nvapi)[-_]|AIza)[\w\-*.]{6,}")


def error_in_body(status: int, body: bytes) -> str:
    """Return the reason of an answer with an error status, in any API's format."""
    try:
        message = mended(error_message(decode(body)))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        message = body[: 4 * _MAX_ERROR_LENGTH].decode("utf-8", "replace").strip()
    head = f"the upstream answered {status}"
    return f"{head}: {_without_key_values(message)}" if message else head


def error_in_stream(error: Any) -> str:
    """Return the reason of an error inside an answer."""
    return f"the upstream failed: {_without_key_values(error_message(error) or 'no reason was given')}"


def error_message(value: Any) -> str:
    """Return the message of an error: `error.message` (OpenAI, Anthropic), `message` (vLLM) or `detail` (FastAPI)."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return ""
    inner = next((value[key] for key in ("error", "message", "detail") if value.get(key)), "")
    return error_message(inner) or _list_text(inner) or str(value.get("code") or "")


def _list_text(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode() if isinstance(value, list) and value else ""
    except (TypeError, ValueError, OverflowError, RecursionError):
        return ""


def _without_key_values(message: str) -> str:
    # Cut first: the search is linear, but a body may be long.
    shown = message if len(message) <= _MAX_ERROR_LENGTH else message[:_MAX_ERROR_LENGTH] + "…"
    return _KEY_VALUE.sub(lambda found: f"{found[1] or found[2]}***", shown)
