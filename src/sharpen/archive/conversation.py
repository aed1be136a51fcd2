"""Who said what: the messages of LLM calls, each shown once.

Most agents send the whole conversation with every call. `Conversation` remembers what was said, so that a call shows
only what is new in it.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from ..chat.messages import Message as ChatMessage, content_text, openai_content
from ..chat.wire import json_text

_Key = tuple[str, ...]
_NOTHING: Sequence[_Key] = ()


class ToolCall(msgspec.Struct, frozen=True):
    """A tool that a model asked for, or that an agent ran; `result` is None where none was recorded."""

    id: str | None
    name: str
    arguments: str
    result: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One message. `name` is who spoke, for the result of a tool the id of its call; `thoughts` is what a model
    reasoned before it spoke."""

    role: str
    text: str
    tool_calls: list[ToolCall] = []
    name: str | None = None
    thoughts: str | None = None


class Usage(msgspec.Struct, frozen=True):
    """What calls took. `cost` is in US dollars, None where nobody knows a price; `seconds` is the time of the calls."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None
    calls: int = 0
    seconds: float = 0.0

    def plus(self, other: "Usage") -> "Usage":
        """Both together."""
        costs = [each for each in (self.cost, other.cost) if each is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            sum(costs) if costs else None,
            self.calls + other.calls,
            self.seconds + other.seconds,
        )


class Conversation:
    """What was said so far, by whoever takes part. A call that goes on from any earlier one is recognised."""

    def __init__(self) -> None:
        self._beginnings: set[int] = set()
        self._last: dict[str | None, Sequence[_Key]] = {}

    def add(self, prompt: Sequence[Message], answers: Sequence[Message], *, agent: str | None = None) -> int:
        """Take a call to memory; how many messages at the front of its prompt were said before."""
        keys = [_key(message) for message in prompt]
        chain = _chained(keys)
        known = next((number for number in range(len(keys), 0, -1) if chain[number - 1] in self._beginnings), 0)
        # An agent that keeps only the newest part of its conversation, behind the same instructions.
        known += _overlap(self._last.get(agent, _NOTHING), keys[known:])
        self._beginnings.update(chain)
        for answer in answers:
            self._beginnings.add(hash((chain[-1] if chain else 0, _key(answer))))
        self._last[agent] = [*keys, *(_key(answer) for answer in answers[:1])]
        return known


def _key(message: Message) -> _Key:
    """Equal for messages that say the same; an agent may send back an answer without its thoughts and its ids."""
    calls = [part for call in message.tool_calls for part in (call.name, _same_json(call.arguments))]
    return (message.role, message.text.strip(), *calls)


def _same_json(text: str) -> str:
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _chained(keys: Sequence[_Key]) -> list[int]:
    """A number for each beginning of the list."""
    chain: list[int] = []
    number = 0
    for key in keys:
        number = hash((number, key))
        chain.append(number)
    return chain


def _overlap(earlier: Sequence[_Key], later: Sequence[_Key]) -> int:
    """How many messages at the front of `later` are the last ones of `earlier`."""
    sizes = (size for size in range(min(len(earlier), len(later)), 0, -1) if earlier[-size] == later[0])
    return next((size for size in sizes if list(earlier[-size:]) == list(later[:size])), 0)


# -- recorded messages -------------------------------------------------------------------------------


def message_of(recorded: ChatMessage) -> Message:
    """Return a recorded message as people read it."""
    result = recorded.result
    name = getattr(result, "id", None) if recorded.role == "tool" else recorded.name
    text = content_text(openai_content(recorded)) or recorded.refusal
    calls = [
        ToolCall(None if call.id is None else str(call.id), str(call.name or "tool"), call.arguments_text)
        for call in recorded.tool_calls
    ]
    return Message(recorded.role, text, calls, None if name is None else str(name), recorded.reasoning or None)


def as_text(value: Any) -> str:
    """Return text as it is, nothing as an empty text, and everything else as JSON."""
    return "" if value is None else json_text(value)
