"""Requests and responses of any API as data, whole or as they arrive in a stream of server-sent events.

Reading never changes what it is given. A request that is JSON is always read, without what is malformed in it; a
response never raises: what is wrong with it stands in `ParsedResponse.error`, beside everything that came before. The
events of a stream are joined into the body that the server would have sent without streaming, as far as it is read,
so both are read by the same code. Joiners keep half characters, since the other half may be in the next event.

`parse_request` and `parse_response` are what the gateway and the engine server will read with; until then their own
readers must agree, which `tests/chat` checks.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from ..errors import InvalidInputError
from .anthropic import read_messages_request, read_messages_response
from .messages import Api, ParsedRequest, ParsedResponse, Sampling
from .openai import (
    NUMBERS,
    ChatChoice,
    arguments_text,
    prompt_token_ids,
    read_chat_request,
    read_chat_response,
    read_embeddings_response,
    read_responses_request,
    read_responses_response,
    read_texts_request,
    split_content,
    token_ids_of,
)
from .wire import as_dict, as_text, count, decode, dicts, error_in_stream, may_hold_halves, mended, weights_version_of

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
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
    "completions": read_texts_request,
    "responses": read_responses_request,
    "embeddings": read_texts_request,
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
        if api == "embeddings":
            return read_embeddings_response(body if isinstance(body, bytes) else msgspec.json.encode(body))
        if isinstance(body, bytes) and may_hold_halves(body):
            body = mended(_object(body))
        if api in ("chat", "completions"):
            return read_chat_response(body)
        read = read_messages_response if api == "messages" else read_responses_response
        return read(_object(body) if isinstance(body, bytes) else body)
    except _UNREADABLE as error:
        return ParsedResponse(error=f"the response is malformed: {error}", is_complete=False)


def parse_stream(api: Api, data: bytes) -> ParsedResponse:
    """Read a recorded stream of server-sent events."""
    reader = ResponseReader(api, is_stream=True)
    reader.feed(data)
    return reader.finish()


class ResponseReader:
    """One response as it arrives: feed it every piece, then finish it once."""

    __slots__ = ("_api", "_error", "_events", "_has_halves", "_joiner", "_pieces", "_size")

    def __init__(self, api: Api, *, is_stream: bool) -> None:
        self._api = api
        self._events = EventStream() if is_stream else None
        self._joiner = _JOINERS.get(api, ChatJoiner)()
        self._pieces: list[bytes] = []
        self._size = 0
        self._error: str | None = None
        self._has_halves = False

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the body."""
        self._size += len(data)
        if self._events is None:
            self._pieces.append(data)
        else:
            self._add(self._events.feed(data))

    def finish(self, is_complete: bool = True) -> ParsedResponse:
        """Return what was read. `is_complete` says whether the body came to its end."""
        if self._events is None:
            body = b"".join(self._pieces)
            found = parse_response(self._api, body) if is_complete and body else ParsedResponse(is_complete=False)
        else:
            if is_complete:
                self._add(self._events.end())
            joined = self._joiner.body()
            found = parse_response(self._api, mended(joined) if self._has_halves else joined)
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
                self._joiner.add(event)
            except _UNREADABLE as error:
                self._error = self._error or f"the response is malformed: {error}"

    def _early_end(self, is_complete: bool) -> str:
        if is_complete and self._size == 0:
            return "the response is empty"
        if is_complete and self._events is None:
            return "the response has no content: it is not a response of this API"
        return f"the response ended early, after {self._size} bytes"


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


# -- events --------------------------------------------------------------------------------------------


