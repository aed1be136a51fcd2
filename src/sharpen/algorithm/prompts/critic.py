"""The critic says what is weak in a prompt, the editor writes a better one; and how they are shown rollouts.

They are asked in words from files, `apo/prompts/critique_*.txt` and `apo/prompts/edit_*.txt`, which can be replaced by
others. Values are put into them in one pass, so that braces in a prompt or in a conversation stay what they are.

What they are shown keeps within a bound, however long the conversations are: a long text loses its middle, and says how
much of it. Nothing depends on time or ids: the same rollouts are always shown in the same words.
"""

import json
import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...adapter.messages import OpenAIMessages
from ...emitter import get_message_value, get_object_value, get_rewards_from_span
from ...errors import ConfigError, InvalidInputError, SharpenError
from ...secrets import shown
from ...types import PromptTemplate, Span
from .evaluations import Evaluation
from .failure_cause import NoAnswerError, TooLongError
from .models import Answer, Assistant
from .templates import placeholders

Purpose = Literal["critique", "edit"]

BEGIN, END = "<new_template>", "</new_template>"
MOST_OF_CRITIQUE = 8_000
LEAST_ROOM = 1_500  # characters for the rollouts; with less there is nothing to judge by
_OURS = Path(__file__).parents[1] / "apo" / "prompts"
_NEEDED: dict[Purpose, tuple[str, ...]] = {"critique": ("prompt", "rollouts"), "edit": ("prompt", "critique")}
_LIKE_PATH = re.compile(r"[^\s{}]*\.\w{1,10}")
# Without a fence inside: two blocks of code, one at each end, are no wrapping.
_FENCED = re.compile(r"\s*(?P<fence>`{3,}|~{3,})[^\n`]*\n(?P<inner>(?:(?!(?P=fence)).)*?)\n?(?P=fence)\s*", re.DOTALL)
_TAGGED = re.compile(r"\s*<template>\n?(?P<inner>.*?)\n?</template>\s*", re.DOTALL)
_BLOCK = re.compile(r"^(?P<fence>`{3,}|~{3,})[^\n`]*\n(?P<inner>.*?)\n?^(?P=fence)\s*$", re.DOTALL | re.MULTILINE)


