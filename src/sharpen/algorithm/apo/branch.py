"""A branch of a round: one way from a parent to a candidate.

It works in a task of its own and is known there without being passed along. So its random choices and its paid answers
are its own however the public methods of `APO` are called, also by a subclass that overrides some of them.
"""

import logging
import zlib
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from ...errors import RunError
from ..prompts.candidates import Candidate, Cost
from ..prompts.evaluations import Evaluation
from ..prompts.items import Item

log = logging.getLogger(__name__)


class AllLostError(RunError):
    """Not one rollout says anything about the prompt."""


@dataclass
class Branch:
    """What it begins with, and what it came to."""

    place: str
    version: str
    parent: Candidate
    tasks: Sequence[Item]
    text: str | None = None
    unfit_text: str | None = None
    """The last one that was made and cannot be used."""
    critique: str | None = None
    why_none: str | None = None
    is_unanswered: bool = False
    """Whether it came to nothing because something else than the prompt failed."""
    answers_cost: Cost = field(default_factory=Cost)
    rollouts: dict[str, Evaluation] = field(default_factory=dict)
    reward_mean: float | None = None
    asked: Counter[str] = field(default_factory=Counter)

    @property
    def cost(self) -> Cost:
        return sum((each.cost for each in self.rollouts.values()), self.answers_cost)

    def give_up(self, reason: str, *, text: str | None = None, is_unanswered: bool = False) -> None:
        """For now: a later attempt may succeed. `text` is what cannot be used. Who had no answer has told so."""
        if not is_unanswered:
            log.info("%s: no candidate: %s", self.place, reason)
        self.why_none, self.unfit_text, self.is_unanswered = reason, text, is_unanswered


_current: ContextVar[Branch | None] = ContextVar("branch", default=None)


def work_for(branch: Branch) -> None:
    """From here on, the task that calls this works for the branch."""
    _current.set(branch)


def current_branch() -> Branch | None:
    """The branch that is worked for; None outside of a round."""
    return _current.get()


def next_place(what: str) -> str | None:
    """The name of the next answer of this kind; None outside of a branch, where answers are not kept."""
    branch = _current.get()
    if branch is None:
        return None
    branch.asked[what] += 1
    return f"{branch.place}/{what}{branch.asked[what]}"


def pay(cost: Cost) -> None:
    branch = _current.get()
    if branch is not None:
        branch.answers_cost += cost


def give_up(reason: str, *, text: str | None = None, is_unanswered: bool = False) -> None:
    branch = _current.get()
    if branch is not None:
        branch.give_up(reason, text=text, is_unanswered=is_unanswered)


def occasion_of(prefix: str | None) -> str:
    """In a branch, the branch; else by the name of the work, whatever characters it has."""
    branch = _current.get()
    if branch is not None:
        return branch.place
    return f"{zlib.crc32(prefix.encode('utf-8', 'replace')):08x}" if prefix else ""
