"""Chat messages of a request, as chat templates want them: texts instead of parts, arguments of tools as objects."""

from typing import Any

import msgspec

from ...web.app import HttpError
from .fields import invalid_field

_TEXT_PARTS = ("text", "input_text", "output_text")
_decode_messages = msgspec.json.Decoder(list[dict[str, Any]]).decode
_decode_tools = msgspec.json.Decoder(list[dict[str, Any]] | None).decode


def read_messages(raw: bytes) -> list[dict[str, Any]]:
    """The messages, checked, or a refusal that names the first that is wrong."""
    try:
        messages = _decode_messages(raw)
    except msgspec.ValidationError:
        raise invalid_field(
            "messages", "messages is not a list of objects: send [{'role': 'user', 'content': '…'}]"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_field("messages", f"messages is not valid JSON: {error}", code="malformed_json") from None
    if not messages:
        raise invalid_field("messages", "messages is empty: send at least one message")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(messages)]


def read_tools(raw: bytes) -> list[dict[str, Any]] | None:
    """The tools; None where there are none."""
    try:
        tools = _decode_tools(raw)
    except msgspec.ValidationError:
        raise invalid_field(
            "tools", "tools is not a list of objects: send [{'type': 'function', 'function': {…}}]"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_field("tools", f"tools is not valid JSON: {error}", code="malformed_json") from None
    for place, tool in enumerate(tools or ()):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict) or not function.get("name"):
            raise invalid_field(
                "tools", f"tools[{place}] is {tool!r:.80}: send {{'type': 'function', 'function': {{'name': …}}}}"
            )
    return tools or None


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise _wrong(f"{where}.role is {role!r}: send a string such as 'user'")
    # Templates know the role under its older name only.
    found = {**message, "role": "system" if role == "developer" else role}
    found["content"] = _text(message.get("content"), message, where)
    if message.get("tool_calls"):
        found["tool_calls"] = _tool_calls(message["tool_calls"], f"{where}.tool_calls")
    else:
        found.pop("tool_calls", None)
    return found


def _text(content: Any, message: dict[str, Any], where: str) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        if message.get("role") == "assistant":
            return ""
        raise _wrong(f"{where} has no content: send a string")
    if not isinstance(content, list):
        raise _wrong(f"{where}.content is {content!r:.80}: send a string, or a list of text parts")
    return "\n".join(_part(part, f"{where}.content[{place}]") for place, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise _wrong(f"{where} is {part!r:.80}: send {{'type': 'text', 'text': '…'}}")
    if part.get("type") not in _TEXT_PARTS:
        raise HttpError(
            400,
            f"{where} has type {part.get('type')!r:.40}, but this server accepts text only",
            code="unsupported_value",
            param="messages",
        )
    if not isinstance(part.get("text"), str):
        raise _wrong(f"{where}.text is {part.get('text')!r:.80}: send a string")
    text: str = part["text"]
    return text


def _tool_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise _wrong(f"{where} is {calls!r:.80}: send a list")
    return [_tool_call(call, f"{where}[{place}]") for place, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong(f"{where} is {call!r:.80}: send {{'type': 'function', 'function': {{'name': …}}}}")
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments"))}}


def _arguments(arguments: Any) -> Any:
    """As an object: templates write it as JSON, and a text would be quoted once more."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments  # it was sampled like this


def _wrong(message: str) -> HttpError:
    return invalid_field("messages", message)
