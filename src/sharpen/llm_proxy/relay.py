"""Passing an answer on to the agent, piece by piece as it arrives.

Nothing is held back but the end: it is passed on when the span is stored. An agent that reads slowly slows the
upstream down, since the next piece is asked for when the last one was taken.
"""

import math
from collections.abc import AsyncIterator, Sequence

from starlette.types import Send

from .bookkeeping import Books, Passage
from .calls import Upstream, UpstreamAnswer
from .dialects import RawHeaders
from .reading.stream_end import StreamEnd
from .watching import Watch

# Of one connection; and what is set anew here.
_NOT_PASSED_ON = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-connection", "te", "trailer", "transfer-encoding",
     "upgrade", "x-sharpen-call-id"}
)  # fmt: skip
MAX_MASKED_BYTES = 2**20
_EMPTY = frozenset({204, 304})
_OF_A_BODY = _NOT_PASSED_ON | {"content-length"}  # of one that would have come


async def relay(
    passage: Passage,
    upstream: Upstream,
    answer: UpstreamAnswer,
    send: Send,
    *,
    books: Books,
    watch: Watch,
    chunk_seconds: float | None,
) -> None:
    """Returns when the whole answer is with the agent. Raises OSError or TimeoutError where the upstream broke off."""
    headers = passage.begin(upstream, answer)
    is_stream = "event-stream" in headers.get("content-type", "")
    if answer.status >= 400:
        answer = _Masked(answer, [each.encode() for each in passage.secrets()])
    left = _length(headers.get("content-length"), answer.status)
    way = _Way(passage, answer, send)
    if left == math.inf:
        await way.begin()  # else it leaves with the first piece, which saves a packet
    end = StreamEnd(passage.call.api) if is_stream else None
    too_slow = f"{upstream.name} stopped sending its response in time"
    watch.expect(chunk_seconds, too_slow)
    held = b""
    async for piece in answer:
        passage.feed(piece)
        left -= len(piece)
        if left <= 0:
            held += piece  # the last byte: a client stops reading here
            continue
        begin = None if end is None else end.find(piece)
        if end is None or begin is None:
            await way.pass_on(piece)
        else:
            await way.pass_on(piece[:begin])
            held += piece[begin:]
            if end.is_over:
                watch.lift()
                await books.note(passage)
                await way.pass_on(held)
                held, end = b"", None
        if chunk_seconds is not None:
            watch.expect(chunk_seconds, too_slow)
    watch.lift()  # an answer that was paid for reaches its agent, also where the store is slow
    await books.note(passage)
    await way.finish(held)


class _Masked:
    """An error without the keys that upstreams repeat in it: agents raise it, and it ends in logs and in the store.

    The one exception from "byte for byte". A key is overwritten in its own length, so the length of the body stays.
    """

    def __init__(self, answer: UpstreamAnswer, secrets: Sequence[bytes]) -> None:
        self._answer, self._secrets = answer, secrets
        self.status, self.headers = answer.status, answer.headers

    async def __aiter__(self) -> AsyncIterator[bytes]:
        kept = b""
        async for piece in self._answer:
            kept += piece
            if len(kept) > MAX_MASKED_BYTES:
                yield self._mask(kept)
                kept = b""
        yield self._mask(kept)

    def _mask(self, text: bytes) -> bytes:
        for secret in self._secrets:
            text = text.replace(secret, b"*" * len(secret))
        return text

    async def aclose(self) -> None:
        await self._answer.aclose()


class _Way:
    """From here to the agent."""

    __slots__ = ("_answer", "_passage", "_send")

    def __init__(self, passage: Passage, answer: UpstreamAnswer, send: Send) -> None:
        self._passage, self._answer, self._send = passage, answer, send

    async def begin(self) -> None:
        if not self._passage.is_answering:
            self._passage.is_answering = True
            headers = _head(self._passage, self._answer)
            await self._send({"type": "http.response.start", "status": self._answer.status, "headers": headers})

    async def pass_on(self, piece: bytes) -> None:
        if piece:
            await self.begin()
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def finish(self, piece: bytes) -> None:
        await self.begin()
        await self._send({"type": "http.response.body", "body": piece, "more_body": False})


def _head(passage: Passage, answer: UpstreamAnswer) -> RawHeaders:
    left_out = _OF_A_BODY if answer.status in _EMPTY else _NOT_PASSED_ON
    found = [
        (name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers if name not in left_out
    ]
    found.append((b"x-sharpen-call-id", passage.call.call_id.encode()))
    return found


def _length(declared: str | None, status: int) -> float:
    """How many bytes will come; infinite where only the end tells."""
    if status in _EMPTY:
        return 0
    return int(declared) if declared is not None and declared.isdigit() else math.inf
