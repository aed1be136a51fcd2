"""Streams: bytes to events, the events of a response to one whole response, and a response to events.

A joined response is what the server would have sent without streaming, with every field that its events had. Joiners
keep half characters, since the other half may be in the next event: repair what they return with `wire.mended`.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec

from .messages import Api
from .openai import ChatChoice, arguments_text, chat_body, split_content
from .wire import as_dict, as_text, count, decode, dicts, error_in_stream, mended, parsed_or_text, weights_version_of

DONE = b"data: [DONE]\n\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_encode = msgspec.json.Encoder().encode


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


class Joiner(Protocol):
    """Joins the events of one response."""

    error: str | None
    """The first error that came as an event."""

    @property
    def is_over(self) -> bool:
        """Return True if the response has come to its end."""
        ...

    def add(self, data: bytes) -> None:
        """Add the data of one event; raises where it is malformed, and keeps what came before."""
        ...

    def body(self) -> dict[str, Any]:
        """Return the response so far; empty where nothing of it has come."""
        ...


def joiner_for(api: Api) -> Joiner:
    if api == "responses":
        return ResponsesJoiner()
    return MessagesJoiner() if api == "messages" else ChatJoiner()


def join_events(api: Api, events: Iterable[bytes]) -> dict[str, Any]:
    """Return the response that the data of these events make; a malformed event is an error."""
    joiner = joiner_for(api)
    for event in events:
        joiner.add(event)
    found: dict[str, Any] = mended(joiner.body())
    return found


def _event_of(data: bytes) -> dict[str, Any]:
    event = decode(data)
    if not isinstance(event, dict):
        raise ValueError(f"an event is {type(event).__name__}, not an object")
    return event


# -- chat and completions ------------------------------------------------------------------------------


class ChatJoiner:
    """Joins the chunks of chat and completions."""

    _OWN = ("choices", "usage", "error", "prompt_token_ids", "weights_version")
    _NUMBERS = ("logprobs", "token_ids", "prompt_token_ids", "weights_versions")

    def __init__(self) -> None:
        self.error: str | None = None
        self._is_done = False
        self._outer: dict[str, Any] = {}
        self._choices: dict[int, _JoinedChoice] = {}

    @property
    def is_over(self) -> bool:
        """Not every server ends its stream with the mark; then the choices tell."""
        reasons = [choice.fields.get("finish_reason") for choice in self._choices.values()]
        return self._is_done or (bool(reasons) and all(reasons))

    def add(self, data: bytes) -> None:
        if data == b"[DONE]":
            self._is_done = True
            return
        event = _event_of(data)
        body, outer = chat_body(event), self._outer
        for key, value in event.items():
            is_kept = key in ("id", "model", "object", "created") and outer.get(key)
            if value is not None and key not in self._OWN and not is_kept:
                outer[key] = value
        if isinstance(body.usage, dict) and body.usage:
            outer["usage"] = body.usage
        if body.error and "error" not in outer:
            outer["error"] = body.error
            self.error = error_in_stream(body.error)
        version = body.version()
        self._note_version(version)
        ids = getattr(body, "prompt_token_ids", None)
        if ids and "prompt_token_ids" not in outer:
            outer["prompt_token_ids"] = ids
        for choice, given in zip(body.choices or (), dicts(event.get("choices")), strict=False):
            joined = self._choices.setdefault(choice.index or 0, _JoinedChoice())
            self._note_version(weights_version_of(choice.meta_info))
            joined.add(given)
            if isinstance(choice, ChatChoice):
                # An event tells the version of its own tokens.
                joined.add_numbers(choice, given, version or outer.get("weights_version"))

    def _note_version(self, version: str | None) -> None:
        if version is not None:
            self._outer.setdefault("weights_version", version)

    def body(self) -> dict[str, Any]:
        body = dict(self._outer)
        if "object" in body:
            body["object"] = as_text(body["object"]).removesuffix(".chunk")
        if body or self._choices:
            version = body.get("weights_version")
            body["choices"] = [self._choices[index].body(index, version) for index in sorted(self._choices)]
        return body


class _JoinedChoice:
    """One choice; `fields` hold what the last event said."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {"finish_reason": None}
        self._text: list[str] = []
        self._is_text = False
        self._message = _JoinedMessage()
        self._logprobs: dict[str, Any] = {}
        self._token_ids: list[int] = []
        self._versions: list[str | None] = []

    def add(self, given: dict[str, Any]) -> None:
        message = given.get("delta") if isinstance(given.get("delta"), dict) else given.get("message")
        if isinstance(given.get("text"), str):
            self._is_text = True
            self._text.append(given["text"])
        elif isinstance(message, dict):
            self._message.add(message, is_whole=message is not given.get("delta"))
        for key, value in given.items():
            if key == "finish_reason":
                self.fields[key] = as_text(value) or self.fields[key]
            elif key not in ("index", "delta", "message", "text", *ChatJoiner._NUMBERS) and value is not None:
                self.fields[key] = value

    def add_numbers(self, choice: ChatChoice, given: dict[str, Any], version: str | None) -> None:
        ids = choice.token_ids or []
        self._token_ids += ids
        versions = choice.weights_versions
        is_told = versions is not None and len(versions) == len(ids)
        self._versions += versions if versions is not None and is_told else [version] * len(ids)
        if choice.prompt_token_ids:
            self.fields["prompt_token_ids"] = choice.prompt_token_ids
        for key, value in as_dict(given.get("logprobs")).items():
            if isinstance(value, list) and isinstance(self._logprobs.get(key), list):
                self._logprobs[key] += value
            elif value is not None or key not in self._logprobs:
                self._logprobs[key] = list(value) if isinstance(value, list) else value

    def body(self, index: int, version: str | None) -> dict[str, Any]:
        said = {"text": "".join(self._text)} if self._is_text else {"message": self._message.body()}
        found = {"index": index, **said, "logprobs": self._logprobs or None, **self.fields}
        if self._token_ids:
            found["token_ids"] = self._token_ids
        if any(each != version for each in self._versions):
            found["weights_versions"] = [each or version for each in self._versions]
        return found


