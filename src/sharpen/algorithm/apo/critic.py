"""The critic says what is weak in a prompt, the editor writes a better one; both are asked in words from files.

The files are `prompts/critique_*.txt` and `prompts/edit_*.txt`, and can be replaced by others. Values are put into
them in one pass, so that braces in a prompt or in a conversation stay what they are.
"""

import random
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import msgspec

from ...errors import ConfigError, InvalidInputError, SharpenError
from ...secrets import shown
from ...types import PromptTemplate
from ..prompts.assistant import Answer, Assistant, NoAnswerError, TooLongError
from ..prompts.conversations import clip
from ..prompts.placeholders import placeholders
from .shown_rollouts import show_rollouts

Purpose = Literal["critique", "edit"]

BEGIN, END = "<new_template>", "</new_template>"
MOST_OF_CRITIQUE = 8_000
LEAST_ROOM = 1_500  # characters for the rollouts; with less there is nothing to judge by
_OURS = Path(__file__).parent / "prompts"
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
