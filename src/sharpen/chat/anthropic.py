"""Bodies of Anthropic's messages API: requests, and whole responses."""

from typing import Any

from .messages import (
    BlobPart,
    Choice,
    FilePart,
    Message,
    ParsedRequest,
    ParsedResponse,
    Part,
    ReasoningPart,
    ServerToolCall,
    ServerToolResult,
    TextPart,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
    media_part,
    tool_result,
)
from .wire import as_dict, as_text, count, dicts, error_in_stream, weights_version_of

_NOT_CONTENT = ("cache_control", "signature")


def read_messages_request(request: dict[str, Any], parsed: ParsedRequest) -> None:
    parsed.instructions = _parts(request.get("system"))
    parsed.messages = [
        Message(as_text(message.get("role")) or "user", _parts(message.get("content")))
        for message in dicts(request.get("messages"))
    ]
    parsed.tools = [_tool(tool) for tool in dicts(request.get("tools"))]


def read_messages_response(body: dict[str, Any]) -> ParsedResponse:
    """Read a whole message; a body without content is not complete."""
    blocks = dicts(body.get("content"))
    is_message = isinstance(body.get("content"), list)
    found = ParsedResponse(is_complete=is_message, error=error_in_stream(body) if body.get("error") else None)
    if not is_message:
        return found
    reason = as_text(body.get("stop_reason")) or None
    message = Message(
        as_text(body.get("role")) or "assistant", [block_part(block) for block in blocks], finish_reason=reason
    )
    found.id, found.model = as_text(body.get("id")) or None, as_text(body.get("model")) or None
    found.choices, found.usage = [Choice(message)], _usage_of(as_dict(body.get("usage")))
    found.weights_version = weights_version_of(body)
    return found


def block_part(block: dict[str, Any]) -> Part:
    """Return a content block as a part, without marks for the cache and signatures."""
    kind, get = as_text(block.get("type")), block.get
    match kind:
        case "text":
            return TextPart(as_text(get("text")))
        case "thinking":
            return ReasoningPart(as_text(get("thinking")))
        case "tool_use":
            return ToolCall(get("id"), get("name"), get("input"))
        case "tool_result":
            content = get("content")
            response = (
                content if isinstance(content, str) else tool_result([block_part(each) for each in dicts(content)])
            )
            return ToolResult(get("tool_use_id"), response, get("is_error") is True)
        case "image" | "document":
            return _source_part(kind, as_dict(get("source")))
        case "redacted_thinking":
            return {"type": kind}
        case "server_tool_use":
            return ServerToolCall(get("id"), get("name"), as_dict(get("input")) | {"id": get("id")})
    if kind.endswith("_tool_result"):
        return ServerToolResult(get("tool_use_id"), {"type": kind, "content": get("content")})
    return {key: value for key, value in block.items() if key not in _NOT_CONTENT} | {"type": kind}


def _parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [TextPart(content)] if content else []
    return [block_part(block) for block in dicts(content)]


def _source_part(modality: str, source: dict[str, Any]) -> Part:
    match source.get("type"):
        case "base64":
            return BlobPart(modality, source.get("media_type"), source.get("data"))
        case "url":
            return media_part(modality, source.get("url"))
        case "file":
            return FilePart(modality, None, source.get("file_id"))
        case "text":
            return TextPart(as_text(source.get("data")))
    return {"type": modality, "source": source}


def _tool(tool: dict[str, Any]) -> Tool:
    """The user's tools have a schema for their input; the provider's own have a type instead."""
    if "input_schema" not in tool:
        return tool
    known: dict[str, Any] = {key: tool[key] for key in ("name", "description", "strict") if key in tool}
    return {"type": "function", **known, "parameters": tool["input_schema"]}


def _usage_of(usage: dict[str, Any]) -> Usage | None:
    """Anthropic counts cached tokens beside those of the input; here they are among them, as everywhere else."""
    if all(value is None for value in usage.values()):
        return None
    read, written = count(usage.get("cache_read_input_tokens")), count(usage.get("cache_creation_input_tokens"))
    return Usage(count(usage.get("input_tokens")) + read + written, count(usage.get("output_tokens")), read)