class _JoinedMessage:
    """What the deltas of one choice add up to."""

    _TEXTS = ("content", "refusal", "reasoning_content", "reasoning")

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {"role": "assistant"}
        self._texts: dict[str, list[str]] = {}
        self._reasoning_name: str | None = None
        self._calls: list[_JoinedCall] = []
        self._call_at: dict[Any, _JoinedCall] = {}
        self._function: _JoinedCall | None = None

    def add(self, delta: dict[str, Any], *, is_whole: bool) -> None:
        content = delta.get("content")
        if content and not isinstance(content, str):
            content, thoughts = split_content(content)
            self._add_reasoning("reasoning_content", thoughts)
        if isinstance(content, str):
            self._texts.setdefault("content", []).append(content)
        # Engines have either name; where both are sent they say the same.
        name = "reasoning_content" if delta.get("reasoning_content") else "reasoning"
        self._add_reasoning(name, as_text(delta.get(name)))
        if refusal := as_text(delta.get("refusal")):
            self._texts.setdefault("refusal", []).append(refusal)
        for number, call in enumerate(dicts(delta.get("tool_calls"))):
            self._add_call(call, number if is_whole else call.get("index"))
        if isinstance(function := delta.get("function_call"), dict):
            self._function = self._function or _JoinedCall()
            self._function.add({}, function)
        for key, value in delta.items():
            if key not in (*self._TEXTS, "role", "tool_calls", "function_call") and value is not None:
                self._fields[key] = _merged(self._fields.get(key), value, key)

    def _add_reasoning(self, name: str, text: str) -> None:
        if text:
            self._reasoning_name = self._reasoning_name or name
            self._texts.setdefault(self._reasoning_name, []).append(text)

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

    def body(self) -> dict[str, Any]:
        found = dict(self._fields)
        texts = {name: "".join(pieces) for name, pieces in self._texts.items()}
        has_more = self._calls or self._function or texts.get("refusal")
        found["content"] = texts.pop("content", None) or (None if has_more else "")
        found |= texts
        if self._calls:
            found["tool_calls"] = [call.body() for call in self._calls]
        if self._function is not None:
            found["function_call"] = self._function.inner()
        return found


