"""What a model wrote, as text: completions come as strings or as chat messages."""

from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Completion = str | Message | Sequence[Message]


def completion_text(completion: Completion) -> str:
    """The words of the model: of a conversation, what the assistant said, turn after turn."""
    if isinstance(completion, str):
        return completion
    messages = [completion] if isinstance(completion, Mapping) else completion
    if not isinstance(messages, Sequence) or not all(isinstance(message, Mapping) for message in messages):
        raise TypeError(f"a completion is {_kind(completion)}: give a string or a list of chat messages")
    said = [_content(message) for message in messages if message.get("role", "assistant") == "assistant"]
    return "\n".join(text for text in said if text)


def _content(message: Message) -> str:
    content = message.get("content")
    if content is None:  # A message that only calls tools.
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and all(isinstance(part, Mapping) for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise TypeError(f"the content of a chat message is {_kind(content)}: give a string or a list of parts")


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
