"""Requests and responses of any API as data.

Reading never changes what it is given. A request that is JSON is always read, without what is malformed in it; a
response never raises: what is wrong with it stands in `ParsedResponse.error`, beside everything that came before.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import InvalidInputError
from .anthropic import read_messages_request, read_messages_response
from .messages import Api, ParsedRequest, ParsedResponse, Sampling
from .openai import (
    prompt_token_ids,
    read_chat_request,
    read_chat_response,
    read_completions_request,
    read_embeddings_request,
    read_embeddings_response,
    read_responses_request,
    read_responses_response,
)
from .streams import EventStream, Joiner, joiner_for
from .wire import as_dict, as_text, decode, may_hold_halves, mended

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
_REQUESTS: dict[Api, Callable[[dict[str, Any], ParsedRequest], None]] = {
    "chat": read_chat_request,
    "completions": read_completions_request,
    "responses": read_responses_request,
    "embeddings": read_embeddings_request,
    "messages": read_messages_request,
}
_NUMBERS = {
    **{name: name for name in Sampling.__struct_fields__ if name != "stop"},
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
}
# Everything that a parsed request has a place for.
_KNOWN = frozenset(_NUMBERS) | {
    *("model", "messages", "prompt", "input", "instructions", "system", "tools", "functions", "dimensions"),
    *("stream", "stop", "stop_sequences", "encoding_format", "previous_response_id"),
}
_JSON_FORMATS = ("json_object", "json_schema", "json")


def parse_request(api: Api, body: bytes | dict[str, Any]) -> ParsedRequest:
    """Read the body of a request.

    Raises:
        InvalidInputError: The body is not a JSON object.
    """
    request = _object(body) if isinstance(body, bytes) else body
    parsed = ParsedRequest(api, str(request.get("model") or ""), sampling=sampling_of(request))
    _REQUESTS[api](request, parsed)
    parsed.is_stream = request.get("stream") is True
    parsed.output_type = _output_type(request)
    parsed.prompt_token_ids = prompt_token_ids(request)
    parsed.previous_response_id = _text_or_none(request.get("previous_response_id"))
    parsed.encoding_format = _text_or_none(request.get("encoding_format"))
    if _is_number(request.get("dimensions")):
        parsed.dimensions = request["dimensions"]
    parsed.other = {key: value for key, value in request.items() if key not in _KNOWN}
    return parsed


def sampling_of(request: dict[str, Any]) -> Sampling:
    """Return how a request wants its answer sampled; values that are not numbers are left out."""
    found: dict[str, Any] = {}
    for key, value in request.items():
        name = _NUMBERS.get(key)
        if name is not None and _is_number(value):
            found[name] = value
    if stop := request.get("stop") or request.get("stop_sequences"):
        stops = stop if isinstance(stop, list) else [stop]
        found["stop"] = [each for each in stops if isinstance(each, str)]
    return Sampling(**found)


def parse_response(api: Api, body: bytes | dict[str, Any]) -> ParsedResponse:
    """Read the body of a whole response."""
    try:
        return _read_whole(api, body)
    except _UNREADABLE as error:
        return ParsedResponse(error=f"the answer is malformed: {error}", is_complete=False)


def parse_stream(api: Api, data: bytes) -> ParsedResponse:
    """Read a recorded stream of server-sent events."""
    reader = ResponseReader(api, is_stream=True)
    reader.feed(data)
    return reader.finish()


class ResponseReader:
    """One response as it arrives: feed it every piece, then finish it once.

    `joined` is the body of the response afterwards; of a stream the one that its events make.
    """

    __slots__ = ("_api", "_error", "_events", "_has_halves", "_joiner", "_pieces", "_size", "joined")

    def __init__(self, api: Api, *, is_stream: bool) -> None:
        self._api = api
        self._events = EventStream() if is_stream else None
        self._joiner: Joiner | None = joiner_for(api) if is_stream else None
        self._pieces: list[bytes] = []
        self._size = 0
        self._error: str | None = None
        self._has_halves = False
        self.joined: bytes | dict[str, Any] = b""

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the body."""
        self._size += len(data)
        if self._events is None:
            self._pieces.append(data)
        else:
            self._add(self._events.feed(data))

    def finish(self, is_complete: bool = True) -> ParsedResponse:
        """Return what was read. `is_complete` says whether the body came to its end."""
        if self._events is None or self._joiner is None:
            self.joined = b"".join(self._pieces)
            can_read = is_complete and self._size
            found = parse_response(self._api, self.joined) if can_read else ParsedResponse(is_complete=False)
        else:
            if is_complete:
                self._add(self._events.end())
            self.joined = mended(self._joiner.body()) if self._has_halves else self._joiner.body()
            found = parse_response(self._api, self.joined)
            found.is_complete = self._joiner.is_over
            found.error = self._joiner.error or found.error or self._error
        found.is_complete = found.is_complete and is_complete
        if found.error is None and not found.is_complete:
            found.error = self._early_end(is_complete)
        return found

    def _add(self, events: list[bytes]) -> None:
        for event in events:
            self._has_halves = self._has_halves or may_hold_halves(event)
            try:
                assert self._joiner is not None
                self._joiner.add(event)
            except _UNREADABLE as error:
                self._error = self._error or f"the answer is malformed: {error}"

    def _early_end(self, is_complete: bool) -> str:
        if is_complete and self._size == 0:
            return "the answer is empty"
        if is_complete and self._events is None:
            return "the answer holds nothing that was said: it is not an answer of this API"
        return f"the answer ended early, after {self._size} bytes"


def _read_whole(api: Api, body: bytes | dict[str, Any]) -> ParsedResponse:
    if api == "embeddings":
        return read_embeddings_response(body if isinstance(body, bytes) else msgspec.json.encode(body))
    if isinstance(body, bytes) and may_hold_halves(body):
        body = mended(_object(body))
    if api in ("chat", "completions"):
        return read_chat_response(body)
    read = read_messages_response if api == "messages" else read_responses_response
    return read(_object(body) if isinstance(body, bytes) else body)


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInputError(f"the body is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInputError(f"the body is a {type(found).__name__}, not a JSON object")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _output_type(request: dict[str, Any]) -> str | None:
    """Return what kind of output is asked for, where it is not plain text."""
    inner = as_dict(request.get("text")).get("format") or as_dict(request.get("output_config")).get("format")
    wanted = as_dict(request.get("response_format") or inner or request.get("output_format"))
    if as_text(wanted.get("type")) in _JSON_FORMATS:
        return "json"
    modalities = request.get("modalities")
    return "speech" if isinstance(modalities, list) and "audio" in modalities else None
