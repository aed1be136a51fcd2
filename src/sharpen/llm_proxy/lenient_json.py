"""JSON that holds halves of characters, which strict parsers refuse and many servers send.

An emoji is two escapes in JSON. A server that cuts its text by tokens can write one of them into one event and the
other into the next. Texts are read as they are, put together, and only then mended.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec

T = TypeVar("T")

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_decode_any = msgspec.json.Decoder().decode


def may_hold_halves(data: bytes) -> bool:
    """Whether it holds the escape of a half; it may have its other half beside it."""
    return b"\\u" in data and _HALF.search(data) is not None


def decode(data: bytes | str) -> Any:
    """The value, with halves as they are. What is wrong in another way is msgspec's error, or a ValueError."""
    try:
        return _decode_any(data)
    except msgspec.DecodeError:
        raw = data.encode() if isinstance(data, str) else data
        if not may_hold_halves(raw):
            raise
        return _parsed(raw)


def decoder_of(kind: type[T], *, strict: bool = True) -> Callable[[bytes], T]:
    """Reads JSON as a value of this type, with halves as they are."""
    decode_strictly = msgspec.json.Decoder(kind, strict=strict).decode

    def read(data: bytes) -> T:
        try:
            return decode_strictly(data)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            if not may_hold_halves(data):
                raise
            return msgspec.convert(_parsed(data), kind, strict=strict)

    return read


def with_fields(body: bytes, fields: dict[str, Any]) -> bytes:
    """An object with other fields; halves in it stay what they are."""
    return json.dumps(_parsed(body) | fields).encode()


def mended(value: Any) -> Any:
    """The same value with halves put together; one that stays alone is replaced."""
    if isinstance(value, str):
        return _mended_text(value)
    if isinstance(value, dict):
        return {mended(key): mended(each) for key, each in value.items()}
    if isinstance(value, list):
        return [mended(each) for each in value]
    return value


def _mended_text(text: str) -> str:
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _parsed(data: bytes) -> Any:
    return json.loads(data.decode(), parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
