"""How many optimiser steps a run takes, as transformers and TRL count them."""

import math
from typing import NamedTuple

from .processes import processes
from .settings import Settings


class RunLength(NamedTuple):
    """The length of a run. With packing it is an upper bound: packed rows are fewer."""

    steps: int
    rows_per_batch: int
    """Rows that must be there together: a batch of all processes, or in GRPO the prompts that are sampled at once."""


def run_length(settings: Settings, num_rows: int) -> RunLength:
    """Return the length of a run over so many rows."""
    rows_per_batch = settings.per_device_train_batch_size * processes().count
    if settings.algorithm == "grpo":
        per_generation = _batches_per_generation(settings)
        rows_per_batch *= per_generation
        batches = num_rows // rows_per_batch * per_generation * int(settings.trl.get("num_iterations", 1))
    elif settings.trl.get("dataloader_drop_last", False):
        batches = num_rows // rows_per_batch
    else:
        batches = math.ceil(num_rows / rows_per_batch)
    return RunLength(_steps(settings, batches) if batches else 0, rows_per_batch)


def _steps(settings: Settings, batches: int) -> int:
    if settings.max_steps is not None:
        return settings.max_steps
    return math.ceil(settings.num_train_epochs * math.ceil(batches / settings.gradient_accumulation_steps))


def _batches_per_generation(settings: Settings) -> int:
    """Return how many batches GRPO samples at once."""
    if completions := settings.trl.get("generation_batch_size"):
        at_once = settings.per_device_train_batch_size * processes().count * (settings.num_generations or 1)
        return max(int(completions) // at_once, 1)
    return int(settings.trl.get("steps_per_generation") or settings.gradient_accumulation_steps)
