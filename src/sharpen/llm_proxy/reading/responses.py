"""Reading answers of OpenAI's responses API.

The last event of a stream holds the whole answer. What came before it counts only where that event is missing.
"""

from typing import Any

from ...chat.wire import decoder_of, error_in_stream
from ..calls import Said
from ..parts import (
    Message,
    Part,
    as_dict,
    as_text,
    blob_part,
    count,
    dicts,
    file_part,
    media_part,
    reasoning_part,
    refusal_part,
    server_tool_part,
    text_part,
    tool_call_part,
    tool_result,
    tool_result_part,
    usage_of,
    weights_version_of,
)

_decode = decoder_of(dict[str, Any])
_ENDS = ("response.completed", "response.incomplete", "response.failed")
# Where the text of a delta goes: the field of its item, or the list in it, the kind of the entry and its field.
_FIELDS = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
    "response.mcp_call_arguments.delta": "arguments",
}
_ENTRIES = {
    "response.output_text.delta": ("content", "content_index", "output_text", "text"),
    "response.refusal.delta": ("content", "content_index", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "content_index", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_index", "summary_text", "text"),
}
_REASONS = {"max_output_tokens": "length", "max_tokens": "length"}


class ResponsesReader:
    """Merges the events of one answer, or reads it whole."""

    def __init__(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream
        self._is_done = False
        self._response: dict[str, Any] = {}
        self._items: dict[int, _Item] = {}
        self._error: str | None = None

    @property
    def is_over(self) -> bool:
        return self._is_done

    def add(self, data: bytes) -> None:
        if self._is_stream and data == b"[DONE]":
            return
        event = _decode(data)
        if not self._is_stream:
            self._is_done = isinstance(event.get("output"), list)
            self._response = event
        elif event.get("type") == "error" or ("error" in event and "type" not in event):
            self._error = self._error or error_in_stream(event)
        else:
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        kind = as_text(event.get("type"))
        if isinstance(event.get("response"), dict):
            self._response = event["response"]
            self._is_done = self._is_done or kind in _ENDS
        elif kind in ("response.output_item.added", "response.output_item.done"):
            self._item(event).replace(as_dict(event.get("item")))
        elif kind in _FIELDS or kind in _ENTRIES:
            self._item(event).add(kind, event)

    def _item(self, event: dict[str, Any]) -> "_Item":
        return self._items.setdefault(count(event.get("output_index")), _Item())

    def said(self) -> Said:
        response = self._response
        gathered = [self._items[index].whole() for index in sorted(self._items)]
        items = dicts(response.get("output")) or gathered
        told = _message(response, items)
        logprobs = _logprobs(items) or _logprobs(gathered)
        token_ids = [ids for key in ("token_ids", "output_token_ids") if (ids := _numbers(response.get(key)))]
        return Said(
            response_id=as_text(response.get("id")) or None,
            model=as_text(response.get("model")) or None,
            output_messages=[told] if items or "finish_reason" in told else [],
            usage=usage_of(response.get("usage")),
            prompt_token_ids=_numbers(response.get("prompt_token_ids")),
            response_token_ids=token_ids[:1],
            response_logprobs=[logprobs] if logprobs else [],
            weights_version=weights_version_of(response, response.get("metadata"), response.get("sglext")),
            error=self._error or (error_in_stream(response) if response.get("error") else None),
        )


class _Item:
    """One item of the output, and what its deltas said so far."""

    def __init__(self) -> None:
        self._item: dict[str, Any] = {}
        self._fields: dict[str, list[str]] = {}
        self._entries: dict[tuple[str, int], dict[str, Any]] = {}

    def replace(self, item: dict[str, Any]) -> None:
        """By the item as an event has it whole: empty at its beginning, complete at its end."""
        if item.get("status") != "in_progress" and item.get("type"):
            self._fields, self._entries = {}, {}
        self._item = item

    def add(self, kind: str, event: dict[str, Any]) -> None:
        delta = as_text(event.get("delta"))
        if kind in _FIELDS:
            self._fields.setdefault(_FIELDS[kind], []).append(delta)
            return
        place, index, entry_kind, key = _ENTRIES[kind]
        at = (place, count(event.get(index)))
        entry = self._entries.setdefault(at, {"type": entry_kind, key: [], "logprobs": []})
        entry.setdefault(key, []).append(delta)
        entry["logprobs"] += dicts(event.get("logprobs"))

    def whole(self) -> dict[str, Any]:
        item = self._item | {key: "".join(pieces) for key, pieces in self._fields.items()}
        for place, index in sorted(self._entries):
            entry = self._entries[place, index]
            joined = {key: "".join(value) if key in ("text", "refusal") else value for key, value in entry.items()}
            item[place] = [*dicts(item.get(place)), joined]
        if "type" not in item and self._entries:
            item["type"] = "message" if ("content", 0) in self._entries else "reasoning"
        return item


def _message(response: dict[str, Any], items: list[dict[str, Any]]) -> Message:
    message: Message = {"role": "assistant", "parts": [part for item in items for part in item_parts(item)]}
    if reason := _finish_reason(response, items):
        message["finish_reason"] = reason
    return message


def _finish_reason(response: dict[str, Any], items: list[dict[str, Any]]) -> str | None:
    """In the words of the chat API, since this one has none of its own."""
    status = response.get("status")
    if status == "completed":
        has_calls = any(item.get("type") in ("function_call", "custom_tool_call") for item in items)
        return "tool_calls" if has_calls else "stop"
    if status == "incomplete":
        reason = as_text(as_dict(response.get("incomplete_details")).get("reason"))
        return _REASONS.get(reason, reason) or "length"
    return "error" if status == "failed" else None


def _logprobs(items: list[dict[str, Any]]) -> list[float]:
    found = [each for item in items for entry in dicts(item.get("content")) for each in dicts(entry.get("logprobs"))]
    return [float(each["logprob"]) for each in found if isinstance(each.get("logprob"), int | float)]


def _numbers(value: Any) -> list[int]:
    is_ids = isinstance(value, list) and all(type(each) is int and 0 <= each <= 2**53 for each in value)
    return value if is_ids else []


# -- items, of answers and of requests -----------------------------------------------------------------


def item_parts(item: dict[str, Any]) -> list[Part]:
    """An item as parts of a message."""
    kind = as_text(item.get("type")) or "message"
    match kind:
        case "message":
            return content_parts(item.get("content"))
        case "reasoning":
            entries = dicts(item.get("content")) or dicts(item.get("summary"))
            return [reasoning_part(text) for entry in entries if (text := as_text(entry.get("text")))]
        case "function_call":
            return [tool_call_part(item.get("call_id"), item.get("name"), as_text(item.get("arguments")))]
        case "custom_tool_call":
            call = tool_call_part(item.get("call_id"), item.get("name"), as_text(item.get("input")))
            return [{**call, "kind": "custom"}]
        case "function_call_output" | "custom_tool_call_output":
            return [tool_result_part(item.get("call_id"), _output(item.get("output")))]
        case "item_reference" | "compaction":
            return [{"type": kind, "id": item.get("id")}]
    return [server_tool_part(item, kind)]


def _output(output: Any) -> Any:
    return output if isinstance(output, str) else tool_result(content_parts(output))


def content_parts(content: Any) -> list[Part]:
    """The content of a message: a text, or a list of typed entries."""
    if isinstance(content, str):
        return [text_part(content)] if content else []
    return [_entry_part(entry) for entry in dicts(content)]


def _entry_part(entry: dict[str, Any]) -> Part:
    match entry.get("type"):
        case "input_text" | "output_text" | "text":
            return text_part(as_text(entry.get("text")))
        case "refusal":
            return refusal_part(as_text(entry.get("refusal")))
        case "input_image" if entry.get("file_id"):
            return file_part("image", entry["file_id"])
        case "input_image":
            return media_part("image", entry.get("image_url"))
        case "input_file" if entry.get("file_id"):
            return file_part("document", entry["file_id"])
        case "input_file":
            return media_part("document", entry.get("file_data") or entry.get("file_url"))
        case "input_audio":
            sound = as_dict(entry.get("input_audio"))
            return blob_part("audio", f"audio/{sound.get('format') or 'wav'}", sound.get("data"))
    return dict(entry) | {"type": as_text(entry.get("type"))}