def _merged(known: Any, value: Any, key: str) -> Any:
    """A field of a delta that is not known here: lists grow, `audio` is joined by its texts, others are replaced."""
    if isinstance(known, list) and isinstance(value, list):
        return known + value
    if key == "audio" and isinstance(value, dict):
        known = as_dict(known)
        texts = {name: as_text(known.get(name)) + as_text(value.get(name)) for name in ("data", "transcript")}
        return known | value | texts
    return value


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
    _DELTAS |= {"signature_delta": "signature"}

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
        index = count(event.get("index"))
        match event.get("type"):
            case "message_start":
                self._message = dict(as_dict(event.get("message")))
                self._blocks = {number: dict(block) for number, block in enumerate(dicts(self._message.get("content")))}
                self._add_usage(self._message.get("usage"))
            case "content_block_start":
                self._blocks[index] = dict(as_dict(event.get("content_block")))
            case "content_block_delta":
                self._add_delta(index, as_dict(event.get("delta")))
            case "message_delta":
                self._message |= as_dict(event.get("delta"))
                self._add_usage(event.get("usage"))
            case "message_stop":
                self.is_over = True

    def _add_delta(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks.setdefault(index, {})
        key = self._DELTAS.get(as_text(delta.get("type")))
        if key is not None:
            self._added.setdefault((index, key), []).append(as_text(delta.get(key)))
        elif delta.get("type") == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]

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
                block["input"] = parsed_or_text(text) if text else block.get("input")
            else:
                block[key] = as_text(block.get(key)) + text
                block.setdefault("type", key)
        usage = {"usage": self._usage} if self._usage else {}
        return self._message | {"content": list(blocks.values())} | usage


# -- the responses API ---------------------------------------------------------------------------------


class ResponsesJoiner:
    """Joins the events of OpenAI's responses API.

    The last event holds the whole response. What came before it counts only where that event is missing.
    """

    _ENDS = ("response.completed", "response.incomplete", "response.failed")

    def __init__(self) -> None:
        self.error: str | None = None
        self.is_over = False
        self._response: dict[str, Any] = {}
        self._items: dict[int, _JoinedItem] = {}

    def add(self, data: bytes) -> None:
        if data == b"[DONE]":
            return
        event = _event_of(data)
        kind = as_text(event.get("type"))
        if event.get("type") == "error" or ("error" in event and "type" not in event):
            self.error = self.error or error_in_stream(event)
        elif isinstance(event.get("response"), dict):
            self._response = event["response"]
            self.is_over = self.is_over or kind in self._ENDS
        elif kind in ("response.output_item.added", "response.output_item.done"):
            self._item(event).replace(as_dict(event.get("item")))
        elif kind in _JoinedItem.FIELDS or kind in _JoinedItem.ENTRIES:
            self._item(event).add(kind, event)

    def _item(self, event: dict[str, Any]) -> "_JoinedItem":
        return self._items.setdefault(count(event.get("output_index")), _JoinedItem())

    def body(self) -> dict[str, Any]:
        if not self._response and not self._items:
            return {}
        gathered = [self._items[index].body() for index in sorted(self._items)]
        output = dicts(self._response.get("output"))
        if output and not _has_logprobs(output) and _has_logprobs(gathered):
            # Some servers tell them in the deltas alone.
            told = gathered[: len(output)] + [{}] * (len(output) - len(gathered))
            output = [_with_logprobs(item, each) for item, each in zip(output, told, strict=True)]
        return self._response | {"output": output or gathered}


