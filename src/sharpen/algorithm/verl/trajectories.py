"""Rollouts that count, as credit goes over them: what each call earned, and where its sampled tokens stand. No torch.

The sampled tokens of a call stand side by side, so nothing here goes token by token.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...llm.policy.samples import Sample
from .collected import CollectedRollout


class TurnSpan(NamedTuple):
    """The sampled tokens of one call within its sequence."""

    turn: int
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class TrainingSequence:
    """One sequence of a rollout, with what is known of its tokens besides."""

    sample: Sample
    spans: list[TurnSpan]
    """In the order of time."""
    temperature: float
    old_logprobs: Sequence[float] | None = None
    ref_logprobs: Sequence[float] | None = None
    values: Sequence[float] | None = None

    @property
    def num_trained(self) -> int:
        return sum(span.num_tokens for span in self.spans)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout that counts."""

    rollout: CollectedRollout
    reward: float
    sequences: list[TrainingSequence]

    @property
    def earned(self) -> list[float]:
        """What each call earned: the final reward stands at the last where no call was rewarded by itself."""
        if self.rollout.turn_rewards:
            return list(self.rollout.turn_rewards)
        return [0.0] * (self.rollout.num_calls - 1) + [self.reward]

    def in_time(self) -> list[tuple[TrainingSequence, TurnSpan]]:
        """The sampled tokens of all calls, in the order of time; conversations may have taken turns."""
        found = [(sequence, span) for sequence in self.sequences for span in sequence.spans]
        return found if len(self.sequences) == 1 else sorted(found, key=lambda each: each[1].turn)


class Laid(NamedTuple):
    """What one sequence is given: an entry per token, 0 where nothing was sampled."""

    advantages: list[float]
    returns: list[float] | None = None
    """What a critic learns."""
    has_spread: bool = True
    """False where there was nothing to compare with, or everything was the same."""


def turn_spans(sample: Sample) -> list[TurnSpan]:
    """Where the calls of a sequence stand. A call that sampled nothing has no place."""
    return [span for start, stop in _runs(sample.loss_mask) for span in _spans_of_run(sample, start, stop)]


def _spans_of_run(sample: Sample, start: int, stop: int) -> Iterator[TurnSpan]:
    """Two calls stand in one run where the second was asked with nothing but the sequence so far."""
    while start < stop:
        turn = sample.turn_of_token[start]
        is_last = sample.turn_of_token[stop - 1] == turn
        end = stop if is_last else start + sample.turn_of_token[start:stop].count(turn)
        yield TurnSpan(turn, start, end)
        start = end


def _runs(mask: tuple[bool, ...]) -> Iterator[tuple[int, int]]:
    """Where the mask is True, from and to."""
    stop = 0
    while (start := _place(mask, True, stop)) < len(mask):
        stop = _place(mask, False, start)
        yield start, stop


def _place(mask: tuple[bool, ...], value: bool, start: int) -> int:
    try:
        return mask.index(value, start)
    except ValueError:
        return len(mask)


def on_spans(length: int, pieces: Iterable[tuple[TurnSpan, Sequence[float]]]) -> list[float]:
    """The values of each span at its place, and 0 elsewhere."""
    found: list[float] = []
    for span, values in pieces:
        found += [0.0] * (span.start - len(found))
        found += values
    return found + [0.0] * (length - len(found))
