"""What one run computes: how many batches, of how many tokens, and how many it samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from .processes import processes
from .run_length import RunLength, run_length
from .settings import Settings

_UNKNOWN_LENGTH = 256
"""Tokens of a row where none was measured."""


@dataclass(frozen=True)
class Workload:
    """Sequences and tokens of a run. GRPO's completions are counted at their full length, which they may not need."""

    length: RunLength
    sequences: int
    """Of one batch."""
    longest: int
    """Tokens of the longest sequence, to which a batch is padded."""
    mean: float
    sampled: int
    """Completions that a process samples at once."""
    new_tokens: int
    is_referred: bool
    """Whether a reference model reads the batches, too."""

    @property
    def tokens(self) -> int:
        """Tokens that the run trains on, in all processes."""
        return round(self.length.batches * self.sequences * self.mean) * processes().count


def workload(settings: Settings, *, num_rows: int, lengths: Sequence[int]) -> Workload:
    """The work of a run over `num_rows` rows, of which some have these lengths in tokens (in GRPO: their prompts)."""
    known = list(lengths) or [_UNKNOWN_LENGTH]
    if settings.algorithm == "grpo":
        return _sampling(settings, num_rows, known)
    limit = settings.max_length
    cut = [min(each, limit) for each in known] if limit else known
    batch = settings.per_device_train_batch_size
    if settings.trl.get("packing") and limit:
        packed = max(round(num_rows * fmean(cut) / limit), 1)
        return Workload(run_length(settings, packed), batch, limit, limit, 0, 0, is_referred=False)
    sides = 2 if settings.algorithm == "dpo" else 1
    return Workload(
        length=run_length(settings, num_rows),
        sequences=batch * sides,
        longest=max(cut),
        mean=fmean(cut),
        sampled=0,
        new_tokens=0,
        is_referred=settings.algorithm == "dpo",
    )


def _sampling(settings: Settings, num_rows: int, prompts: list[int]) -> Workload:
    length, new = run_length(settings, num_rows), settings.max_new_tokens or 0
    generations = settings.num_generations or 1
    return Workload(
        length=length,
        sequences=settings.per_device_train_batch_size * generations,
        longest=max(prompts) + new,
        mean=fmean(prompts) + new,
        sampled=length.rows_per_batch * generations // processes().count,
        new_tokens=new,
        is_referred=bool(settings.trl.get("beta", 0.0)),
    )
