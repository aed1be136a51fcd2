"""Requests of the responses API as GenAI messages and tools."""

from typing import Any

from ...chat.wire import without_secrets
from ..parts import Asked, Message, as_dict, as_text, dicts, text_part
from ..reading.responses import content_parts, item_parts

_INPUT_ROLES = ("user", "system", "developer")


def responses_asked(request: dict[str, Any]) -> Asked:
    instructions = as_text(request.get("instructions"))
    return Asked(
        instructions=[text_part(instructions)] if instructions else [],
        messages=_messages(request.get("input")),
        tools=[_tool(tool) for tool in dicts(request.get("tools"))],
    )


def _messages(items: Any) -> list[Message]:
    """The assistant's items that follow each other are one message: its thoughts, its words and its tool calls."""
    if isinstance(items, str):
        return [{"role": "user", "parts": [text_part(items)]}]
    messages: list[Message] = []
    for item in dicts(items):
        role = _role(item)
        parts = content_parts(item.get("content")) if role in _INPUT_ROLES else item_parts(item)
        if role == "assistant" and messages and messages[-1]["role"] == role:
            messages[-1]["parts"] += parts
        else:
            messages.append({"role": role, "parts": parts})
    return messages


def _role(item: dict[str, Any]) -> str:
    role = as_text(item.get("role"))
    if role:
        return role
    return "tool" if as_text(item.get("type")).endswith("_output") else "assistant"


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Functions are flat already; other tools may hold the key of a server."""
    return tool if tool.get("type") == "function" else as_dict(without_secrets(tool))
