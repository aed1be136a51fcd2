"""Parts of messages as the GenAI conventions have them, and what every API writes in the same way."""

from typing import Any

import msgspec

from ..chat.wire import decode, mended
from .calls import Usage

Part = dict[str, Any]
Message = dict[str, Any]
Tool = dict[str, Any]
# No upstream counts that far; the store's numbers end at 64 bits.
_MAX_COUNT = 2**53


class Asked(msgspec.Struct):
    """What a request asks of a model."""

    instructions: list[Part] = []
    messages: list[Message] = []
    tools: list[Tool] = []


def text_part(text: str) -> Part:
    return {"type": "text", "content": text}


def reasoning_part(text: str) -> Part:
    return {"type": "reasoning", "content": text}


def refusal_part(text: str) -> Part:
    return {"type": "refusal", "content": text}


def tool_call_part(call_id: Any, name: Any, arguments: Any) -> Part:
    """Arguments stay as they were sampled: the text of OpenAI's APIs, the object of Anthropic's."""
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}


def tool_result_part(call_id: Any, response: Any) -> Part:
    return {"type": "tool_call_response", "id": call_id, "response": response}


def server_tool_part(item: dict[str, Any], name: Any) -> Part:
    """A tool that the provider ran itself."""
    return {"type": "server_tool_call", "id": item.get("id"), "name": name, "server_tool_call": item}


def media_part(modality: str, url: Any, mime_type: str | None = None, **more: Any) -> Part:
    """An image, a sound or a document: by its address, or its bytes where the address is a `data:` URL."""
    if isinstance(url, str) and url.startswith("data:"):
        head, _, content = url.partition(",")
        mime_type = head[5:].partition(";")[0] or mime_type
        return {"type": "blob", "modality": modality, "mime_type": mime_type, "content": content, **more}
    return {"type": "uri", "modality": modality, "mime_type": mime_type, "uri": url, **more}


def blob_part(modality: str, mime_type: Any, content: Any) -> Part:
    return {"type": "blob", "modality": modality, "mime_type": mime_type, "content": content}


def file_part(modality: str, file_id: Any) -> Part:
    return {"type": "file", "modality": modality, "mime_type": None, "file_id": file_id}


def tool_result(parts: list[Part]) -> Any:
    """What a tool answered: its text, or its parts where it is more than text."""
    if all(part["type"] == "text" for part in parts):
        return "".join(part["content"] for part in parts)
    return parts


# -- values that came from a network ------------------------------------------------------------------


def dicts(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; nothing where it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def count(value: Any) -> int:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value <= _MAX_COUNT else 0


def usage_of(value: Any) -> Usage | None:
    """Tokens as OpenAI's APIs count them: cached ones are among those of the input."""
    if not isinstance(value, dict) or not value:
        return None
    details = as_dict(value.get("prompt_tokens_details") or value.get("input_tokens_details"))
    return Usage(
        count(value.get("prompt_tokens", value.get("input_tokens"))),
        count(value.get("completion_tokens", value.get("output_tokens"))),
        count(details.get("cached_tokens")),
    )


def weights_version_of(*places: Any) -> str | None:
    """The version of the weights that sampled, by the names that engines give it."""
    for place in places:
        if isinstance(place, dict):
            for found in (place.get("weights_version"), place.get("weight_version")):
                if isinstance(found, str | int) and found != "":
                    return str(found)
    return None


def parsed_or_text(text: str) -> Any:
    """JSON as its value, and text that is none (cut in its middle, say) as it is."""
    text = mended(text)
    try:
        return mended(decode(text))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text
