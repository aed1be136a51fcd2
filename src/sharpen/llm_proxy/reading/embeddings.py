"""Reading answers of the embeddings API: what they cost and how long a vector is; the vectors are left out."""

from typing import Any

import msgspec

from ...chat.wire import error_in_stream
from ..calls import Said
from ..parts import as_text, usage_of, weights_version_of


class Embedded(Said):
    """What was read from an answer with embeddings."""

    dimensions: int | None = None


class _Vector(msgspec.Struct):
    embedding: msgspec.Raw = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    data: list[_Vector] | None = None
    id: Any = None
    model: Any = None
    usage: Any = None
    error: Any = None
    weights_version: Any = None
    weight_version: Any = None


_decode = msgspec.json.Decoder(_Body).decode


class EmbeddingsReader:
    """Reads one answer; this API has no streams."""

    def __init__(self, *, is_stream: bool = False) -> None:
        self.is_over = False
        self._said = Embedded()

    def add(self, data: bytes) -> None:
        body = _decode(data)
        self.is_over = body.data is not None
        own = {"weights_version": body.weights_version, "weight_version": body.weight_version}
        self._said = Embedded(
            response_id=as_text(body.id) or None,
            model=as_text(body.model) or None,
            usage=usage_of(body.usage),
            weights_version=weights_version_of(own),
            error=error_in_stream(body.error) if body.error else None,
            dimensions=_dimensions(bytes(body.data[0].embedding)) if body.data else None,
        )

    def said(self) -> Embedded:
        return self._said


def _dimensions(vector: bytes) -> int | None:
    """The length of a vector that is a list of numbers, or their 32-bit floats as base64."""
    if vector[:1] == b"[":
        return vector.count(b",") + 1 if vector.strip(b"[] \n\r\t") else 0
    if vector[:1] == b'"':
        return len(vector.strip(b'"').rstrip(b"=")) * 3 // 4 // 4
    return None
