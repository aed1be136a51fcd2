"""What the reflecting model is shown of a rollout: the task, the conversation, and what it was worth.

A long text loses its middle, and says how much of it. Nothing here depends on time or ids: the same rollouts are always
shown in the same words.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...adapter.messages import OpenAIMessages
from ...emitter import get_message_value, get_object_value, get_rewards_from_span
from ...types import Span
from ..prompts.evaluations import Evaluation

MOST_OF_TASK = 4000
MOST_OF_MESSAGE = 2000
MOST_OF_CONVERSATION = 8000
MOST_OF_NOTES = 2000
NO_CALLS = "(no call of a model was recorded)"
NO_TRACE = "(its trace is no longer in the store)"


def record_of(evaluation: Evaluation, spans: Sequence[Span], conversations: Sequence[OpenAIMessages]) -> dict[str, Any]:
    """One example, under headings that gepa's prompt speaks of."""
    return {
        "Inputs": clipped(as_text(evaluation.item.task), MOST_OF_TASK),
        "Conversation": conversation_text(conversations),
        "Feedback": feedback_text(evaluation, spans),
    }


def record_without_trace(evaluation: Evaluation) -> dict[str, Any]:
    return {**record_of(evaluation, [], []), "Conversation": NO_TRACE}


# -- the conversation --------------------------------------------------------------------------------


def conversation_text(conversations: Sequence[OpenAIMessages]) -> str:
    """All calls in the order of time. Most repeat the conversation so far: what is new is shown."""
    lines: list[str] = []
    before: list[Any] = []
    for number, conversation in enumerate(conversations):
        messages = conversation["messages"]
        goes_on = bool(before) and messages[: len(before)] == before
        if number and not goes_on:
            lines.append("--- another conversation ---")
        lines += [message_text(each) for each in (messages[len(before) :] if goes_on else messages)]
        before = messages
    return clipped("\n".join(lines), MOST_OF_CONVERSATION) or NO_CALLS


def message_text(message: Mapping[str, Any]) -> str:
    said = [as_text(message.get("content") or message.get("refusal") or "")]
    said += [_call_text(each) for each in message.get("tool_calls") or []]
    return f"[{message.get('role')}] {clipped(' '.join(filter(None, said)), MOST_OF_MESSAGE)}"


def _call_text(call: Mapping[str, Any]) -> str:
    function = call.get("function") or {}
    return f"calls {function.get('name')}({as_text(function.get('arguments') or '')})"


# -- what it was worth -------------------------------------------------------------------------------


def feedback_text(evaluation: Evaluation, spans: Sequence[Span]) -> str:
    parts = [_reward_text(evaluation), *_parts_of_rewards(spans)]
    if evaluation.error:
        parts.append(f"It failed: {clipped(evaluation.error, MOST_OF_NOTES)}")
    notes = "\n".join(_notes(spans))
    if notes:
        parts.append(f"What was noted on the way:\n{clipped(notes, MOST_OF_NOTES)}")
    return "\n".join(parts)


def _reward_text(evaluation: Evaluation) -> str:
    if evaluation.is_lost:
        return "It was lost to a failure of the machine, which says nothing about the instructions."
    if not evaluation.has_reward:
        return "It ended without a reward, which counts as 0."
    return f"The reward is {evaluation.reward:g}; higher is better."


def _parts_of_rewards(spans: Sequence[Span]) -> Iterable[str]:
    """A reward of several dimensions, part by part."""
    for span in spans:
        rewards = get_rewards_from_span(span)
        if len(rewards) > 1:
            yield "Its parts: " + ", ".join(f"{name} {value:g}" for name, value in rewards.items())


def _notes(spans: Sequence[Span]) -> Iterable[str]:
    for span in spans:
        note = get_message_value(span)
        value = get_object_value(span) if note is None else note
        if value is not None:
            yield f"- {as_text(value)}"


# -- texts -------------------------------------------------------------------------------------------


def as_text(value: Any) -> str:
    """A text as it is, parts of a message as their texts, anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(each, dict) and "type" in each for each in value):
        return " ".join(str(each.get("text") or f"({each['type']})") for each in value)
    return json.dumps(value, ensure_ascii=False, default=str, indent=1 if isinstance(value, dict) else None)


def clipped(text: str, most: int) -> str:
    """With its middle left out where it is longer."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n… {len(text) - most:,} characters left out …\n{text[len(text) - most // 2 :]}"
