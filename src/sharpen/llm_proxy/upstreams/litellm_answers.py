"""Answers of LiteLLM, written again in the form of the API that was called."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from ..calls import Api

_DONE = b"data: [DONE]\n\n"


def encoded(thing: Any) -> bytes:
    """The JSON of one of LiteLLM's objects."""
    if hasattr(thing, "model_dump"):
        thing = thing.model_dump(mode="json", exclude_none=True, warnings=False)
    return msgspec.json.encode(thing, enc_hook=str)


class WholeAnswer:
    """An answer that is already here."""

    def __init__(self, status: int, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> None:
        self.status = status
        self.headers: Sequence[tuple[str, str]] = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            *headers,
        ]
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body

    async def aclose(self) -> None:
        """Nothing is open."""


class StreamAnswer:
    """A stream, event by event. An error on its way cuts it: it never looks complete when it is not."""

    status = 200

    def __init__(self, stream: Any, api: Api, in_words: Callable[[Exception], str]) -> None:
        self.headers: Sequence[tuple[str, str]] = [("content-type", "text/event-stream; charset=utf-8")]
        self._stream, self._api, self._in_words = stream, api, in_words

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for event in self._stream:
                yield self._written(event)
        except Exception as error:  # noqa: BLE001 - whatever a hundred providers raise
            raise ConnectionResetError(self._in_words(error)) from None
        if self._api in ("chat", "completions"):
            yield _DONE

    def _written(self, event: Any) -> bytes:
        if isinstance(event, bytes | str):  # of `messages`: events as they are
            return event.encode() if isinstance(event, str) else event
        data = encoded(event)
        kind = event.get("type") if isinstance(event, dict) else getattr(event, "type", None)
        if self._api not in ("responses", "messages") or kind is None:
            return b"data: %b\n\n" % data
        return b"event: %b\ndata: %b\n\n" % (str(getattr(kind, "value", kind)).encode(), data)

    async def aclose(self) -> None:
        """LiteLLM's streams have more than one way to be closed, and some none."""
        close = getattr(self._stream, "aclose", None)
        if close is not None:
            await close()


def error_body(api: Api, status: int, message: str) -> bytes:
    """An error in the words of the API."""
    if api == "messages":
        return msgspec.json.encode({"type": "error", "error": {"type": "api_error", "message": message}})
    return msgspec.json.encode({"error": {"message": message, "type": "upstream_error", "code": str(status)}})
