"""What a rollout that succeeded shows: the values of the prompt's places as they stood, and what the model answered.

The values are read from the recorded prompt, since only that is certain to be what the model saw. Where the prompt
cannot be recognised there, they come from the task.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...adapter.messages import OpenAIMessages
from ...errors import InvalidInputError
from ...types import PromptTemplate
from .template_parts import longest_words, value_names, values_in

MOST_CHARACTERS = 20_000
"""Of one demonstration: a longer one would crowd out the task."""


class Demonstration(msgspec.Struct, frozen=True):
    """One example for a prompt. `input` is what a user said last, for prompts without values."""

    rollout_id: str
    values: dict[str, str]
    input: str
    answer: str
    reward: float

    @property
    def content(self) -> tuple[Any, ...]:
        """What it shows; two rollouts may show the same."""
        return (tuple(sorted(self.values.items())), self.input, self.answer)


class UnfitRolloutError(InvalidInputError):
    """A rollout that cannot be shown; the message says why."""


def read_demonstration(
    rollout_id: str,
    reward: float,
    prompt: PromptTemplate,
    task: Any,
    conversations: Sequence[OpenAIMessages],
    *,
    names: Sequence[str] | None = None,
) -> Demonstration:
    """The demonstration that a rollout of this prompt makes, or an error that says why it makes none.

    `names` are the values of the task; a prompt that shows demonstrations may hold what looks like others.
    """
    names = value_names(prompt) if names is None else names
    conversation, values = _find(prompt, names, task, conversations)
    answer = _text(conversation["messages"][-1])
    if not answer:
        raise UnfitRolloutError("the model's last answer has no text")
    said = "" if names else _input(conversation, prompt, task)
    size = len(said) + len(answer) + sum(map(len, values.values()))
    if size > MOST_CHARACTERS:
        raise UnfitRolloutError(f"it is too long for a demonstration: {size:,} characters")
    return Demonstration(rollout_id, values, said, answer, reward)


def _find(
    prompt: PromptTemplate, names: Sequence[str], task: Any, conversations: Sequence[OpenAIMessages]
) -> tuple[OpenAIMessages, dict[str, str]]:
    """The last conversation in which the prompt stands, and the values there."""
    spoken = [each for each in conversations if each["messages"] and each["messages"][-1].get("role") == "assistant"]
    if not spoken:
        raise UnfitRolloutError("no model call was recorded with its messages")
    from_task = _values_of_task(names, task)
    for conversation in reversed(spoken):
        for text in _prompts(conversation):
            values = values_in(text, prompt, likely=from_task)
            if values is not None:
                return conversation, {name: values[name] for name in names if name in values}
    return spoken[-1], _all_in_one(prompt, names, spoken[-1]) if from_task is None else from_task


def _all_in_one(prompt: PromptTemplate, names: Sequence[str], conversation: OpenAIMessages) -> dict[str, str]:
    """Where there is one value alone, what the user said last stands for it, unless there is more in it."""
    said = _last_said(conversation)
    if not names:
        return {}
    if len(names) > 1 or not said or ((words := longest_words(prompt)) and words in said):
        shown = ", ".join(map(repr, names))
        raise UnfitRolloutError(f"the prompt was not found in any model call, and the task does not contain {shown}")
    return dict.fromkeys(names, said)


def _values_of_task(names: Sequence[str], task: Any) -> dict[str, str] | None:
    if not isinstance(task, Mapping) or not all(name in task for name in names):
        return None
    return {name: str(task[name]) for name in names}


def _prompts(conversation: OpenAIMessages) -> Iterator[str]:
    """What the model was given, the last message first."""
    for message in reversed(conversation["messages"][:-1]):
        text = _raw_text(message)
        if text:
            yield text


def _last_said(conversation: OpenAIMessages) -> str | None:
    users = [each for each in conversation["messages"][:-1] if each.get("role") == "user"]
    return next(filter(None, map(_text, reversed(users))), None)


def _input(conversation: OpenAIMessages, prompt: PromptTemplate, task: Any) -> str:
    """What the user said last beside the prompt; the task, where that is nothing."""
    said = (_last_said(conversation) or "").replace(prompt.template.strip(), "", 1).strip()
    return said or (task.strip() if isinstance(task, str) else msgspec.json.encode(task, enc_hook=repr).decode())


def _text(message: Mapping[str, Any]) -> str:
    return _raw_text(message).strip()


def _raw_text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part["text"]) for part in parts if isinstance(part, Mapping) and "text" in part)
