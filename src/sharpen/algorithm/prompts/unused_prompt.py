"""Whether an agent uses the prompt that it is given: candidates for one that nobody reads are all alike."""

import json
import re
from collections.abc import Mapping, Sequence

from ...adapter.messages import OpenAIMessages
from ...types import PromptTemplate
from .placeholders import optional_names, placeholders

_FIELD = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|<[^<>]*>|\{[A-Za-z_][^{}]*\}", re.DOTALL)
_SPACE = re.compile(r"\s+")
SHORTEST = 8  # characters; a shorter piece may be found anywhere


def unused_prompts(prompts: Mapping[str, PromptTemplate], conversations: Sequence[OpenAIMessages]) -> list[str]:
    """The names of prompts whose own words stand in none of the conversations. Without any, nobody can tell."""
    if not conversations:
        return []
    said = _said([each["messages"] for each in conversations])
    return [name for name, prompt in prompts.items() if (piece := _longest_piece(prompt)) and piece not in said]


def optional_fields_filled(prompt: PromptTemplate, conversations: Sequence[OpenAIMessages]) -> dict[str, bool]:
    """Return, by name, whether the agent filled each optional field of the prompt; empty if the prompt was not seen."""
    piece = _longest_piece(prompt)
    asked = [[each for each in one["messages"] if each.get("role") != "assistant"] for one in conversations]
    said = next((text for text in map(_said, asked) if piece and piece in text), None)
    return {} if said is None else {name: f"{{{name}}}" not in said for name in optional_names(prompt)}


def _said(messages: object) -> str:
    return _SPACE.sub(" ", json.dumps(messages, ensure_ascii=False))


def unfilled_fields(
    prompts: Mapping[str, PromptTemplate], conversations: Sequence[OpenAIMessages]
) -> list[tuple[str, str]]:
    """Places of prompts that stand in a conversation as they were written, with the names of the prompts."""
    said = json.dumps([each["messages"] for each in conversations], ensure_ascii=False)
    plain = {name: prompt for name, prompt in prompts.items() if prompt.engine == "f-string"}  # others leave nothing
    return [(name, field) for name, prompt in plain.items() for field in placeholders(prompt) if f"{{{field}}}" in said]


def _longest_piece(prompt: PromptTemplate) -> str:
    """Of the words between the fields, as they stand in JSON; nothing where they are too few."""
    pieces = [_SPACE.sub(" ", piece).strip() for piece in re.split(r"\n", _FIELD.sub("\n", prompt.template))]
    longest = max(pieces, key=len, default="")
    return json.dumps(longest, ensure_ascii=False)[1:-1] if len(longest) >= SHORTEST else ""