def _has_logprobs(items: list[dict[str, Any]]) -> bool:
    return any(entry.get("logprobs") for item in items for entry in dicts(item.get("content")))


def _with_logprobs(item: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    pairs = list(zip(dicts(item.get("content")), dicts(told.get("content")), strict=False))
    content = [{**entry, "logprobs": given.get("logprobs")} for entry, given in pairs]
    return item | {"content": content} if content and len(content) == len(dicts(item.get("content"))) else item


class _JoinedItem:
    """One item of the output, and what its deltas said so far."""

    # Where the text of a delta goes: the field of its item, or the list in it, the kind of the entry and its field.
    FIELDS = {
        "response.function_call_arguments.delta": "arguments",
        "response.custom_tool_call_input.delta": "input",
        "response.mcp_call_arguments.delta": "arguments",
    }
    ENTRIES = {
        "response.output_text.delta": ("content", "content_index", "output_text", "text"),
        "response.refusal.delta": ("content", "content_index", "refusal", "refusal"),
        "response.reasoning_text.delta": ("content", "content_index", "reasoning_text", "text"),
        "response.reasoning_summary_text.delta": ("summary", "summary_index", "summary_text", "text"),
    }

    def __init__(self) -> None:
        self._item: dict[str, Any] = {}
        self._fields: dict[str, list[str]] = {}
        self._entries: dict[tuple[str, int], dict[str, Any]] = {}

    def replace(self, item: dict[str, Any]) -> None:
        """Take the item as an event has it whole: empty at its beginning, complete at its end."""
        if item.get("status") != "in_progress" and item.get("type"):
            self._fields, self._entries = {}, {}
        self._item = item

    def add(self, kind: str, event: dict[str, Any]) -> None:
        delta = as_text(event.get("delta"))
        if kind in self.FIELDS:
            self._fields.setdefault(self.FIELDS[kind], []).append(delta)
            return
        place, index, entry_kind, key = self.ENTRIES[kind]
        at = (place, count(event.get(index)))
        entry = self._entries.setdefault(at, {"type": entry_kind, key: [], "logprobs": []})
        entry.setdefault(key, []).append(delta)
        entry["logprobs"] += dicts(event.get("logprobs"))

    def body(self) -> dict[str, Any]:
        item = self._item | {key: "".join(pieces) for key, pieces in self._fields.items()}
        for place, index in sorted(self._entries):
            entry = self._entries[place, index]
            whole = {key: "".join(value) if key in ("text", "refusal") else value for key, value in entry.items()}
            item[place] = [*dicts(item.get(place)), whole]
        if "type" not in item and self._entries:
            item["type"] = "message" if ("content", 0) in self._entries else "reasoning"
        return item


# -- writing -------------------------------------------------------------------------------------------


def event_bytes(data: Any, name: str | None = None) -> bytes:
    """Return one server-sent event; `data` is JSON already, or is encoded."""
    body = data if isinstance(data, bytes) else _encode(data)
    return b"data: %b\n\n" % body if name is None else b"event: %b\ndata: %b\n\n" % (name.encode(), body)


def events_of(api: Api, body: dict[str, Any]) -> Iterator[bytes]:
    """Write a whole response as the events of a stream, as few as clients need to read it."""
    if api in ("chat", "completions"):
        yield from _chat_events(body)
        yield DONE
        return
    write = _message_events if api == "messages" else _response_events
    for event in write(body):
        yield event_bytes(event, event["type"])


def _chat_events(body: dict[str, Any]) -> Iterator[bytes]:
    """Each choice is one chunk with all that was said, and one with its end."""
    head = {key: value for key, value in body.items() if key not in ("choices", "usage")}
    if head.get("object") == "chat.completion":
        head["object"] = "chat.completion.chunk"
    for choice in dicts(body.get("choices")):
        end = {"index": choice.get("index", 0), "finish_reason": choice.get("finish_reason")}
        if "text" in choice:
            yield event_bytes({**head, "choices": [choice]})
            continue
        delta = dict(as_dict(choice.get("message")))
        if calls := dicts(delta.get("tool_calls")):
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(calls)]
        said = {key: value for key, value in choice.items() if key != "message"}
        yield event_bytes({**head, "choices": [{**said, "delta": delta, "finish_reason": None}]})
        yield event_bytes({**head, "choices": [{**end, "delta": {}}]})
        head.pop("prompt_token_ids", None)
    if body.get("usage"):
        yield event_bytes({**head, "choices": [], "usage": body["usage"]})


