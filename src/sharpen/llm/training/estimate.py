"""`Estimate`: what a run will take in memory and time, told before it begins.

Both are rough: memory within a factor of about 1.5, time within about 3. The time is that of the training alone,
without loading, evaluating and saving; completions of GRPO are counted at full length, so it is the most that sampling
takes.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .device_speed import DeviceSpeed, device_speed
from .memory_need import available_bytes, memory_need
from .model_shape import ModelShape, shape_of
from .settings import Settings
from .trl_options import is_checkpointed
from .workload import Workload, workload

log = logging.getLogger(__name__)

_OF_BLOCK, _OF_BATCH, _OF_TOKEN = 600, 5000, 1000
"""What Python spends on the forward pass of one block, on a batch around it, and on a sampled token, in small
operations of torch (measured on transformers; the backward pass of a block costs twice its forward pass)."""
_SHARE_OF_PEAK = 0.5
"""The part of the speed of large products that whole models reach."""
_ADAM_PASSES = 7
"""How often a step of AdamW reads or writes each trained weight's worth of memory."""


@dataclass(frozen=True)
class Estimate:
    """What a run will take."""

    parameters: int
    trainable: int
    memory_bytes: int
    available_bytes: int | None
    """None where it cannot be known."""
    seconds: float
    steps: int
    tokens: int
    memory_parts: Mapping[str, int]
    """The memory by what it is for."""

    @property
    def is_too_large(self) -> bool:
        return self.available_bytes is not None and self.memory_bytes > self.available_bytes

    def words(self) -> str:
        """The estimate on one line."""
        share = 100 * self.trainable / max(self.parameters, 1)
        there = "" if self.available_bytes is None else f" of {_size(self.available_bytes)} available"
        return (
            f"{_count(self.parameters)} parameters, {_count(self.trainable)} trained ({share:.3g} %); "
            f"{self.steps} steps over {_count(self.tokens)} tokens; "
            f"estimated: {_size(self.memory_bytes)}{there}, {_duration(self.seconds)}"
        )


def estimate(
    model: Any, settings: Settings, *, device: str, precision: str, num_rows: int, lengths: Sequence[int]
) -> Estimate:
    """Estimate a run of a model that is loaded, over `num_rows` rows, of which some have `lengths` tokens.

    In GRPO the lengths are those of the prompts. Warns when the memory will not suffice.
    """
    import torch

    shape, work = shape_of(model), workload(settings, num_rows=num_rows, lengths=lengths)
    recomputes = is_checkpointed(settings, device)
    parts = memory_need(
        *(shape, work, settings), precision=precision, is_checkpointed=recomputes, is_gpu=device != "cpu"
    )
    speed = device_speed(device, precision, torch.get_num_threads())
    found = Estimate(
        parameters=shape.parameters,
        trainable=shape.trainable,
        memory_bytes=sum(parts.values()),
        available_bytes=available_bytes(device, loaded=shape.weight_bytes),
        seconds=_seconds(shape, work, speed, is_checkpointed=recomputes),
        steps=work.length.steps,
        tokens=work.tokens,
        memory_parts=parts,
    )
    if found.is_too_large:
        log.warning(_too_large(found))
    return found


# -- time --------------------------------------------------------------------------------------------


def _seconds(shape: ModelShape, work: Workload, speed: DeviceSpeed, *, is_checkpointed: bool) -> float:
    learning = work.length.batches * _batch_seconds(shape, work, speed, is_checkpointed=is_checkpointed)
    stepping = work.length.steps * _ADAM_PASSES * shape.trainable_bytes / speed.bandwidth
    return learning + stepping + work.length.generations * _sampling_seconds(shape, work, speed)


def _batch_seconds(shape: ModelShape, work: Workload, speed: DeviceSpeed, *, is_checkpointed: bool) -> float:
    """Forward and backward, with the forward passes of recomputing and of the reference."""
    forward = _forward_flops(shape, work.sequences * work.mean, work.mean)
    # The gradient of a frozen matrix is never computed.
    passes = (3 if shape.adapted is None else 2) + is_checkpointed + work.is_referred
    operations = shape.layers * _OF_BLOCK * (3 + is_checkpointed + work.is_referred) + _OF_BATCH
    return speed.seconds(computing=passes * forward / (_SHARE_OF_PEAK * speed.flops), operations=operations)


def _sampling_seconds(shape: ModelShape, work: Workload, speed: DeviceSpeed) -> float:
    """Reading the prompts once, then for each new token all weights and the cache so far."""
    prompt = work.mean - work.new_tokens
    reading = _forward_flops(shape, work.sampled * prompt, prompt) / (_SHARE_OF_PEAK * speed.flops)
    cache = 4 * shape.layers * shape.key_value * work.sampled * (prompt + work.new_tokens / 2)
    moving = (shape.weight_bytes + cache) / speed.bandwidth
    computing = _forward_flops(shape, work.sampled, work.mean) / (_SHARE_OF_PEAK * speed.flops)
    operations = shape.layers * _OF_BLOCK + _OF_TOKEN
    return reading + work.new_tokens * speed.seconds(computing=max(moving, computing), operations=operations)


def _forward_flops(shape: ModelShape, tokens: float, length: float) -> float:
    """Each weight multiplies once for each token; attention looks at half of the sequence on average."""
    return tokens * (2 * shape.parameters + 2 * shape.layers * shape.query * length)


# -- words -------------------------------------------------------------------------------------------


def _too_large(found: Estimate) -> str:
    greatest = sorted(found.memory_parts.items(), key=lambda part: -part[1])[:3]
    parts = ", ".join(f"{name} {_size(size)}" for name, size in greatest)
    return (
        f"the run will need about {_size(found.memory_bytes)} of memory, but only {_size(found.available_bytes or 0)} "
        f"are available ({parts}): lower batch_size (and raise gradient_accumulation_steps), max_length or "
        "max_new_tokens, or set use_lora=True or gradient_checkpointing=True"
    )


def _count(number: float) -> str:
    for size, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{name}"
    return f"{number:.0f}"


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.3g} GiB" if size_bytes >= 2**30 / 10 else f"{size_bytes / 2**20:.3g} MiB"


def _duration(seconds: float) -> str:
    for size, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"about {seconds / size:.0f} {name}"
    return f"about {seconds:.0f} seconds" if seconds >= 1 else "about a second"
