"""How fast a device is, measured in a moment: multiplication, memory, and the cost of one small operation."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

_SECONDS = 0.02
"""How long each of the three is measured."""


@dataclass(frozen=True)
class DeviceSpeed:
    """Figures of one device, as it is used here and now."""

    flops: float
    """Floating-point operations in a second, in large products."""
    bandwidth: float
    """Bytes that are read in a second."""
    operation_seconds: float
    """The least time of one operation, however small; the processor gives it, also where a GPU carries it out."""
    is_overlapped: bool
    """Whether operations are given out while earlier ones still run."""

    def seconds(self, *, computing: float, operations: float) -> float:
        """The time of work that takes `computing` seconds and consists of so many operations."""
        giving = operations * self.operation_seconds
        return max(computing, giving) if self.is_overlapped else computing + giving


@cache
def device_speed(device: str, precision: str, threads: int) -> DeviceSpeed:
    """Measure a device once in a process. No random number is drawn."""
    import torch

    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    is_gpu = device != "cpu"
    size = 4096 if is_gpu else 256
    left, right = torch.ones(2, size, size, device=device, dtype=dtype)
    # Larger than the caches, so that it is memory that is measured.
    block = torch.ones(2**26 if is_gpu else 2**24, device=device, dtype=dtype)
    small = torch.ones(16)
    with torch.no_grad():
        return DeviceSpeed(
            flops=2 * size**3 * _rate(lambda: left @ right, device),
            bandwidth=block.numel() * block.element_size() * _rate(block.sum, device),
            operation_seconds=1 / _rate(lambda: [small + small for _ in range(20)], "cpu") / 20,
            is_overlapped=is_gpu,
        )


def _rate(work: Callable[[], Any], device: str) -> float:
    """How often in a second the work is done, at its quickest: other programs come between."""
    work()
    _wait(device)
    times: list[float] = []
    while sum(times) < _SECONDS:
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    return 1 / max(min(times), 1e-9)


def _wait(device: str) -> None:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    elif device == "mps":
        torch.mps.synchronize()
