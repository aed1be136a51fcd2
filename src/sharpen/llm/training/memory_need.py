"""How much memory a run needs, and how much there is.

Counted: weights, gradients, the optimiser's states, a reference model, copies of weights in mixed precision, what the
forward pass keeps for the backward pass, the tiles in which TRL computes the logits, and the cache of sampling. Not
counted: what the framework itself takes, and memory lost to fragmentation.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from .model_shape import ModelShape
from .settings import Settings
from .workload import Workload

_TILE_TOKENS, _TILE_WORDS = 4096, 32768
"""The tile in which TRL computes logits."""
_CGROUP = Path("/sys/fs/cgroup")


def memory_need(
    shape: ModelShape, work: Workload, settings: Settings, *, precision: str, is_checkpointed: bool, is_gpu: bool
) -> Mapping[str, int]:
    """Bytes by what they are for. Sampling and learning take turns, so only the greater of both is counted."""
    width = 4 if precision == "fp32" else 2
    kept, one_layer = _activations(shape, work, precision, is_checkpointed=is_checkpointed)
    scoring = kept + _head(shape, work, width, is_gpu=is_gpu)
    # Gradients fill the room that activations leave, but those of earlier batches are there from the start.
    is_accumulated = settings.gradient_accumulation_steps > 1
    learning = scoring + shape.trainable_bytes if is_accumulated else max(scoring, one_layer + shape.trainable_bytes)
    sampling = _sampling(shape, work, width)
    return {
        "weights": shape.weight_bytes,
        "reference": shape.weight_bytes if work.is_referred and not settings.use_lora else 0,
        "copies in mixed precision": 0 if precision == "fp32" else shape.uncast_weights * width,
        "optimiser": int(shape.trainable * _optimiser_bytes(str(settings.trl.get("optim", "adamw")))),
        "activations and gradients" if learning >= sampling else "sampling": max(learning, sampling),
    }


def _optimiser_bytes(name: str) -> float:
    """Bytes of state for one weight."""
    if "8bit" in name:
        return 2
    if "adafactor" in name or name == "sgd":
        return 0.1
    return 4 if any(each in name for each in ("lion", "rmsprop", "adagrad")) else 8


def _activations(shape: ModelShape, work: Workload, precision: str, *, is_checkpointed: bool) -> tuple[int, int]:
    """What the backward pass needs, and the part of one layer.

    The weights of the terms were measured on blocks of Qwen3 and Llama.
    """
    tokens = work.sequences * work.longest
    # Norms and the residual stream stay in float32 under mixed precision, the rest is halved.
    size = 4 if precision == "fp32" else 3
    block = 6 * shape.hidden + 4 * shape.inner + 6 * shape.query + 4 * shape.key_value
    adapted = 0.0
    if shape.adapted is not None:
        block = round(0.8 * block)  # a frozen matrix needs no input for its gradient
        adapted = 1.75 * shape.adapted / shape.layers
    layer = (block + adapted) * size * tokens
    if is_checkpointed:
        return int(4 * shape.hidden * tokens * shape.layers + 2 * layer), int(2 * layer)
    # One layer more, for the gradients that are on their way.
    return int(layer * (shape.layers + 1)), int(2 * layer)


def _head(shape: ModelShape, work: Workload, width: int, *, is_gpu: bool) -> int:
    tokens = work.sequences * work.longest
    # A GPU works in the tile itself, and it is made whole; elsewhere six copies in float32 join what is used of it.
    size = _TILE_WORDS * width if is_gpu else min(_TILE_WORDS, shape.vocabulary) * (width + 24)
    tile = min(tokens, _TILE_TOKENS) * size
    gradient = shape.vocabulary * shape.hidden * 4 if shape.is_head_trained else 0
    return tile + gradient + 16 * shape.hidden * tokens


def _sampling(shape: ModelShape, work: Workload, width: int) -> int:
    """Keys and values of everything so far, twice while they grow, and the logits of one token."""
    if not work.sampled:
        return 0
    cache = 2 * shape.layers * shape.key_value * width * work.sampled * work.longest
    return cache + cache // shape.layers + work.sampled * shape.vocabulary * 12


# -- what is there -----------------------------------------------------------------------------------


def available_bytes(device: str, *, loaded: int) -> int | None:
    """What a run may take, with the `loaded` bytes of its model that are there already; None where nobody knows."""
    if device.startswith("cuda"):
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device))
    free_bytes = [each for each in (_free_of_machine(), _free_of_group()) if each is not None]
    return min(free_bytes) + loaded if free_bytes else None


def _free_of_machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _free_of_group() -> int | None:
    """What a container may still take; files in its cache can go."""
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return None
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(int(limit) - used + int(stat.get("inactive_file", 0)), 0)
    except (OSError, ValueError):
        return None
