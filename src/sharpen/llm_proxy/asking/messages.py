"""Requests of Anthropic's messages API as GenAI messages and tools."""

from typing import Any

from ...chat.wire import without_secrets
from ..parts import Asked, Message, Part, as_dict, as_text, dicts, text_part
from ..reading.messages import block_part


def messages_asked(request: dict[str, Any]) -> Asked:
    return Asked(
        instructions=_parts(request.get("system")),
        messages=[_message(message) for message in dicts(request.get("messages"))],
        tools=[_tool(tool) for tool in dicts(request.get("tools"))],
    )


def _message(message: dict[str, Any]) -> Message:
    return {"role": as_text(message.get("role")) or "user", "parts": _parts(message.get("content"))}


def _parts(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [text_part(content)] if content else []
    return [block_part(block) for block in dicts(content)]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """The user's tools have a schema for their input; the provider's own have a type instead."""
    if "input_schema" not in tool:
        return as_dict(without_secrets(tool))
    known: dict[str, Any] = {key: tool[key] for key in ("name", "description", "strict") if key in tool}
    return {"type": "function", **known, "parameters": tool["input_schema"]}