class Critic:
    """Asks for critiques and edits of a prompt, each in one of several ways, chosen by the `rng` of the call.

    `critique_prompts` and `edit_prompts` take the place of ours: texts, or paths of text files. A critique needs the
    fields `{prompt}` and `{rollouts}`, an edit `{prompt}` and `{critique}`; both may use `{placeholders}`.
    """

    def __init__(
        self,
        assistant: Assistant,
        *,
        gradient_model: str,
        apply_edit_model: str,
        temperature: float | None,
        critique_prompts: Sequence[str | Path] | None = None,
        edit_prompts: Sequence[str | Path] | None = None,
    ) -> None:
        self._assistant = assistant
        self._gradient_model, self._apply_edit_model = gradient_model, apply_edit_model
        self._temperature = temperature
        self._critiques = load_prompts("critique", critique_prompts)
        self._edits = load_prompts("edit", edit_prompts)

    async def check(self) -> None:
        """Whether the models can be asked, as far as that is free to know."""
        await self._assistant.check([self._gradient_model, self._apply_edit_model])

    async def critique(
        self,
        template: PromptTemplate,
        results: Sequence[Mapping[str, Any]],
        rng: random.Random,
        *,
        given: Sequence[str] = (),
    ) -> Answer:
        """What is weak in the template, by what happened in these rollouts, and what to change.

        `given` are the optional fields of the template that agents fill.
        """
        if not results:
            raise InvalidInputError("no rollouts to base the critique on: pass at least one result")
        prompt, seed = rng.choice(self._critiques), rng.getrandbits(31)
        rollouts = show_rollouts(results)
        while True:
            values = {"rollouts": rollouts, **_shown_template(template, given)}
            try:
                return await self._ask(self._gradient_model, prompt, values, seed)
            except TooLongError:
                if len(rollouts) // 2 < LEAST_ROOM:
                    raise
            rollouts = show_rollouts(results, most_in_all=len(rollouts) // 2)

    async def edit(
        self, template: PromptTemplate, critique: str, rng: random.Random, *, given: Sequence[str] = ()
    ) -> Answer:
        """The template rewritten by the critique; the text of the answer is the new template and nothing else."""
        values = {"critique": clip(critique, MOST_OF_CRITIQUE), **_shown_template(template, given)}
        answer = await self._ask(self._apply_edit_model, rng.choice(self._edits), values, rng.getrandbits(31))
        if answer.is_cut_off and END not in answer.text:
            message = f"the edit by {self._apply_edit_model!r} reached its token limit before the template was complete"
            raise NoAnswerError(message, answer.cost)
        new = template_in(answer.text, template.template)
        if not new.strip():
            raise NoAnswerError(f"the edit by {self._apply_edit_model!r} contains no template", answer.cost)
        return msgspec.structs.replace(answer, text=new)

    async def _ask(self, model: str, prompt: PromptTemplate, values: Mapping[str, str], seed: int) -> Answer:
        messages = [{"role": "user", "content": prompt.format(**values)}]
        return await self._assistant.ask(model, messages, temperature=self._temperature, seed=seed)


def _shown_template(template: PromptTemplate, given: Sequence[str]) -> dict[str, str]:
    """The template, and its placeholders as they are written in it."""
    names = placeholders(template, given)
    if template.engine == "f-string":
        return {"prompt": template.template, "placeholders": ", ".join(f"{{{name}}}" for name in names) or "none"}
    listed = ", ".join(f"{{{{{name}}}}}" for name in names) or "none"
    language = "Jinja" if template.engine == "jinja" else "POML"
    return {"prompt": template.template, "placeholders": f"{listed} (the template is {language}, and must stay so)"}


# -- the new template in an answer -------------------------------------------------------------------


def template_in(text: str, parent: str) -> str:
    """The template between the marks; without marks, the only block of code; without one, the whole text."""
    inner = _between_marks(text, parent)
    if inner is None:
        blocks = [match["inner"] for match in _BLOCK.finditer(text)]
        inner = blocks[0] if len(blocks) == 1 and not _BLOCK.search(parent) else text.strip()
    # Models wrap a text in a fence, or in the tags in which they were shown the old one.
    for wrapping in (_FENCED, _TAGGED):
        match = wrapping.fullmatch(inner)
        inner = match["inner"] if match and not wrapping.fullmatch(parent) else inner
    return inner


def _between_marks(text: str, parent: str) -> str | None:
    if BEGIN not in text and END not in text:
        return None
    if BEGIN in parent or END in parent:  # the template itself speaks of the marks
        pairs = [text.partition(BEGIN)[2].rpartition(END)[0]]
    else:
        pairs = [piece.rpartition(BEGIN)[2] for piece in text.split(END)[:-1] if BEGIN in piece]
    # The longest: a model may name the marks beside using them. One of the two alone is a slip.
    inner = max(pairs, key=len) if pairs else text.rpartition(BEGIN)[2].partition(END)[0]
    return inner.removeprefix("\r").removeprefix("\n").removesuffix("\n").removesuffix("\r")


# -- files -------------------------------------------------------------------------------------------


def load_prompts(purpose: Purpose, paths: Sequence[str | Path] | None) -> list[PromptTemplate]:
    """These texts, or those of these files, or ours; one that cannot serve its purpose is an error."""
    if paths is None:
        return [_load(purpose, path) for path in sorted(_OURS.glob(f"{purpose}_*.txt"))]
    if isinstance(paths, str | Path) or not isinstance(paths, Sequence) or not paths:
        raise ConfigError(f"{purpose}_prompts is {shown(paths)}: use a list of texts or of paths to text files")
    return [_load(purpose, path) for path in paths]


def _load(purpose: Purpose, path: str | Path) -> PromptTemplate:
    where = f"{purpose}_prompts: {clip(str(path), 200)!r}"
    try:
        is_text = isinstance(path, str) and not _is_path(path)
        prompt = PromptTemplate(str(path) if is_text else Path(path).read_text(encoding="utf-8"))
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{where} cannot be read: {reason}; use a text file in UTF-8, or the text itself") from error
    problem = _problem(purpose, prompt)
    if problem:
        raise ConfigError(f"{where} {problem}")
    return prompt


def _is_path(entry: str) -> bool:
    """A text may be anything, so a path is what leads somewhere, or was clearly meant to."""
    if _LIKE_PATH.fullmatch(entry):
        return True
    try:
        return bool(entry) and Path(entry).exists()
    except (OSError, ValueError):  # too long for a path, or with characters that none can have
        return False


def _problem(purpose: Purpose, prompt: PromptTemplate) -> str | None:
    given = (*_NEEDED[purpose], "placeholders")
    found = placeholders(prompt, given)
    foreign = next((name for name in found if name not in given), None)
    if foreign is not None:
        return _foreign(foreign, purpose, given)
    missing = [f"{{{name}}}" for name in _NEEDED[purpose] if name not in found]
    if missing:
        return f"does not contain {' and '.join(missing)}: add it where the model should read it"
    try:
        prompt.format(**dict.fromkeys(given, ""))
    except SharpenError as error:
        return f"cannot be filled in: {error}"
    return None


def _foreign(name: str, purpose: Purpose, given: Sequence[str]) -> str:
    near = get_close_matches(name, given, n=1)
    use = f"did you mean {{{near[0]}}}?" if near else f"use {', '.join(f'{{{each}}}' for each in given)}."
    return (
        f"has {{{name}}}, which a {purpose} prompt does not have: {use} To use it as literal text, write {{{{{name}}}}}"
    )


# -- rollouts as a text ----------------------------------------------------------------------------


MOST_EACH = 6_000
MOST_IN_ALL = 24_000
_MOST_OF_ERROR = 600


def show_rollouts(
    results: Sequence[Mapping[str, Any]], *, most_each: int = MOST_EACH, most_in_all: int = MOST_IN_ALL
) -> str:
    """The rollouts, the worst first. A long one takes the room that the short ones leave."""
    ordered = sorted(results, key=_worth)
    heads = [_head(result, number, len(ordered)) for number, result in enumerate(ordered, start=1)]
    talks = [conversations_text(result.get("messages") or [], most_of_message=most_each // 2) for result in ordered]
    room = most_in_all - sum(len(head) + len("\n\n\n") for head in heads)
    shares = _shares([len(talk) for talk in talks], most_each, max(room, 0))
    shown = [f"{head}\n{clip(talk, share)}" for head, talk, share in zip(heads, talks, shares, strict=True)]
    return clip("\n\n".join(shown), most_in_all)


def _worth(result: Mapping[str, Any]) -> float:
    reward = result.get("final_reward")
    return -math.inf if reward is None or math.isnan(reward) else float(reward)


def _shares(lengths: Sequence[int], most_each: int, room: int) -> list[int]:
    """What each needs, up to an equal share of what the shorter ones leave."""
    shares = [0] * len(lengths)
    for place, index in enumerate(sorted(range(len(lengths)), key=lambda index: lengths[index])):
        shares[index] = min(lengths[index], most_each, room // (len(lengths) - place))
        room -= shares[index]
    return shares


def _head(result: Mapping[str, Any], number: int, count: int) -> str:
    reward = result.get("final_reward")
    worth = "no reward" if reward is None else f"reward {float(reward):.4g}"
    line = f"=== Run {number} of {count}: {worth}, {result.get('status', 'unknown')} ==="
    error = result.get("error")
    return f"{line}\nError: {clip(str(error), _MOST_OF_ERROR)}" if error else line


# -- rollouts as examples for a reflection ---------------------------------------------------------

MOST_OF_TASK = 4000
MOST_OF_MESSAGE = 2000
MOST_OF_CONVERSATION = 8000
MOST_OF_NOTES = 2000


def record_of(evaluation: Evaluation, spans: Sequence[Span], conversations: Sequence[OpenAIMessages]) -> dict[str, Any]:
    """One example, under headings that gepa's prompt speaks of."""
    talk = conversations_text(conversations, most_of_message=MOST_OF_MESSAGE)
    return {
        "Inputs": clip(_as_text(evaluation.item.task), MOST_OF_TASK),
        "Conversation": clip(talk, MOST_OF_CONVERSATION),
        "Feedback": "\n".join(_feedback(evaluation, spans)),
    }


def record_without_trace(evaluation: Evaluation) -> dict[str, Any]:
    return {**record_of(evaluation, [], []), "Conversation": "(its trace is no longer in the store)"}


def _feedback(evaluation: Evaluation, spans: Sequence[Span]) -> Iterable[str]:
    """What the rollout was worth, part by part where its reward has several, and what was noted on the way."""
    if evaluation.is_lost:
        yield "It was lost to a failure of the machine, which says nothing about the instructions."
    elif not evaluation.has_reward:
        yield "It ended without a reward, which counts as 0."
    else:
        yield f"The reward is {evaluation.reward:g}; higher is better."
    for rewards in map(get_rewards_from_span, spans):
        if len(rewards) > 1:
            yield "Its parts: " + ", ".join(f"{name} {value:g}" for name, value in rewards)
    if evaluation.error:
        yield f"It failed: {clip(evaluation.error, MOST_OF_NOTES)}"
    notes = "\n".join(_notes(spans))
    if notes:
        yield f"What was noted on the way:\n{clip(notes, MOST_OF_NOTES)}"


def _notes(spans: Sequence[Span]) -> Iterable[str]:
    for span in spans:
        note = get_message_value(span)
        value = get_object_value(span) if note is None else note
        if value is not None:
            yield f"- {_as_text(value)}"


def _as_text(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str, indent=1 if isinstance(value, dict) else None)


# -- conversations as a text -----------------------------------------------------------------------


NO_CONVERSATION = "(no conversation was recorded)"
_LEFT_OUT = "\n[... {count:,} characters left out ...]\n"


def clip(text: str, most: int) -> str:
    """At most so many characters: a longer text loses its middle, and says so."""
    if len(text) <= most:
        return text
    # The note is at its longest when all is left out, so the bound holds whatever the count.
    kept = most - len(_LEFT_OUT.format(count=len(text)))
    if kept <= 0:
        return text[:most]
    start = (kept + 1) // 2
    return text[:start] + _LEFT_OUT.format(count=len(text) - kept) + text[len(text) - (kept - start) :]


def conversations_text(found: Sequence[Mapping[str, Any]], *, most_of_message: int) -> str:
    """One for each call of the model that no later call repeats; a plain list of messages is one conversation."""
    given = [{"messages": found}] if found and "role" in found[0] else found
    talks: list[list[str]] = []
    for each in given:
        lines = [*_tools(each.get("tools")), *map(_message, each.get("messages") or [])]
        talks = [talk for talk in talks if talk != lines[: len(talk)]] + [lines]
    texts = ["\n".join(clip(line, most_of_message) for line in talk) for talk in talks]
    if len(texts) < 2:
        return texts[0] if texts and texts[0] else NO_CONVERSATION
    return "\n".join(f"--- Conversation {number} ---\n{text}" for number, text in enumerate(texts, start=1))


def _tools(tools: Iterable[Mapping[str, Any]] | None) -> list[str]:
    names = [str((tool.get("function") or tool).get("name") or tool.get("type")) for tool in tools or ()]
    return [f"(the model can call: {', '.join(names)})"] if names else []


def _message(message: Mapping[str, Any]) -> str:
    said = [_content(message.get("content")), *map(_call, message.get("tool_calls") or ())]
    if message.get("refusal"):
        said.append(f"(refuses: {message['refusal']})")
    text = "\n".join(filter(None, said))
    if not text and message.get("reasoning_content"):
        text = f"(thinks, and says nothing: {message['reasoning_content']})"
    return f"[{message.get('role', 'unknown')}] {text or '(nothing)'}"


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        return json.dumps(content, ensure_ascii=False, default=str)
    return "\n".join(_part(part) for part in content)


def _part(part: Any) -> str:
    """A text as it is; of a picture or a sound only that it is there, since its bytes say nothing to a reader."""
    if not isinstance(part, Mapping):
        return str(part)
    text = part.get("text") or part.get("refusal")
    return str(text) if text else f"({part.get('type', 'something that is no text')})"


def _call(call: Mapping[str, Any]) -> str:
    called = call.get("function") or call.get("custom") or call
    arguments = called.get("arguments", called.get("input", ""))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    return f"-> calls {called.get('name', 'a tool')}({text})"
