"""What the reflecting model is shown of a rollout: the task, the conversation, and what it was worth.

Nothing here depends on time or ids: the same rollouts are always shown in the same words.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ...adapter.messages import OpenAIMessages
from ...emitter import get_message_value, get_object_value, get_rewards_from_span
from ...types import Span
from ..prompts.critic import clip, conversations_text
from ..prompts.evaluations import Evaluation

MOST_OF_TASK = 4000
MOST_OF_MESSAGE = 2000
MOST_OF_CONVERSATION = 8000
MOST_OF_NOTES = 2000
NO_TRACE = "(its trace is no longer in the store)"


def record_of(evaluation: Evaluation, spans: Sequence[Span], conversations: Sequence[OpenAIMessages]) -> dict[str, Any]:
    """One example, under headings that gepa's prompt speaks of."""
    talk = conversations_text(conversations, most_of_message=MOST_OF_MESSAGE)
    return {
        "Inputs": clip(as_text(evaluation.item.task), MOST_OF_TASK),
        "Conversation": clip(talk, MOST_OF_CONVERSATION),
        "Feedback": feedback_text(evaluation, spans),
    }


def record_without_trace(evaluation: Evaluation) -> dict[str, Any]:
    return {**record_of(evaluation, [], []), "Conversation": NO_TRACE}


# -- what it was worth -------------------------------------------------------------------------------


def feedback_text(evaluation: Evaluation, spans: Sequence[Span]) -> str:
    parts = [_reward_text(evaluation), *_parts_of_rewards(spans)]
    if evaluation.error:
        parts.append(f"It failed: {clip(evaluation.error, MOST_OF_NOTES)}")
    notes = "\n".join(_notes(spans))
    if notes:
        parts.append(f"What was noted on the way:\n{clip(notes, MOST_OF_NOTES)}")
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
            yield "Its parts: " + ", ".join(f"{name} {value:g}" for name, value in rewards)


def _notes(spans: Sequence[Span]) -> Iterable[str]:
    for span in spans:
        note = get_message_value(span)
        value = get_object_value(span) if note is None else note
        if value is not None:
            yield f"- {as_text(value)}"


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str, indent=1 if isinstance(value, dict) else None)