def _message_events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    ends = {"stop_reason": body.get("stop_reason"), "stop_sequence": body.get("stop_sequence")}
    start = {**body, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": start}
    for index, block in enumerate(dicts(body.get("content"))):
        empty, deltas = _block_deltas(block)
        yield {"type": "content_block_start", "index": index, "content_block": empty}
        yield from ({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas)
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_delta", "delta": ends, "usage": as_dict(body.get("usage"))}
    yield {"type": "message_stop"}


def _block_deltas(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts, and what its deltas add."""
    match block.get("type"):
        case "text":
            deltas: list[dict[str, Any]] = [{"type": "text_delta", "text": block.get("text")}]
            deltas += [{"type": "citations_delta", "citation": each} for each in block.get("citations") or ()]
            return block | {"text": ""} | ({"citations": []} if block.get("citations") else {}), deltas
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": block.get("thinking")}]
            deltas += [{"type": "signature_delta", "signature": block["signature"]}] if block.get("signature") else []
            return block | {"thinking": "", "signature": ""}, deltas
        case "tool_use" | "server_tool_use":
            text = _encode(block.get("input")).decode()
            return block | {"input": {}}, [{"type": "input_json_delta", "partial_json": text}]
    return block, []


def _response_events(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    start = body | {"status": "in_progress", "output": [], "usage": None}
    events += [{"type": "response.created", "response": start}, {"type": "response.in_progress", "response": start}]
    for index, item in enumerate(dicts(body.get("output"))):
        events += _item_events(item, {"output_index": index, "item_id": item.get("id")})
    status = body.get("status")
    end = f"response.{status}" if status in ("incomplete", "failed") else "response.completed"
    events.append({"type": end, "response": body})
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _item_events(item: dict[str, Any], place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    index = {"output_index": place["output_index"]}
    kind = item.get("type")
    empty: dict[str, dict[str, Any]] = {
        "message": {"content": []},
        "function_call": {"arguments": ""},
        "custom_tool_call": {"input": ""},
    }
    started = item | empty.get(str(kind), {}) | ({"status": "in_progress"} if "status" in item else {})
    yield {"type": "response.output_item.added", **index, "item": started}
    if kind == "message":
        for number, entry in enumerate(dicts(item.get("content"))):
            at, key = {**place, "content_index": number}, "refusal" if entry.get("type") == "refusal" else "text"
            event = "response.refusal" if key == "refusal" else "response.output_text"
            more = {"logprobs": entry.get("logprobs") or []} if key == "text" else {}
            yield {"type": "response.content_part.added", **at, "part": entry | {key: ""}}
            yield {"type": f"{event}.delta", **at, "delta": as_text(entry.get(key)), **more}
            yield {"type": f"{event}.done", **at, key: as_text(entry.get(key)), **more}
            yield {"type": "response.content_part.done", **at, "part": entry}
    elif kind in ("function_call", "custom_tool_call"):
        event, key = ("function_call_arguments", "arguments")
        if kind == "custom_tool_call":
            event, key = ("custom_tool_call_input", "input")
        text = as_text(item.get(key))
        yield {"type": f"response.{event}.delta", **place, "delta": text}
        yield {"type": f"response.{event}.done", **place, key: text, "name": item.get("name")}
    yield {"type": "response.output_item.done", **index, "item": item}
