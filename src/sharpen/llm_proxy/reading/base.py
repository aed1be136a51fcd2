"""Reading an answer while it passes by.

A reading never changes what it is fed, never raises, and tells what it could: an error of the upstream, malformed JSON
and a stream that was cut are told in `Said.error`, beside everything that came before them.
"""

import zlib
from typing import Any, Protocol

import msgspec

from ...chat.streams import EventStream
from ...chat.wire import error_in_body, may_hold_halves, mended
from ..calls import Api, Said
from .chat import ChatReader
from .embeddings import EmbeddingsReader
from .messages import MessagesReader
from .responses import ResponsesReader

# What reading JSON of the wrong shape can end in.
_UNREADABLE = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    RecursionError,
)
_READERS: dict[Api, type[ChatReader | ResponsesReader | EmbeddingsReader | MessagesReader]] = {
    "chat": ChatReader,
    "completions": ChatReader,
    "responses": ResponsesReader,
    "embeddings": EmbeddingsReader,
    "messages": MessagesReader,
}
_WITHOUT_BODY = (204, 205)  # there is nothing to say, and that is the answer
# Longer answers pass, but only their beginning is recorded.
MAX_BYTES = 64 * 1024 * 1024


class Reader(Protocol):
    """Understands the answers of one API: whole ones, and events of streamed ones."""

    @property
    def is_over(self) -> bool:
        """Whether the last event, or a whole body with an answer in it, was read."""
        ...

    def add(self, data: bytes) -> None:
        """Read one event, or the whole body."""
        ...

    def said(self) -> Said: ...


def reading_for(
    api: Api,
    content_type: str,
    *,
    status: int = 200,
    content_encoding: str = "",
    weights_version: str | None = None,
) -> "Reading":
    """A reading of one answer; `weights_version` is what its headers say, where the body says nothing."""
    is_stream = "event-stream" in content_type.lower() and status < 300
    return Reading(_READERS[api](is_stream=is_stream), is_stream, status, content_encoding, weights_version)


class Reading:
    """One answer as it arrives. Feed it every piece, then finish it once."""

    __slots__ = (
        "_coding",
        "_error",
        "_events",
        "_has_given_up",
        "_has_halves",
        "_pieces",
        "_reader",
        "_size",
        "_status",
        "_weights_version",
    )

    def __init__(
        self, reader: Reader, is_stream: bool, status: int, content_encoding: str, weights_version: str | None
    ) -> None:
        self._reader = reader
        self._events = EventStream() if is_stream else None
        self._status = status
        self._coding = _Coding(content_encoding) if content_encoding not in ("", "identity") else None
        self._weights_version = weights_version
        self._pieces: list[bytes] = []
        self._size = 0
        self._error: str | None = None
        self._has_given_up = False
        self._has_halves = False

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the body, as they came from the upstream."""
        if self._has_given_up:
            return
        try:
            data = data if self._coding is None else self._coding.decoded(data, MAX_BYTES + 1)
        except (zlib.error, ValueError) as error:
            self._give_up(f"the response cannot be decompressed: {error}")
            return
        self._size += len(data)
        if self._size > MAX_BYTES:
            self._give_up(f"the response exceeds {MAX_BYTES} bytes: only its beginning was read")
        elif self._events is None:
            self._pieces.append(data)
        else:
            for event in self._events.feed(data):
                self._read(event)

    def _give_up(self, reason: str) -> None:
        self._fail(reason)
        self._has_given_up = True

    def finish(self, is_complete: bool) -> Said:
        """What was said. `is_complete` tells whether the body came to its end."""
        if self._status >= 300:
            return Said(error=error_in_body(self._status, b"".join(self._pieces)), is_complete=is_complete)
        if self._size == 0 and self._status in _WITHOUT_BODY:
            return Said(is_complete=is_complete)
        if is_complete and not self._has_given_up and self._size:
            for event in self._events.end() if self._events is not None else [b"".join(self._pieces)]:
                self._read(event)
        said = self._said()
        said.is_complete = is_complete and self._reader.is_over
        said.error = said.error or self._error or (None if said.is_complete else self._early_end(is_complete))
        said.weights_version = said.weights_version or self._weights_version
        return said

    def _read(self, data: bytes) -> None:
        self._has_halves = self._has_halves or may_hold_halves(data)
        try:
            self._reader.add(data)
        except _UNREADABLE as error:
            self._fail(f"the response is malformed: {error}")

    def _said(self) -> Said:
        try:
            said = self._reader.said()
        except _UNREADABLE as error:
            return Said(error=f"the response is malformed: {error}")
        if self._has_halves:
            for name in said.__struct_fields__:
                setattr(said, name, mended(getattr(said, name)))
        has_tokens = said.usage is not None and said.usage.output_tokens > 0
        said.has_begun = has_tokens or any(message["parts"] for message in said.output_messages)
        return said

    def _fail(self, reason: str) -> None:
        self._error = self._error or reason

    def _early_end(self, is_complete: bool) -> str:
        if is_complete and self._size == 0:
            return "the response is empty"
        if is_complete and self._events is None:
            return "the response has no output in the format of this API"
        return f"the response ended early, after {self._size} bytes"


class _Coding:
    """Unpacks a body that is sent packed."""

    def __init__(self, name: str) -> None:
        self._name = name.strip().lower()
        self._head = b""
        self._unpack: Any = None

    def decoded(self, data: bytes, max_bytes: int) -> bytes:
        if self._unpack is None:
            # The first two bytes tell the kind.
            self._head, data = b"", self._head + data
            if len(data) < 2:
                self._head = data
                return b""
            self._unpack = zlib.decompressobj(wbits=self._window(data))
        found: bytes = self._unpack.decompress(data, max_bytes)
        return found

    def _window(self, data: bytes) -> int:
        if self._name not in ("gzip", "x-gzip", "deflate"):
            raise ValueError(f"the content encoding {self._name[:40]!r} is not gzip or deflate")
        has_header = data[0] & 0x0F == 8 and int.from_bytes(data[:2]) % 31 == 0
        # Some servers send deflate without its header; anything else tells by itself what it is.
        return -15 if self._name == "deflate" and not has_header else 47
