"""One exchange of a gateway as it went over the wire: the agent's request, and the answer's bytes with their times.

Headers and keys are no part of it, except for the type and encoding that are needed to read the answer. Fields of a
request that may hold a key are left out.
"""

import base64
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from ...chat.wire import query_without_secrets, without_keys, without_secrets
from ...semconv import SHARPEN_LLM_EXCHANGE
from ...types import Span
from ..calls import Api, Call

_PREFIX = f"{SHARPEN_LLM_EXCHANGE}."
MAX_TAPE_BYTES = 32 * 1024 * 1024
_CHUNK_BYTES = 100  # that a chunk takes beside its own bytes


def key_of(api: Api, request: Mapping[str, Any]) -> str:
    """The same for requests with the same content, in whatever order their fields stand; `stream` counts too, keys to
    servers do not: they change, and nobody may guess them from a record."""
    content = msgspec.json.encode(without_keys(request), order="sorted")
    return hashlib.sha256(b"%b\n%b" % (api.encode(), content)).hexdigest()


class Exchange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request and its answer. Texts hold the very bytes; what is no text is kept in base64."""

    call_id: str
    time: float
    """When the request came, in seconds since 1970."""
    api: Api
    key: str
    request: str
    query: str = ""
    """What stood after the `?` of the URL; it is no content, so the key does not hold it."""
    status: int
    response: str
    is_base64: bool = False
    content_type: str = ""
    content_encoding: str | None = None
    is_stream: bool = False
    is_complete: bool = True
    chunk_bytes: list[int] = []
    """How many bytes came at a time."""
    chunk_seconds: list[float] = []
    """When each of them came, counted from the request."""
    rollout_id: str | None = None
    attempt_id: str | None = None
    role: str | None = None

    @property
    def body(self) -> bytes:
        """The answer's body, byte for byte."""
        return base64.b64decode(self.response) if self.is_base64 else self.response.encode()

    @property
    def headers(self) -> list[tuple[str, str]]:
        """What is needed to read the body."""
        found = [("content-type", self.content_type), ("content-encoding", self.content_encoding)]
        return [(name, value) for name, value in found if value]

    def chunks(self) -> Iterator[tuple[float, bytes]]:
        """The body as it arrived: seconds since the request, and bytes."""
        body = self.body
        if sum(self.chunk_bytes) != len(body) or len(self.chunk_bytes) != len(self.chunk_seconds):
            # A redaction changed the text: nobody knows where its parts were cut.
            yield from [(0.0, body)] if body else []
            return
        ends = accumulate(self.chunk_bytes)
        for seconds, size, end in zip(self.chunk_seconds, self.chunk_bytes, ends, strict=True):
            yield seconds, body[end - size : end]


class Tape:
    """Takes down an exchange while it goes on."""

    def __init__(self, call: Call, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._call, self._clock = call, clock
        # The call began a little earlier than the tape.
        self._start = clock() - max(0.0, time.time() - call.start_time)
        self._status = 0
        self._headers: dict[str, str] = {}
        self._chunks: list[bytes] = []
        self._seconds: list[float] = []
        self._size = len(call.body)

    @property
    def is_too_long(self) -> bool:
        """Whether there was more than is kept in memory for one call; then there is no exchange."""
        return self._size > MAX_TAPE_BYTES

    def begin(self, status: int, headers: Sequence[tuple[str, str]]) -> None:
        """An answer began. After a retry only the last answer counts."""
        self._status, self._headers = status, {name.lower(): value for name, value in headers}
        self._chunks, self._seconds = [], []
        self._size = len(self._call.body)

    def feed(self, data: bytes) -> None:
        """A part of the body arrived."""
        self._size += len(data) + _CHUNK_BYTES
        if self.is_too_long:
            self._chunks, self._seconds = [], []
            return
        self._chunks.append(bytes(data))
        self._seconds.append(round(self._clock() - self._start, 6))

    def exchange(self, *, is_complete: bool) -> Exchange:
        """What was taken down."""
        call, place = self._call, self._call.place
        response, is_base64 = _as_text(b"".join(self._chunks))
        return Exchange(
            call_id=call.call_id,
            time=call.start_time,
            api=call.api,
            key=key_of(call.api, call.request),
            request=_request_text(call),
            query=query_without_secrets(call.query),
            status=self._status,
            response=response,
            is_base64=is_base64,
            content_type=self._headers.get("content-type", ""),
            content_encoding=self._headers.get("content-encoding"),
            is_stream=call.is_stream,
            is_complete=is_complete,
            chunk_bytes=[len(chunk) for chunk in self._chunks],
            chunk_seconds=self._seconds,
            rollout_id=place.rollout_id if place else None,
            attempt_id=place.attempt_id if place else None,
            role=place.role if place else None,
        )


def exchange_attributes(exchange: Exchange) -> dict[str, Any]:
    """The exchange as attributes of its span, which knows rollout and attempt by itself."""
    fields = msgspec.structs.asdict(exchange)
    left_out = ("rollout_id", "attempt_id")
    return {_PREFIX + name: value for name, value in fields.items() if value is not None and name not in left_out}


def exchange_in(attributes: Mapping[str, Any], *, rollout_id: str | None, attempt_id: str | None) -> Exchange | None:
    """The exchange that attributes hold; None where there is none, or a redaction took parts of it away."""
    fields = {name.removeprefix(_PREFIX): each for name, each in attributes.items() if name.startswith(_PREFIX)}
    try:
        return msgspec.convert(fields | {"rollout_id": rollout_id, "attempt_id": attempt_id}, Exchange)
    except msgspec.ValidationError:
        return None


def exchange_of_span(span: Span) -> Exchange | None:
    """The exchange that a span of the gateway holds, if it does."""
    return exchange_in(span.attributes, rollout_id=span.rollout_id, attempt_id=span.attempt_id)


def _as_text(data: bytes) -> tuple[str, bool]:
    try:
        return data.decode(), False
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), True


def _request_text(call: Call) -> str:
    """The agent's own spelling, unless it must not be written."""
    text, is_base64 = _as_text(call.body)
    kept = without_secrets(call.request)
    return msgspec.json.encode(kept).decode() if is_base64 or kept != call.request else text
