"""What a model wrote, as text: completions come as strings or as chat messages."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
Completion = str | Message | Sequence[Message]

_THOUGHT = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)
_END_MARK = re.compile(r"(?:<[|｜][\w▁]{1,30}[|｜]>|</s>|<eos>|<pad>|<end_of_turn>)\Z")  # noqa: RUF001 - DeepSeek's bars
_LONGEST_END_MARK = 34


def completion_text(completion: Completion) -> str:
    """The words of the model: of a conversation, what the assistant said, turn after turn."""
    if isinstance(completion, str):
        return completion
    messages = [completion] if isinstance(completion, Mapping) else completion
    if not isinstance(messages, Sequence) or not all(isinstance(message, Mapping) for message in messages):
        raise TypeError(f"a completion is {_kind(completion)}: pass a string or a list of chat messages")
    said = [_content(message) for message in messages if message.get("role", "assistant") == "assistant"]
    return "\n".join(text for text in said if text)


def prompt_text(prompt: Completion) -> str:
    """What a model is asked: of a conversation, its last message."""
    if isinstance(prompt, str):
        return prompt
    last = prompt if isinstance(prompt, Mapping) else prompt[-1] if prompt else {}
    return completion_text([{**last, "role": "assistant"}])


def final_words(text: str) -> str:
    """What a text says after all thinking; nothing where a `<think>` is never closed, since its thoughts go on."""
    marks = list(_THOUGHT.finditer(text))
    if marks and not marks[-1][1]:
        return ""
    return without_end_marks(text[marks[-1].end() :] if marks else text)


def without_thought_marks(text: str) -> str:
    """The text with its thoughts, but without the tags around them."""
    return _THOUGHT.sub("\n", text)


def without_end_marks(text: str) -> str:
    """The text without the marks with which chat templates end a turn, such as `<|im_end|>`."""
    text = text.rstrip()
    while found := _END_MARK.search(text, max(0, len(text) - _LONGEST_END_MARK)):
        text = text[: found.start()].rstrip()
    return text


def _content(message: Message) -> str:
    content = message.get("content")
    if content is None:  # A message that only calls tools.
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence) and all(isinstance(part, Mapping) for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise TypeError(f"the content of a chat message is {_kind(content)}: pass a string or a list of parts")


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