class EventStream:
    """Splits a stream of bytes, cut anywhere, into the data of its server-sent events.

    The names of events are left out: they stand in the data too, in every API that is read here.
    """

    __slots__ = ("_data", "_is_after_cr", "_is_at_start", "_rest")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._is_after_cr = False
        self._is_at_start = True

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of the events that end in this piece, in their order; events without data give none."""
        if self._is_after_cr or b"\r" in piece:
            piece = self._with_plain_ends(piece)
        if b"\n" not in piece:
            # Kept apart until the line ends: a long line in many pieces is not copied with each of them.
            self._rest.append(piece)
            return []
        lines = b"".join([*self._rest, piece]).split(b"\n")
        self._rest = [lines.pop()]
        return self._read(lines)

    def end(self) -> list[bytes]:
        """Return what the last lines hold where the stream ends without the blank line that ends an event."""
        return self._read([b"".join(self._rest), b""])

    def _with_plain_ends(self, piece: bytes) -> bytes:
        """Lines may end with CR, LF or both; JSON holds neither as it is."""
        if self._is_after_cr and piece[:1] == b"\n":
            piece = piece[1:]
            self._is_after_cr = False
        if piece:
            self._is_after_cr = piece[-1:] == b"\r"
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _read(self, lines: list[bytes]) -> list[bytes]:
        if self._is_at_start:
            self._is_at_start = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        found = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                found.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
        return [data for data in found if data]


def _event_of(data: bytes) -> dict[str, Any]:
    event = decode(data)
    if not isinstance(event, dict):
        raise ValueError(f"an event is {type(event).__name__}, not an object")
    return event


# A joiner has `add`, which takes the data of one event, and raises where it is malformed but keeps what came before;
# `body`, the response so far, empty where nothing of it has come; `is_over`, True at its end; and `error`, the first
# error that came as an event.

# -- chat and completions ------------------------------------------------------------------------------


class ChatJoiner:
    """Joins the chunks of chat and completions."""

    def __init__(self) -> None:
        self.error: str | None = None
        self._is_done = False
        self._outer: dict[str, Any] = {}
        self._choices: dict[int, _JoinedChoice] = {}

    @property
    def is_over(self) -> bool:
        """Not every server ends its stream with the mark; then the choices say it."""
        choices = self._choices.values()
        return self._is_done or (bool(choices) and all(choice.finish_reason for choice in choices))

    def add(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._is_done = True
            return
        event, outer = _event_of(data), self._outer
        for key in ("id", "model"):
            if event.get(key) and key not in outer:
                outer[key] = event[key]
        if event.get("usage"):
            outer["usage"] = event["usage"]
        if event.get("error"):
            self.error = self.error or error_in_stream(event["error"])
        if "prompt_token_ids" not in outer and (ids := token_ids_of(event.get("prompt_token_ids"))):
            outer["prompt_token_ids"] = ids
        version = weights_version_of(event, event.get("metadata"), event.get("meta_info"), event.get("sglext"))
        if version is not None:
            outer.setdefault("weights_version", version)
        choices = event.get("choices")
        if choices is not None and not isinstance(choices, list):
            raise ValueError(f"choices is a {type(choices).__name__}, not a list")
        for given in dicts(choices):
            if "meta_info" in given and (found := weights_version_of(given["meta_info"])) is not None:
                outer.setdefault("weights_version", found)
            index = int(given.get("index") or 0)
            choice = self._choices.get(index) or self._choices.setdefault(index, _JoinedChoice())
            choice.add(given)
            if not NUMBERS.isdisjoint(given):
                # The version in an event is that of its own tokens.
                choice.add_numbers(given, version or outer.get("weights_version"))

    def body(self) -> dict[str, Any]:
        version = self._outer.get("weights_version")
        choices = [self._choices[index].body(index, version) for index in sorted(self._choices)]
        return {**self._outer, "choices": choices} if self._outer or choices else {}


class _JoinedChoice:
    """What the events of one choice add up to."""

    def __init__(self) -> None:
        self.finish_reason = ""
        self._fields: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._calls: list[_JoinedCall] = []
        self._call_at: dict[Any, _JoinedCall] = {}
        self._function: _JoinedCall | None = None
        self._logprobs: dict[str, list[Any]] = {}
        self._token_ids: list[int] = []
        self._versions: list[str | None] = []

    def add(self, given: dict[str, Any]) -> None:
        self.finish_reason = as_text(given.get("finish_reason")) or self.finish_reason
        delta, message = given.get("delta"), given.get("message")
        if isinstance(given.get("text"), str):
            self._add_text("text", given["text"])
        elif isinstance(delta, dict):
            self._add_delta(delta)
        elif isinstance(message, dict):
            calls = [{**call, "index": number} for number, call in enumerate(dicts(message.get("tool_calls")))]
            self._add_delta({**message, "tool_calls": calls})

    def _add_text(self, name: str, text: str) -> None:
        if name in self._texts:
            self._texts[name].append(text)
        else:
            self._texts[name] = [text]

    def _add_delta(self, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if key == "content" and isinstance(value, str):
                self._add_text(key, value)
            elif key == "content" and value:
                words, thoughts = split_content(value)
                self._add_text("content", words)
                self._add_text("reasoning_content", thoughts)
            elif key == "refusal":
                self._add_text(key, as_text(value))
            elif key == "reasoning_content" or (key == "reasoning" and not delta.get("reasoning_content")):
                # Engines have either name; where both are sent they say the same.
                self._add_text("reasoning_content", as_text(value))
            elif key == "tool_calls":
                for call in dicts(value):
                    self._add_call(call, call.get("index"))
            elif key == "function_call" and isinstance(value, dict):
                self._function = self._function or _JoinedCall()
                self._function.add({}, value)
            elif key == "audio" and isinstance(value, dict):
                known = as_dict(self._fields.get(key))
                names = ("data", "transcript")
                self._fields[key] = {name: as_text(known.get(name)) + as_text(value.get(name)) for name in names}

    def _add_call(self, call: dict[str, Any], index: Any) -> None:
        inner = as_dict(call.get("function") or call.get("custom"))
        if not isinstance(index, int):
            # Without a number, an id begins the next call.
            index = len(self._calls) if call.get("id") or not self._calls else len(self._calls) - 1
        known = self._call_at.get(index)
        # Some servers give every call the number 0.
        is_next = known is not None and known.name and inner.get("name") and call.get("id") not in (None, known.id)
        if known is None or is_next:
            known = self._call_at[index] = _JoinedCall()
            self._calls.append(known)
        known.add(call, inner)

    def add_numbers(self, given: dict[str, Any], version: str | None) -> None:
        try:
            choice = msgspec.convert(given, ChatChoice, strict=False)
        except msgspec.ValidationError:
            return  # numbers of the wrong kind cost their event alone
        ids, versions = choice.token_ids or [], choice.weights_versions or []
        self._token_ids += ids
        self._versions += versions if len(versions) == len(ids) else [version] * len(ids)
        if choice.prompt_token_ids:
            self._fields["prompt_token_ids"] = choice.prompt_token_ids
        for key, value in as_dict(given.get("logprobs")).items():
            if isinstance(value, list):
                self._logprobs.setdefault(key, []).extend(value)

    def body(self, index: int, version: str | None) -> dict[str, Any]:
        message: dict[str, Any] = {name: "".join(pieces) for name, pieces in self._texts.items()}
        if "audio" in self._fields:
            message["audio"] = self._fields["audio"]
        if self._calls:
            message["tool_calls"] = [call.body() for call in self._calls]
        if self._function is not None:
            message["function_call"] = self._function.inner()
        return {
            "index": index,
            "text": message.get("text"),
            "message": message,
            "finish_reason": self.finish_reason,
            "logprobs": self._logprobs or None,
            "token_ids": self._token_ids,
            "prompt_token_ids": self._fields.get("prompt_token_ids"),
            "weights_versions": [each or version for each in self._versions] if any(self._versions) else None,
        }


class _JoinedCall:
    def __init__(self) -> None:
        self.id: Any = None
        self.name: Any = None
        self._kind = "function"
        self._arguments: list[str] = []

    def add(self, call: dict[str, Any], inner: dict[str, Any]) -> None:
        self.id = self.id or call.get("id")
        self.name = self.name or inner.get("name")
        self._kind = "custom" if call.get("type") == "custom" or "custom" in call else self._kind
        self._arguments.append(arguments_text(inner.get("arguments", inner.get("input"))))

    def inner(self) -> dict[str, Any]:
        return {"name": self.name, "input" if self._kind == "custom" else "arguments": "".join(self._arguments)}

    def body(self) -> dict[str, Any]:
        return {"id": self.id, "type": self._kind, self._kind: self.inner()}


# -- Anthropic's messages ------------------------------------------------------------------------------


class MessagesJoiner:
    """Joins the events of a message of Anthropic's API."""

    _DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}

    def __init__(self) -> None:
        self.error: str | None = None
        self.is_over = False
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._added: dict[tuple[int, str], list[str]] = {}

    def add(self, data: bytes) -> None:
        if data == b"[DONE]":
            return
        event = _event_of(data)
        if event.get("type") == "error" or event.get("error"):
            self.error = self.error or error_in_stream(event)
            return
        index, delta = count(event.get("index")), as_dict(event.get("delta"))
        match event.get("type"):
            case "message_start":
                self._message = dict(as_dict(event.get("message")))
                self._blocks = {number: dict(block) for number, block in enumerate(dicts(self._message.get("content")))}
                self._added = {}
                self._add_usage(self._message.get("usage"))
            case "content_block_start":
                self._blocks[index] = dict(as_dict(event.get("content_block")))
            case "content_block_delta":
                self._blocks.setdefault(index, {})
                if (key := self._DELTAS.get(as_text(delta.get("type")))) is not None:
                    self._added.setdefault((index, key), []).append(as_text(delta.get(key)))
            case "message_delta":
                self._message |= delta
                self._add_usage(event.get("usage"))
            case "message_stop":
                self.is_over = True

    def _add_usage(self, usage: Any) -> None:
        """The last event has the final counts, but not always all of them."""
        self._usage |= {key: value for key, value in as_dict(usage).items() if value is not None}

    def body(self) -> dict[str, Any]:
        if not self._message and not self._blocks:
            return {}
        blocks = {index: dict(self._blocks[index]) for index in sorted(self._blocks)}
        for (index, key), pieces in self._added.items():
            block, text = blocks[index], "".join(pieces)
            if key == "partial_json":
                block["input"] = _parsed_or_text(text) if text else block.get("input")
            else:
                block[key] = as_text(block.get(key)) + text
                block.setdefault("type", key)
        return {**self._message, "content": list(blocks.values()), "usage": self._usage}


