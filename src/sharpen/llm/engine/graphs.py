"""Decode steps recorded once as CUDA graphs and replayed; elsewhere they simply run."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.cuda import CUDAGraph

Step = Callable[[], Tensor]


class StepGraphs:
    """Recorded steps by their key. A step must read and write only tensors that stay where they are.

    Recording runs the step twice before: writing the same keys and values again changes nothing, and what else a step
    changes is named by its caller and put back. All graphs share one pool of memory, because only one of them runs at
    a time.
    """

    def __init__(self, device: torch.device, *, is_enabled: bool) -> None:
        self._device = device
        self._is_enabled = is_enabled and device.type == "cuda"
        self._graphs: dict[Hashable, tuple[CUDAGraph, Tensor]] = {}
        self._uses: Counter[Hashable] = Counter()
        self._pool: Any = None
        self._stream: Any = None

    def run(self, key: Hashable, step: Step, *, changes: Sequence[Tensor] = (), free_uses: int = 0) -> Tensor:
        """The step's result; a recorded step gives it in the same tensor each time.

        The first `free_uses` of a key are not recorded: that pays only for what comes again.
        """
        if not self._is_enabled:
            return step()
        if key not in self._graphs:
            self._uses[key] += 1
            if self._uses[key] <= free_uses:
                return step()
            self._graphs[key] = self._record(step, changes)
        graph, result = self._graphs[key]
        graph.replay()
        return result

    def clear(self) -> None:
        """Forget what was recorded: the tensors behind it have moved."""
        self._graphs.clear()
        self._pool = None

    def _record(self, step: Step, changes: Sequence[Tensor]) -> "tuple[CUDAGraph, Tensor]":
        current = torch.cuda.current_stream(self._device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        before = [each.clone() for each in changes]
        self._stream.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                step()
            # Not `torch.cuda.graph`, which empties the allocator's cache first: a trainer beside us would pay for it.
            # Only this thread is watched: that trainer may use the device meanwhile.
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = step()
            finally:
                graph.capture_end()
        current.wait_stream(self._stream)
        for each, old in zip(changes, before, strict=True):
            each.copy_(old)
        return graph, result


def bucket(size: int, *, most: int) -> int:
    """The size to which `size` is rounded up, so that few graphs serve all: at most a quarter is wasted above 8."""
    if size <= 4:
        return min(1 << (size - 1).bit_length(), most)
    step = max(2, (1 << (size - 1).bit_length()) // 8)
    return min(-(-size // step) * step, most)
