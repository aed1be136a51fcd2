"""What is looked at before the first step, once the model is loaded: how much of it trains, and whether that fits.

`check_memory` refuses only what cannot fit: it counts what is sure to be allocated, gradients and optimiser states, and
not the activations, which depend on the rows.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ...files import describe_size

_CGROUP = Path("/sys/fs/cgroup")
_TWO_STATES = ("adamw_torch", "adamw_torch_fused")
"""Optimisers that keep two numbers for each weight; what others keep is not counted."""


def describe_parameters(model: Any) -> str:
    """Return how many of the model's parameters train, in one line."""
    total = sum(weight.numel() for weight in model.parameters())
    trained = sum(weight.numel() for weight in _trained(model))
    return f"{trained:,} of {total:,} parameters train ({100 * trained / max(total, 1):.3g} %)"


def check_memory(model: Any, *, optim: str, device: str) -> None:
    """Refuse a run whose gradients and optimiser states alone are larger than the memory that is left."""
    size_bytes = sum(weight.numel() * weight.element_size() for weight in _trained(model))
    needed = size_bytes * (3 if optim in _TWO_STATES else 1)
    free = free_bytes(device)
    if free is not None and needed > free:
        raise ConfigError(
            f"{describe_parameters(model)}: their gradients and the states of the optimiser take "
            f"{describe_size(needed)}, but {device} has only {describe_size(free)} left. Set use_lora=True, or use a "
            "smaller model"
        )


def _trained(model: Any) -> Iterator[Any]:
    return (weight for weight in model.parameters() if weight.requires_grad)


# -- memory ------------------------------------------------------------------------------------------


def free_bytes(device: str) -> int | None:
    """Return the memory that can still be allocated on a device, or None if that is unknown."""
    if device.startswith("cuda"):
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    return min((each for each in (_free_of_machine(), _free_of_container()) if each is not None), default=None)


def _free_of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found = {name: int(size.split()[0]) for name, _, size in (line.partition(":") for line in lines)}
        return 1024 * (found["MemAvailable"] + found["SwapFree"])
    except (OSError, ValueError, LookupError):
        pass  # not Linux
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def _free_of_container() -> int | None:
    """Return what the limit of a container leaves; the kernel gives back files that it caches."""
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        if limit == "max":
            return None
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(int(limit) - used + int(stat.get("inactive_file", 0)), 0)
    except (OSError, ValueError):
        return None
