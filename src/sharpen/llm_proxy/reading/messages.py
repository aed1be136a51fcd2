"""Reading answers of Anthropic's messages API."""

from typing import Any

from ...chat.wire import decoder_of, error_in_stream
from ..calls import Said, Usage
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
    parsed_or_text,
    reasoning_part,
    server_tool_part,
    text_part,
    tool_call_part,
    tool_result,
    tool_result_part,
    weights_version_of,
)

_decode = decoder_of(dict[str, Any])
# The field of a block that each kind of delta goes on with.
_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


class MessagesReader:
    """Merges the events of one answer, or reads it whole."""

    def __init__(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream
        self._is_done = False
        self._message: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[int, _Block] = {}
        self._error: str | None = None

    @property
    def is_over(self) -> bool:
        return self._is_done

    def add(self, data: bytes) -> None:
        if self._is_stream and data == b"[DONE]":
            return
        event = _decode(data)
        if not self._is_stream:
            self._take_whole(event)
        elif event.get("type") == "error" or event.get("error"):
            self._error = self._error or error_in_stream(event)
        else:
            self._take(event)

    def _take_whole(self, message: dict[str, Any]) -> None:
        self._is_done = isinstance(message.get("content"), list)
        if self._is_done:
            self._start(message)
        if message.get("error"):
            self._error = error_in_stream(message)

    def _take(self, event: dict[str, Any]) -> None:
        match event.get("type"):
            case "message_start":
                self._start(as_dict(event.get("message")))
            case "content_block_start":
                self._blocks[count(event.get("index"))] = _Block(as_dict(event.get("content_block")))
            case "content_block_delta":
                self._blocks.setdefault(count(event.get("index")), _Block({})).add(as_dict(event.get("delta")))
            case "message_delta":
                self._message |= as_dict(event.get("delta"))
                self._add_usage(event.get("usage"))
            case "message_stop":
                self._is_done = True

    def _start(self, message: dict[str, Any]) -> None:
        self._message = dict(message)
        self._blocks = {number: _Block(block) for number, block in enumerate(dicts(message.get("content")))}
        self._add_usage(message.get("usage"))

    def _add_usage(self, usage: Any) -> None:
        """The last event has the final counts, but not always all of them."""
        self._usage |= {key: value for key, value in as_dict(usage).items() if value is not None}

    def said(self) -> Said:
        message = self._message
        parts = [block_part(self._blocks[index].whole()) for index in sorted(self._blocks)]
        told: Message = {"role": as_text(message.get("role")) or "assistant", "parts": parts}
        if reason := as_text(message.get("stop_reason")):
            told["finish_reason"] = reason
        return Said(
            response_id=as_text(message.get("id")) or None,
            model=as_text(message.get("model")) or None,
            output_messages=[told] if message or parts else [],
            usage=_usage_of(self._usage),
            weights_version=weights_version_of(message),
            error=self._error,
        )


class _Block:
    """One content block, and what its deltas added."""

    def __init__(self, block: dict[str, Any]) -> None:
        self._block = block
        self._added: dict[str, list[str]] = {}

    def add(self, delta: dict[str, Any]) -> None:
        key = _DELTAS.get(as_text(delta.get("type")))
        if key is not None:
            self._added.setdefault(key, []).append(as_text(delta.get(key)))

    def whole(self) -> dict[str, Any]:
        block = dict(self._block)
        for key, pieces in self._added.items():
            if key == "partial_json":
                text = "".join(pieces)
                block["input"] = parsed_or_text(text) if text else block.get("input")
            else:
                block[key] = as_text(block.get(key)) + "".join(pieces)
                block.setdefault("type", key)
        return block


def _usage_of(usage: dict[str, Any]) -> Usage | None:
    """Anthropic counts cached tokens beside those of the input; here they are among them, as everywhere else."""
    if not usage:
        return None
    read, written = count(usage.get("cache_read_input_tokens")), count(usage.get("cache_creation_input_tokens"))
    return Usage(count(usage.get("input_tokens")) + read + written, count(usage.get("output_tokens")), read)


# -- blocks, of answers and of requests ----------------------------------------------------------------


def block_part(block: dict[str, Any]) -> Part:
    """A content block as a part. Marks for the cache and signatures are left out."""
    kind = as_text(block.get("type"))
    match kind:
        case "text":
            return text_part(as_text(block.get("text")))
        case "thinking":
            return reasoning_part(as_text(block.get("thinking")))
        case "tool_use":
            return tool_call_part(block.get("id"), block.get("name"), block.get("input"))
        case "tool_result":
            return _result_part(block)
        case "image" | "document":
            return _source_part("image" if kind == "image" else "document", as_dict(block.get("source")))
        case "redacted_thinking":
            return {"type": kind}
    if kind == "server_tool_use":
        return server_tool_part(as_dict(block.get("input")) | {"id": block.get("id")}, block.get("name"))
    if kind.endswith("_tool_result"):
        response = {"type": kind, "content": block.get("content")}
        return {
            "type": "server_tool_call_response",
            "id": block.get("tool_use_id"),
            "server_tool_call_response": response,
        }
    return {key: value for key, value in block.items() if key not in ("cache_control", "signature")} | {"type": kind}


def _result_part(block: dict[str, Any]) -> Part:
    content = block.get("content")
    response = content if isinstance(content, str) else tool_result([block_part(each) for each in dicts(content)])
    part = tool_result_part(block.get("tool_use_id"), response)
    return {**part, "is_error": True} if block.get("is_error") is True else part


def _source_part(modality: str, source: dict[str, Any]) -> Part:
    match source.get("type"):
        case "base64":
            return blob_part(modality, source.get("media_type"), source.get("data"))
        case "url":
            return media_part(modality, source.get("url"))
        case "file":
            return file_part(modality, source.get("file_id"))
        case "text":
            return text_part(as_text(source.get("data")))
    return {"type": modality, "source": source}
