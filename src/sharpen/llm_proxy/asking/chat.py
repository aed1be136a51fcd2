"""Requests of the chat and completions APIs as GenAI messages and tools."""

from typing import Any

from ...chat.wire import without_secrets
from ..parts import (
    Asked,
    Message,
    Part,
    as_dict,
    as_text,
    blob_part,
    dicts,
    file_part,
    media_part,
    reasoning_part,
    refusal_part,
    text_part,
    tool_call_part,
    tool_result,
    tool_result_part,
)


def chat_asked(request: dict[str, Any]) -> Asked:
    tools = [_tool(tool) for tool in dicts(request.get("tools"))]
    tools += [{"type": "function", **function} for function in dicts(request.get("functions"))]
    return Asked(messages=[_message(message) for message in dicts(request.get("messages"))], tools=tools)


def completions_asked(request: dict[str, Any]) -> Asked:
    """Each prompt is a message of the user. Prompts that are token ids have no text."""
    prompt = request.get("prompt")
    prompts = prompt if isinstance(prompt, list) else [prompt]
    return Asked(messages=[{"role": "user", "parts": [text_part(each)]} for each in prompts if isinstance(each, str)])


def prompt_token_ids(request: dict[str, Any]) -> list[int]:
    """The ids of a prompt that the agent tokenised itself; of several prompts the first one's."""
    prompt = request.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], list):
        prompt = prompt[0]
    is_ids = isinstance(prompt, list) and all(type(each) is int for each in prompt)
    return prompt if is_ids and isinstance(prompt, list) else []


def _message(message: dict[str, Any]) -> Message:
    role, content = as_text(message.get("role")) or "user", message.get("content")
    if role == "tool":
        told: Message = {"role": role, "parts": [tool_result_part(message.get("tool_call_id"), _result(content))]}
    elif isinstance(content, str) and len(message) == 2:
        # By far the most messages are no more than that.
        return {"role": role, "parts": [text_part(content)]}
    else:
        told = {"role": role, "parts": [*_thoughts(message), *_contents(content), *_said(message)]}
    if name := message.get("name"):
        told["name"] = name
    return told


def _result(content: Any) -> Any:
    return content if isinstance(content, str) else tool_result(_contents(content))


def _thoughts(message: dict[str, Any]) -> list[Part]:
    thoughts = as_text(message.get("reasoning_content") or message.get("reasoning"))
    return [reasoning_part(thoughts)] if thoughts else []


def _said(message: dict[str, Any]) -> list[Part]:
    """What only the assistant's messages have."""
    refusal = as_text(message.get("refusal"))
    parts = [refusal_part(refusal)] if refusal else []
    parts += [_tool_call(call) for call in dicts(message.get("tool_calls"))]
    if function := as_dict(message.get("function_call")):
        parts.append(tool_call_part(None, function.get("name"), function.get("arguments")))
    return parts


def _tool_call(call: dict[str, Any]) -> Part:
    if custom := as_dict(call.get("custom")):
        return {**tool_call_part(call.get("id"), custom.get("name"), custom.get("input")), "kind": "custom"}
    function = as_dict(call.get("function"))
    return tool_call_part(call.get("id"), function.get("name"), function.get("arguments"))


def _contents(content: Any) -> list[Part]:
    if isinstance(content, str):
        return [text_part(content)]
    return [_content(part) for part in dicts(content)]


def _content(part: dict[str, Any]) -> Part:
    kind = as_text(part.get("type"))
    match kind:
        case "text":
            return text_part(as_text(part.get("text")))
        case "refusal":
            return refusal_part(as_text(part.get("refusal")))
        case "image_url" | "video_url" | "audio_url":
            inner = part.get(kind)
            return media_part(kind.removesuffix("_url"), inner.get("url") if isinstance(inner, dict) else inner)
        case "input_audio":
            sound = as_dict(part.get(kind))
            return blob_part("audio", f"audio/{sound.get('format') or 'wav'}", sound.get("data"))
        case "file":
            return _file(as_dict(part.get("file")))
    return {**part, "type": kind}


def _file(file: dict[str, Any]) -> Part:
    if file.get("file_id"):
        return file_part("document", file["file_id"])
    names = {"filename": file["filename"]} if isinstance(file.get("filename"), str) else {}
    return media_part("document", file.get("file_data"), **names)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Functions are written flat in the conventions."""
    function = tool.get("function")
    return {"type": "function", **function} if isinstance(function, dict) else as_dict(without_secrets(tool))
