"""The candidates as gepa knows them (texts by name, numbers) and as the book does (prompts, versions).

A version follows from the round that made it, so a search that is replayed gives every candidate the name that it
has in the book already. A candidate is in the book from its first validation task on, or from the end of its round:
then it is known what it took to make it.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ...errors import ConfigError
from ...types import PromptTemplate
from ..prompts.candidates import Candidate, CandidateBook, Cost

Texts = Mapping[str, str]
TextsKey = tuple[tuple[str, str], ...]


class StableName(str):
    """A name whose hash is the same in every process.

    gepa draws lots for components in the order of a set of their names, which is another one in every process for
    plain texts: a resumed search would come to other candidates.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        return zlib.crc32(self.encode())

    def __deepcopy__(self, memo: dict[int, Any]) -> "StableName":
        return self


class Family:
    """`add` enters a candidate into the book. `open_cost` is what was paid and belongs to no candidate yet."""

    def __init__(
        self, book: CandidateBook, add: Callable[[Candidate], Candidate], *, has_stable_names: bool = False
    ) -> None:
        self._book, self._add, seed = book, add, book.seed
        self._engines = {name: prompt.engine for name, prompt in seed.prompts.items()}
        self._names = {name: StableName(name) if has_stable_names else name for name in self._engines}
        self._unsettled: dict[str, Candidate] = {}
        self.seed_texts = {self._names[name]: prompt.template for name, prompt in seed.prompts.items()}
        self._versions = {texts_key(self.seed_texts): seed.version}
        self.by_number = [seed.version]
        self.open_cost = Cost()
        self.round = 0
        self.made: list[str] = []

    def begin(self, number: int) -> None:
        """A new round, in which nothing is made yet."""
        self.round, self.made = number, []

    # -- names and texts -----------------------------------------------------------------------------

    def name(self, component: str) -> str:
        """A component by the name that is in gepa's candidates."""
        return self._names[str(component)]

    def prompt(self, component: str, text: str) -> PromptTemplate:
        return PromptTemplate(text, self._engines[str(component)])

    def prompts_of(self, version: str) -> dict[str, PromptTemplate]:
        found = self._unsettled.get(version) or self._book.get(version)
        return found.prompts

    def version_of(self, texts: Texts) -> str | None:
        """None where no such candidate was made yet, since this process began."""
        return self._versions.get(texts_key(texts))

    # -- new ones ------------------------------------------------------------------------------------

    def enter(
        self, version: str, texts: Texts, *, parents: Sequence[str], critique: str | None, cost: Cost | None = None
    ) -> None:
        self._versions[texts_key(texts)] = version
        self._unsettled[version] = self._candidate(version, texts, parents, critique, cost or Cost())
        self.made.append(version)

    def reject(
        self, version: str, texts: Texts, *, parents: Sequence[str], critique: str | None, cost: Cost, reason: str
    ) -> None:
        """For the book alone."""
        made = self._candidate(version, texts, parents, critique, cost)
        self._add_once(msgspec.structs.replace(made, status="rejected", reason=reason))

    def settle(self, version: str) -> None:
        """Put it into the book, with all that was paid since the last one."""
        made = self._unsettled.pop(version, None)
        if made is not None:
            self._add_once(msgspec.structs.replace(made, cost=made.cost + self.open_cost))
            self.open_cost = Cost()

    def spend(self, cost: Cost, version: str | None = None) -> None:
        """Where the version is in the book already, the next one bears the cost."""
        made = self._unsettled.get(version or "")
        if made is None:
            self.open_cost += cost
        else:
            self._unsettled[made.version] = msgspec.structs.replace(made, cost=made.cost + cost)

    def _candidate(
        self, version: str, texts: Texts, parents: Sequence[str], critique: str | None, cost: Cost
    ) -> Candidate:
        prompts = {str(name): self.prompt(name, text) for name, text in texts.items()}
        return Candidate(version, prompts, list(parents), self.round, critique, cost=cost)

    def _add_once(self, candidate: Candidate) -> None:
        if candidate.version not in self._book:
            self._add(candidate)
        elif self._book.get(candidate.version).prompts != candidate.prompts:
            raise ConfigError(
                f"{candidate.version} of this search differs from {candidate.version} of the run, which was started "
                "with other options or tasks: resume it with those, or start a new run"
            )


def texts_key(texts: Texts) -> TextsKey:
    return tuple(sorted((str(name), text) for name, text in texts.items()))
