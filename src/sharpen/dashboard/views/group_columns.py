"""Rollouts of one task side by side: the reward of each compared with the mean, and its answer."""

import asyncio
import math
import statistics
from collections.abc import Sequence

import msgspec

from ...archive.transcript import Transcript, read_transcript
from ...errors import SpansEvictedError, UnknownIdError
from ...store import LightningStore
from ...types import Rollout
from .shown_text import Clipped, clipped

# The number of transcripts to read; further rollouts show only their reward.
MOST_READ = 24
_MOST_ANSWER = 1_200


class Column(msgspec.Struct, frozen=True):
    """One rollout. `advantage` is its reward minus the mean; lengths are those of its latest attempt."""

    rollout: Rollout
    advantage: float | None
    seconds: float | None
    is_read: bool
    answer: Clipped | None = None
    num_calls: int = 0
    num_tokens: int = 0
    num_characters: int = 0
    error: str | None = None


class Group(msgspec.Struct, frozen=True):
    """The columns, and what they have in common."""

    columns: list[Column]
    mean: float | None
    spread: float | None
    num_rewarded: int
    widest: float
    most_tokens: int
    most_characters: int


async def read_group(store: LightningStore, rollouts: Sequence[Rollout]) -> Group:
    """Return the columns in the order of the rollouts."""
    rewards = [each.reward for each in rollouts if each.reward is not None and math.isfinite(each.reward)]
    mean = math.fsum(reward / len(rewards) for reward in rewards) if rewards else None
    reads = [await _read(store, each) for each in rollouts[:MOST_READ]]
    padded = [*reads, *[None] * (len(rollouts) - len(reads))]
    columns = [_column(rollout, mean, read) for rollout, read in zip(rollouts, padded, strict=True)]
    return Group(
        columns,
        mean,
        _spread(rewards),
        len(rewards),
        max((abs(each.advantage) for each in columns if each.advantage is not None), default=0.0),
        max((each.num_tokens for each in columns), default=0),
        max((each.num_characters for each in columns), default=0),
    )


def _spread(rewards: Sequence[float]) -> float | None:
    try:
        return statistics.stdev(rewards) if len(rewards) > 1 else None
    except OverflowError:  # rewards near the largest float
        return None


async def _read(store: LightningStore, rollout: Rollout) -> Transcript | None:
    await asyncio.sleep(0)  # other tasks run between two transcripts
    try:
        return await read_transcript(store, rollout.rollout_id)
    except (UnknownIdError, SpansEvictedError):
        return None  # pruned meanwhile


def _column(rollout: Rollout, mean: float | None, read: Transcript | None) -> Column:
    reward = rollout.reward if rollout.reward is not None and math.isfinite(rollout.reward) else None
    advantage = None if reward is None or mean is None else reward - mean
    seconds = None if rollout.end_time is None else max(rollout.end_time - rollout.start_time, 0.0)
    if read is None:
        return Column(rollout, advantage, seconds, False)
    answer = _answer(read)
    return Column(
        rollout,
        advantage,
        seconds,
        True,
        None if answer is None else clipped(answer, _MOST_ANSWER),
        read.usage.calls,
        read.usage.output_tokens,
        len(answer or ""),
        read.errors[0] if read.errors else None,
    )


def _answer(read: Transcript) -> str | None:
    """Return the last answer."""
    for entry in reversed(read.entries):
        if entry.kind == "call" and entry.answer is not None:
            return entry.answer.text or "; ".join(f"{call.name}({call.arguments})" for call in entry.answer.tool_calls)
    said = [entry.text for entry in read.entries if entry.kind in ("message", "object") and entry.text]
    return said[-1] if said else None
