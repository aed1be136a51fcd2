"""How many optimiser steps a run takes, as transformers and TRL count them."""

import math
from dataclasses import dataclass

from .processes import processes
from .settings import Settings


@dataclass(frozen=True)
class RunLength:
    """The length of a run. With packing it is an upper bound: packed rows are fewer."""

    steps: int
    steps_per_epoch: int
    batches: int
    """Forward and backward passes of the whole run, by each process."""
    generations: int
    """How often GRPO samples; each time `rows_per_batch` prompts."""
    rows_per_batch: int
    """Rows that must be there together: a batch of all processes, or in GRPO the prompts that are sampled at once."""


def run_length(settings: Settings, num_rows: int) -> RunLength:
    """The length of a run over so many rows."""
    batch = settings.per_device_train_batch_size * processes().count
    if settings.algorithm == "grpo":
        per_generation = _batches_per_generation(settings)
        iterations = int(settings.trl.get("num_iterations", 1))
        rows_per_batch = batch * per_generation
        batches = num_rows // rows_per_batch * per_generation * iterations
    else:
        per_generation, iterations, rows_per_batch = 0, 0, batch
        is_whole = settings.trl.get("dataloader_drop_last", False)
        batches = num_rows // batch if is_whole else math.ceil(num_rows / batch)
    per_epoch = math.ceil(batches / settings.gradient_accumulation_steps)
    steps = 0 if batches == 0 else _steps(settings, per_epoch)
    whole, rest = divmod(steps, max(per_epoch, 1))
    passes = whole * batches + min(rest * settings.gradient_accumulation_steps, batches)
    return RunLength(
        steps=steps,
        steps_per_epoch=per_epoch,
        batches=passes,
        generations=math.ceil(passes / (per_generation * iterations)) if per_generation else 0,
        rows_per_batch=rows_per_batch,
    )


def _steps(settings: Settings, per_epoch: int) -> int:
    wanted = settings.trl.get("max_steps", -1)
    return int(wanted) if wanted > 0 else math.ceil(settings.num_train_epochs * per_epoch)


def _batches_per_generation(settings: Settings) -> int:
    """How many batches are sampled at once."""
    if completions := settings.trl.get("generation_batch_size"):
        at_once = settings.per_device_train_batch_size * processes().count * (settings.num_generations or 1)
        return max(int(completions) // at_once, 1)
    return int(settings.trl.get("steps_per_generation") or settings.gradient_accumulation_steps)
