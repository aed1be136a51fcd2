"""New texts for the components of a candidate, by a model that reflects on rollouts.

gepa writes the question and we add what it does not know: which places for values the text must keep. An answer that
cannot be used is asked for once more, with the reason, before any rollout is spent on it; each is in the book.
"""

import hashlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...types import PromptTemplate
from ..prompts.candidates import Cost
from ..prompts.models import Answer
from ..prompts.race import side_by_side
from ..prompts.templates import as_child, placeholders, why_unfit
from .family import Family, Texts
from .rollout_adapter import Examples
from .search_thread import SearchThread

log = logging.getLogger(__name__)
Messages = list[dict[str, Any]]
Ask = Callable[[str, Messages], Awaitable[Answer]]
Job = tuple[Texts, Examples, Sequence[str]]
ATTEMPTS = 2
_FENCE = "```"
_ORDER = (
    "Before the new instruction, say in two or three sentences what went wrong and what you change. Write nothing but "
    "the new instruction itself within the ``` blocks."
)
_PART = "The instruction is the part called {name!r} of a system that has several: write this part only."


@dataclass(frozen=True, slots=True)
class Draft:
    """One answer of the model: a text for one component, and why it cannot be used."""

    component: str
    text: str
    reflection: str
    why_unfit: str | None
    cost: Cost


@dataclass(slots=True)
class Drafts:
    """All answers for one component: those that cannot be used, and the one that can."""

    unfit: list[Draft] = field(default_factory=list)
    fit: Draft | None = None


class Reflector:
    """`ask` gives an answer, with an empty text where the model gave none.

    `given` returns the optional fields of a component's seed prompt that agents fill.
    """

    def __init__(
        self,
        thread: SearchThread,
        family: Family,
        *,
        ask: Ask,
        template: str | Mapping[str, str] | None,
        given: Callable[[str], Sequence[str]],
    ) -> None:
        self._given = given
        self._thread, self._family, self._ask, self._template = thread, family, ask, template
        self.num_asked = self.num_unanswered = 0

    def reflect(self, candidate: Texts, examples: Examples, components: Sequence[str]) -> tuple[Any, "Reflector"]:
        return self.reflect_many([(candidate, examples, components)])[0]

    def reflect_many(self, jobs: Sequence[Job]) -> list[tuple[Any, "Reflector"]]:
        """One proposal for each job; without texts where nothing came of it."""
        return [(each, self) for each in self._thread.wait_for(lambda: self._propose_all(jobs))]

    async def _propose_all(self, jobs: Sequence[Job]) -> list[Any]:
        names = [
            f"v{self._family.round}" + (f".{number}" if len(jobs) > 1 else "") for number in range(1, len(jobs) + 1)
        ]
        written = await side_by_side(*(self._write(name, job) for name, job in zip(names, jobs, strict=True)))
        # In the order of the jobs, so that it does not matter which answer came first.
        return [self._propose(name, job, found) for name, job, found in zip(names, jobs, written, strict=True)]

    # -- asking --------------------------------------------------------------------------------------

    async def _write(self, version: str, job: Job) -> list[Drafts]:
        return await side_by_side(*(self._write_one(version, job, component) for component in job[2]))

    async def _write_one(self, version: str, job: Job, component: str) -> Drafts:
        texts, examples, _ = job
        component = self._family.name(component)
        messages: Messages = [{"role": "user", "content": self._question(texts, examples, component)}]
        place, found = f"{version}/{component}/{_digest(texts, examples)}", Drafts()
        for attempt in range(ATTEMPTS):
            answer = await self._ask(f"{place}/{attempt}", messages)
            self.num_asked += 1
            if not answer.text:
                self.num_unanswered += 1
                self._family.spend(answer.cost)
                break
            draft = self._read(component, texts[component], answer)
            if draft.why_unfit is None:
                found.fit = draft
                break
            found.unfit.append(draft)
            messages = [*messages, *_complaint(answer, draft.why_unfit)]
        return found

    def _question(self, texts: Texts, examples: Examples, component: str) -> str:
        """gepa's prompt, or the user's; what the text must keep is said at its end."""
        from gepa.strategies.instruction_proposal import InstructionProposalSignature as Signature

        own = self._template.get(str(component)) if isinstance(self._template, Mapping) else self._template
        given = {
            "current_instruction_doc": texts[component],
            "dataset_with_feedback": examples[component],
            "prompt_template": own,
        }
        orders = [
            _ORDER if own is None else "",
            _PART.format(name=str(component)) if len(texts) > 1 else "",
            what_to_keep(self._family.prompt(component, texts[component]), self._given(str(component))),
        ]
        return "\n\n".join(filter(None, [str(Signature.prompt_renderer(given)), *orders]))

    def _read(self, component: str, old: str, answer: Answer) -> Draft:
        text, reflection = split_answer(answer.text)
        reason = "it was cut off at the token limit of the model" if answer.is_cut_off else None
        parent = self._family.prompt(component, old)
        new = as_child(self._family.prompt(component, text), parent)
        reason = reason or why_unfit(new, parent, self._given(str(component)))
        return Draft(component, new.template, reflection, reason, answer.cost)

    # -- what came of it -----------------------------------------------------------------------------

    def _propose(self, version: str, job: Job, written: Sequence[Drafts]) -> Any:
        from gepa.proposer.reflective_mutation.reflection_lm import ReflectionProposal

        texts, _, _ = job
        parent = self._family.version_of(texts)
        assert parent is not None, "gepa reflected on a candidate that was never evaluated"
        self._reject(version, texts, parent, [draft for each in written for draft in each.unfit])
        fit = [each.fit for each in written if each.fit is not None]
        new = {draft.component: draft.text for draft in fit}
        is_entered = bool(new) and self._enter(version, {**texts, **new}, parent, fit)
        return ReflectionProposal(new_texts=new if is_entered else {})

    def _enter(self, version: str, texts: Texts, parent: str, drafts: Sequence[Draft]) -> bool:
        """False where there is such a candidate already."""
        twin = self._family.version_of(texts)
        cost = sum((draft.cost for draft in drafts), Cost())
        if twin is None:
            self._family.enter(version, texts, parents=[parent], critique=_critique(drafts), cost=cost)
        else:
            reason = f"it is the same as {twin}"
            self._family.reject(version, texts, parents=[parent], critique=_critique(drafts), cost=cost, reason=reason)
        return twin is None

    def _reject(self, version: str, texts: Texts, parent: str, drafts: Sequence[Draft]) -> None:
        for number, draft in enumerate(drafts, start=1):
            name = f"{version}-unfit{number if len(drafts) > 1 else ''}"
            log.info("%s was rejected: %s", name, draft.why_unfit)
            self._family.reject(
                name,
                {**texts, draft.component: draft.text},
                parents=[parent],
                critique=draft.reflection or None,
                cost=draft.cost,
                reason=draft.why_unfit or "",
            )


