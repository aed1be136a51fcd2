"""The candidates of a search over prompts, and the book that keeps every one of them.

A book holds its candidates in the order of making. A parent always stands before its children, so a book is a tree
(with more than one line of descent where prompts were merged). Everything in it can be written as UTF-8 and as JSON.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from ...errors import ConfigError, InvalidInputError, UnknownIdError
from ...stats import mean_interval, wilson_interval
from ...types import PromptTemplate

Status = Literal["new", "rejected", "dropped", "kept", "best"]
_FORMAT = 1


class Cost(msgspec.Struct, frozen=True):
    """What was paid. `dollars` is None where nobody knows the price."""

    rollouts: int = 0
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float | None = None

    def __post_init__(self) -> None:
        _check_finite("dollars", self.dollars)

    def __add__(self, other: "Cost") -> "Cost":
        if not isinstance(other, Cost):
            return NotImplemented
        known = [each.dollars for each in (self, other) if each.dollars is not None]
        return Cost(
            self.rollouts + other.rollouts,
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            math.fsum(known) if known else None,
        )

    def text(self) -> str:
        """For people, without what was not used: `16 rollouts, 2 calls, 1,204 + 310 tokens, $0.0042`.

        The tokens are those read and those written.
        """
        parts = [_counted(self.rollouts, "rollout"), _counted(self.calls, "call")]
        if self.input_tokens or self.output_tokens:
            parts.append(f"{self.input_tokens:,} + {self.output_tokens:,} tokens")
        if self.dollars is not None:
            parts.append(f"${self.dollars:.4g}")
        return ", ".join(filter(None, parts)) or "nothing"


class Score(msgspec.Struct, frozen=True):
    """The mean reward of a candidate and its 95 % interval, which one reward alone does not have."""

    mean: float
    low: float | None
    high: float | None
    count: int

    def __post_init__(self) -> None:
        for name in ("mean", "low", "high"):
            _check_finite(name, getattr(self, name))

    @classmethod
    def of(cls, rewards: Sequence[float]) -> "Score":
        """Wilson's interval where every reward is 0 or 1, else the t interval."""
        values = [float(reward) for reward in rewards]
        if not values:
            raise InvalidInputError("no rewards: a score needs at least one")
        if not all(map(math.isfinite, values)):
            bad = next(value for value in values if not math.isfinite(value))
            raise InvalidInputError(f"one of the rewards is {bad}: a score needs finite numbers")
        low, high = _interval(values)
        return cls(_mean(values), low, high, len(values))

    def text(self) -> str:
        """`0.62 (0.41 to 0.79, n=16)`."""
        if self.low is None or self.high is None:
            return f"{short_number(self.mean)} (n={self.count})"
        return f"{short_number(self.mean)} ({short_number(self.low)} to {short_number(self.high)}, n={self.count})"


class Candidate(msgspec.Struct, frozen=True):
    """One set of prompts that was tried, or refused before it was tried.

    `critique` says why it was made: the critic's words, a reflection, the names of demonstrations. `reason` says why
    it was rejected, dropped or kept.
    """

    version: str
    prompts: dict[str, PromptTemplate]
    parents: list[str] = []
    round: int = 0
    critique: str | None = None
    score: Score | None = None
    cost: Cost = msgspec.field(default_factory=Cost)
    status: Status = "new"
    reason: str | None = None

    def __post_init__(self) -> None:
        if not self.version:
            raise InvalidInputError("the version of a candidate is empty: give it a name, such as 'v1'")
        if not self.prompts:
            raise InvalidInputError(f"candidate {self.version!r} has no prompt: give at least one")
        for name, each in self.prompts.items():
            if each.allows_code:
                raise InvalidInputError(f"candidate {self.version!r} has the prompt {name!r}, which allows code")
        # Models write half characters at times, which no file can hold. They must not end a run that records them.
        _set(self, "prompts", {_writable(name): _writable_prompt(each) for name, each in self.prompts.items()})
        _set(self, "critique", self.critique and _writable(self.critique))
        _set(self, "reason", self.reason and _writable(self.reason))

    @property
    def template(self) -> PromptTemplate:
        """The only prompt."""
        if len(self.prompts) > 1:
            names = ", ".join(map(repr, self.prompts))
            raise ConfigError(f"candidate {self.version!r} has several prompts: use .prompts[...] with one of {names}")
        return next(iter(self.prompts.values()))

    @property
    def parent(self) -> str | None:
        """The first of its parents; the seed has none."""
        return self.parents[0] if self.parents else None


class _Written(msgspec.Struct, frozen=True):
    """A book as it is written."""

    format: int
    best_version: str | None
    candidates: list[Candidate]
    other_cost: Cost = msgspec.field(default_factory=Cost)