def _parsed_or_text(text: str) -> Any:
    """The value of a JSON text; text that is not JSON (cut in the middle, say) stays text."""
    text = mended(text)
    try:
        return mended(decode(text))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text


# -- the responses API ---------------------------------------------------------------------------------


class ResponsesJoiner:
    """Joins the events of OpenAI's responses API.

    The last event holds the whole response. What came before it counts only where that event is missing.
    """

    _ENDS = ("response.completed", "response.incomplete", "response.failed")
    # Where the text of a delta goes: to an entry of this type in a list of its item, or to a field of the item.
    _DELTAS = {
        "response.output_text.delta": ("content", "output_text"),
        "response.refusal.delta": ("content", "refusal"),
        "response.reasoning_text.delta": ("content", "reasoning_text"),
        "response.reasoning_summary_text.delta": ("summary", "summary_text"),
        "response.function_call_arguments.delta": ("arguments", ""),
        "response.custom_tool_call_input.delta": ("input", ""),
        "response.mcp_call_arguments.delta": ("arguments", ""),
    }

    def __init__(self) -> None:
        self.error: str | None = None
        self.is_over = False
        self._response: dict[str, Any] = {}
        self._items: dict[int, dict[str, Any]] = {}
        # By item, list or field, place in the list, and type.
        self._deltas: dict[tuple[int, str, int, str], tuple[list[str], list[dict[str, Any]]]] = {}

    def add(self, data: bytes) -> None:
        if data == b"[DONE]":
            return
        event = _event_of(data)
        kind, index = as_text(event.get("type")), count(event.get("output_index"))
        if kind == "error" or ("error" in event and "type" not in event):
            self.error = self.error or error_in_stream(event)
        elif isinstance(event.get("response"), dict):
            self._response = event["response"]
            self.is_over = self.is_over or kind in self._ENDS
        elif kind in ("response.output_item.added", "response.output_item.done"):
            item = self._items[index] = as_dict(event.get("item"))
            if item.get("type") and item.get("status") != "in_progress":  # it is whole
                self._deltas = {place: delta for place, delta in self._deltas.items() if place[0] != index}
        elif kind in self._DELTAS:
            self._items.setdefault(index, {})
            name, entry = self._DELTAS[kind]
            place = count(event.get("summary_index" if name == "summary" else "content_index"))
            texts, logprobs = self._deltas.setdefault((index, name, place, entry), ([], []))
            texts.append(as_text(event.get("delta")))
            logprobs += dicts(event.get("logprobs"))

    def body(self) -> dict[str, Any]:
        if not self._response and not self._items:
            return {}
        gathered = self._gathered()
        output = dicts(self._response.get("output"))
        if output and not _has_logprobs(output) and _has_logprobs(gathered):
            # Some servers send them only with the deltas.
            missing: list[dict[str, Any]] = [{}] * (len(output) - len(gathered))
            output = [_with_logprobs(*each) for each in zip(output, gathered + missing, strict=False)]
        return {**self._response, "output": output or gathered}

    def _gathered(self) -> list[dict[str, Any]]:
        """The items of the output, as far as the events before the last one hold them."""
        items = {index: dict(item) for index, item in sorted(self._items.items())}
        for (index, name, _, entry), (texts, logprobs) in sorted(self._deltas.items(), key=lambda each: each[0]):
            item, text = items[index], "".join(texts)
            if entry:
                whole = {"type": entry, "refusal" if entry == "refusal" else "text": text, "logprobs": logprobs}
                item[name] = [*dicts(item.get(name)), whole]
                item.setdefault("type", "message" if name == "content" else "reasoning")
            else:
                item[name] = text
        return list(items.values())


def _has_logprobs(items: list[dict[str, Any]]) -> bool:
    return any(entry.get("logprobs") for item in items for entry in dicts(item.get("content")))


def _with_logprobs(item: dict[str, Any], gathered: dict[str, Any]) -> dict[str, Any]:
    entries, given = dicts(item.get("content")), dicts(gathered.get("content"))
    if not entries or len(given) < len(entries):
        return item
    pairs = zip(entries, given, strict=False)
    return {**item, "content": [{**entry, "logprobs": each.get("logprobs")} for entry, each in pairs]}


_JOINERS: dict[Api, type[ChatJoiner | MessagesJoiner | ResponsesJoiner]] = {
    "messages": MessagesJoiner,
    "responses": ResponsesJoiner,
}