def what_to_keep(prompt: PromptTemplate, given: Sequence[str] = ()) -> str:
    """The order to keep the places for values; empty where there are none."""
    names = placeholders(prompt, given)
    if not names:
        return ""
    if prompt.engine != "f-string":
        return f"It is a {prompt.engine} template: the new instruction must use the values {', '.join(names)} too."
    fields = ", ".join(f"{{{name}}}" for name in names)
    return f"Values take the place of {fields}: the new instruction must hold each of them, written exactly so."


def split_answer(answer: str) -> tuple[str, str]:
    """The new text, and what was said beside it. An answer without ``` is the text itself."""
    from gepa.strategies.instruction_proposal import InstructionProposalSignature as Signature

    before, fence, rest = answer.partition(_FENCE)
    if fence and _FENCE not in rest and rest.strip():  # a block that was not closed
        return re.sub(r"^\S*\n", "", rest).strip(), before.strip()
    text = str(Signature.output_extractor(answer.strip())["new_instruction"])
    if not fence:
        return text, ""
    after = rest.rpartition(_FENCE)[2]
    return text, "\n".join(filter(None, (before.strip(), after.strip())))


def _complaint(answer: Answer, reason: str) -> Messages:
    order = f"This cannot be used: {reason}. Write the whole new instruction again, within ``` blocks."
    return [{"role": "assistant", "content": answer.text}, {"role": "user", "content": order}]


def _critique(drafts: Sequence[Draft]) -> str | None:
    if len(drafts) == 1:
        return drafts[0].reflection or None
    return "\n".join(f"{draft.component}: {draft.reflection}" for draft in drafts if draft.reflection) or None


def _digest(texts: Texts, examples: Examples) -> str:
    """What was asked about: an answer is never taken for the answer to another question."""
    told = [sorted(texts.items()), [(item.split, item.index) for item in examples.about]]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:12]