class CandidateBook:
    """Every candidate of a search, in the order of making."""

    def __init__(self) -> None:
        self._candidates: dict[str, Candidate] = {}
        self._best: str | None = None
        self.other_cost = Cost()
        """What was paid and belongs to no candidate, or to none yet."""

    def add(self, candidate: Candidate) -> Candidate:
        """Enter a new candidate, whose parents are in the book."""
        if candidate.version in self._candidates:
            raise InvalidInputError(
                f"there is already a candidate {candidate.version!r}: give every candidate its own version"
            )
        for parent in candidate.parents:
            if parent not in self._candidates:
                raise InvalidInputError(
                    f"there is no candidate {parent!r}, a parent of {candidate.version!r}: add it first"
                )
        self._candidates[candidate.version] = candidate
        return candidate

    def update(self, version: str, **changes: Any) -> Candidate:
        """The candidate with these fields changed. Where it comes from cannot change."""
        for name in changes:
            if name not in Candidate.__struct_fields__:
                raise InvalidInputError(f"a candidate has no {name!r}: it has {', '.join(Candidate.__struct_fields__)}")
            if name == "parents":
                raise InvalidInputError(f"the parents of {version!r} cannot change: add a new candidate instead")
        changed = msgspec.structs.replace(self.get(version), **changes)
        self._candidates[version] = changed
        return changed

    def get(self, version: str) -> Candidate:
        if version not in self._candidates:
            raise UnknownIdError(f"there is no candidate {version!r}: {_names(self._candidates)}")
        return self._candidates[version]

    def find(self, prompts: Mapping[str, PromptTemplate]) -> Candidate | None:
        """The first candidate with the same texts and engines."""
        wanted = dict(prompts)
        return next((each for each in self if each.prompts == wanted), None)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(list(self._candidates.values()))

    def __len__(self) -> int:
        return len(self._candidates)

    def __contains__(self, version: object) -> bool:
        return version in self._candidates

    @property
    def seed(self) -> Candidate:
        """The first candidate."""
        if not self._candidates:
            raise ConfigError("there are no candidates yet: the search has not started")
        return next(iter(self._candidates.values()))

    @property
    def best_version(self) -> str | None:
        return self._best

    @best_version.setter
    def best_version(self, version: str | None) -> None:
        """Name the best. Its status becomes `best`; the one before it stays as `kept`."""
        if version is not None:
            self.get(version)
        if self._best is not None and self._best != version and self.get(self._best).status == "best":
            self.update(self._best, status="kept")
        if version is not None:
            self.update(version, status="best")
        self._best = version

    @property
    def best(self) -> Candidate:
        """The best so far; the seed while none is named."""
        return self.seed if self._best is None else self.get(self._best)

    @property
    def cost(self) -> Cost:
        """What the whole search took."""
        return sum((each.cost for each in self), self.other_cost)

    def as_json(self) -> dict[str, Any]:
        """The book as plain values, which `of` reads."""
        written: dict[str, Any] = msgspec.to_builtins(_Written(_FORMAT, self._best, list(self), self.other_cost))
        return written

    @classmethod
    def of(cls, value: Any) -> "CandidateBook":
        """The book that `as_json` gave."""
        try:
            written = msgspec.convert(value, _Written)
            _check_format(written.format)
            return cls._filled(written)
        except (msgspec.ValidationError, InvalidInputError) as error:
            raise ConfigError(f"the candidates are damaged: {error}") from error

    @classmethod
    def _filled(cls, written: _Written) -> "CandidateBook":
        book = cls()
        book.other_cost = written.other_cost
        for candidate in written.candidates:
            book.add(candidate)
        if written.best_version is not None:
            book._best = book.get(written.best_version).version
        return book


def _check_format(number: int) -> None:
    if number != _FORMAT:
        raise ConfigError(f"the candidates are in format {number}, but this version of sharpen reads format {_FORMAT}")


def _check_finite(name: str, value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise InvalidInputError(f"{name} is {value}: use a finite number")


def _mean(values: list[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the sum has no number: fractions are slow, but have no bounds
        return float(statistics.mean(values))


def _interval(values: list[float]) -> tuple[float | None, float | None]:
    if len(values) == 1:
        return None, None
    if all(value in (0.0, 1.0) for value in values):
        return wilson_interval(int(sum(values)), len(values))
    try:
        low, high = mean_interval(values)
    except OverflowError:  # rewards near the largest float: the spread has no number
        return None, None
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)


def short_number(value: float) -> str:
    """A reward of any scale, in few digits: `0.62`, `0.011`, `-12.50`, `1.234e+06`."""
    if value == 0 or 0.1 <= abs(value) < 100:
        return f"{value:.2f}"
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.4g}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}" if count else ""


def _names(candidates: Mapping[str, Candidate]) -> str:
    if not candidates:
        return "there are none yet"
    first, last = next(iter(candidates)), next(reversed(list(candidates)))
    return f"there are {len(candidates)}, {first!r} to {last!r}"


_set = msgspec.structs.force_setattr


def _writable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _writable_prompt(prompt: PromptTemplate) -> PromptTemplate:
    text = _writable(prompt.template)
    return prompt if text == prompt.template else PromptTemplate(text, prompt.engine)
