"""Chat messages in the rows of a data set: what they must be, checked before anything heavy begins."""

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import RowError


def check_prompt(value: Any, row: int, column: str, *, source: str = "the data set") -> None:
    """A text or chat messages, or an error that names row and column.

    A message is a dict with `role` and `content`: a text or a list of parts, or None where it only calls tools.
    """
    problem = _problem(value)
    if problem:
        raise RowError.of(row, column, problem, source=source)


def _problem(value: Any) -> str | None:
    if isinstance(value, str):
        return None
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray):
        return f"it is {value!r:.80}: use a string or a list of chat messages"
    if not value:
        return "it is an empty list of messages: use a string or a list of chat messages"
    for place, message in enumerate(value):
        problem = _problem_of_message(message)
        if problem:
            return f"message {place} (the first is message 0) {problem}"
    return None


def _problem_of_message(message: Any) -> str | None:
    if not isinstance(message, Mapping):
        return f"is {message!r:.80}: a chat message is a dict with 'role' and 'content'"
    if not isinstance(message.get("role"), str) or not message["role"]:
        return f"is {message!r:.80}: a chat message is a dict with 'role' and 'content', and its role is a string"
    content = message.get("content")
    if isinstance(content, str):
        return None
    if content is None:
        return None if message.get("tool_calls") else "has neither 'content' nor 'tool_calls': add one of them"
    if isinstance(content, list | tuple) and content and all(isinstance(part, Mapping) for part in content):
        return None
    return f"has the content {content!r:.80}: use a string, or a list of parts such as {{'type': 'text', 'text': '…'}}"
