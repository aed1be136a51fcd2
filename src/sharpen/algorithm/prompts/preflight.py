"""What is checked before a search pays for more: its options, and what the first rollouts of the seed prompt say.

Options are checked where the search is made, and the first rollouts before any candidate is.
"""

import inspect
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict, TypeVar

from ...adapter.messages import OpenAIMessages
from ...checks import check_names, check_number
from ...errors import ConfigError, MissingResourceError, MissingValueError, RunError
from ...types import PromptTemplate
from .evaluations import Evaluation
from .templates import optional_names, placeholders

log = logging.getLogger(__name__)
Number = TypeVar("Number", float, float | None)

# -- options ---------------------------------------------------------------------------------------


def check_timeout(name: str, value: float) -> float:
    """Return a time limit; infinity is none."""
    return (
        value if isinstance(value, float) and value == math.inf else check_number(name, value, above=0, unit="seconds")
    )


def check_models(**models: str) -> None:
    for name, value in models.items():
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(f"{name} is {value!r}: use the name of a model")


def check_temperature(name: str, value: Number, *, optional: bool = False) -> Number:
    return check_number(name, value, at_least=0, at_most=2, optional=optional)


def check_client(name: str, client: object) -> None:
    """One that is given; None is for one that is chosen."""
    create = getattr(getattr(getattr(client, "chat", None), "completions", None), "create", None)
    if client is not None and (create is None or type(client).__name__ in ("OpenAI", "AzureOpenAI")):
        raise ConfigError(f"{name} is of type {type(client).__name__}: pass an openai.AsyncOpenAI")


class SharedOptions(TypedDict, total=False):
    """What each of them means is said at `PromptOptimiser`."""

    train_split: float
    resource_name: str | None
    seed: int | None
    perfect_reward: float | None
    model: str | os.PathLike[str] | None
    max_response_tokens: int


def check_options(search: object, kind: type, given: Iterable[str]) -> None:
    """Refuse what no search of this kind has, with the nearest name that it has."""
    own = [each.name for each in inspect.signature(kind).parameters.values() if each.kind is not each.VAR_KEYWORD]
    check_names(given, [*own, *SharedOptions.__annotations__], owner=type(search).__name__)


# -- the first rollouts ----------------------------------------------------------------------------


def check_seed(evaluations: Sequence[Evaluation], *, has_llm: bool) -> None:
    """A search that can see nothing ends before it costs more. `has_llm`: whether agents are given a model."""
    if all(each.is_lost for each in evaluations):
        raise RunError(f"every rollout of the seed prompt was lost: {evaluations[0].error}")
    if all(each.status == "failed" for each in evaluations):
        _check_failed(evaluations, has_llm=has_llm)
    elif not any(each.has_reward for each in evaluations):
        raise ConfigError(
            "no rollout of the seed prompt has a reward, so prompts cannot be compared: return a number from the "
            "agent, or call emit_reward in it"
        )


def _check_failed(evaluations: Sequence[Evaluation], *, has_llm: bool) -> None:
    """Another prompt may repair an agent that fails, but gives it no resource and no value that it lacks."""
    first, kinds = evaluations[0].error or "", {each.error_type for each in evaluations}
    if kinds == {MissingResourceError.__name__}:
        model = "" if has_llm else ", or serve a local model with model="
        raise ConfigError(f"no rollout of the seed prompt could start. {first}{model}")
    if kinds == {MissingValueError.__name__}:
        raise ConfigError(f"no rollout could fill in the seed prompt. {first}")
    log.warning(
        "every rollout of the seed prompt failed, the first with %s. The search continues for one round, since another "
        "prompt may help; if none does, stop the run and fix the agent",
        first,
    )


# -- whether the agent uses its prompt -------------------------------------------------------------


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
