"""Steps recorded once as CUDA graphs and replayed; on other devices they simply run."""

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.cuda import CUDAGraph

Step = Callable[[], Tensor]
Shape = tuple[int, ...]
"""The rows of a step, then the other sizes of its tensors."""

_PATIENCE = 32  # this many steps in a larger shape cost about as much as recording one in the right shape
_FEW_ROWS = 256  # this many take little longer than one: either way the weights have to be read


class StepKey(NamedTuple):
    """Identifies a recorded step. Steps of a kind differ in their shape and their variant."""

    kind: str
    shape: Shape
    variant: Hashable = None


class StepGraphs:
    """Recorded steps by their key. A step must read and write only tensors at fixed addresses.

    Recording runs the step twice first: writing the same keys and values again changes nothing, and the caller names
    the other tensors that a step changes, which are restored. All graphs share one memory pool, because only one of
    them runs at a time.
    """

    def __init__(self, device: torch.device, *, is_enabled: bool) -> None:
        self._device = device
        self._is_enabled = is_enabled and device.type == "cuda"
        self._graphs: dict[StepKey, tuple[CUDAGraph, Tensor]] = {}
        self._uses: Counter[StepKey] = Counter()
        self._shapes = RecordedShapes()
        self._pool: Any = None
        self._stream: Any = None

    def shape(self, kind: str, wanted: Shape) -> Shape:
        """Return the shape for a step that fits into `wanted`: a larger one if that is recorded already."""
        return self._shapes.choose(kind, wanted) if self._is_enabled else wanted

    def run(self, key: StepKey, step: Step, *, changes: Sequence[Tensor] = (), free_uses: int = 0) -> Tensor:
        """Return the step's result; a recorded step returns the same tensor each time.

        The first `free_uses` of a key are not recorded, because recording pays off only for steps that recur.
        """
        if not self._is_enabled:
            return step()
        if key not in self._graphs:
            self._uses[key] += 1
            if self._uses[key] <= free_uses:
                return step()
            self._graphs[key] = self._record(step, changes)
            self._shapes.add(key.kind, key.shape)
        graph, result = self._graphs[key]
        graph.replay()
        return result

    def clear(self) -> None:
        """Drop all recorded steps, because their tensors have moved."""
        self._graphs.clear()
        self._shapes = RecordedShapes()
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
            # Not `torch.cuda.graph`, which empties the allocator's cache first: a trainer in this process would slow
            # down. Only this thread is captured, so that trainer may use the device at the same time.
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


class RecordedShapes:
    """Chooses among the recorded shapes.

    Recording takes as long as dozens of recorded steps, and a batch that runs out passes through many numbers of rows,
    each for a few steps only. So a step uses the smallest recorded shape that holds it, unless that would cost too much
    or its own shape has been wanted often.
    """

    def __init__(self) -> None:
        self._recorded: defaultdict[str, set[Shape]] = defaultdict(set)
        self._missed: Counter[tuple[str, Shape]] = Counter()

    def add(self, kind: str, shape: Shape) -> None:
        self._recorded[kind].add(shape)

    def choose(self, kind: str, wanted: Shape) -> Shape:
        recorded = self._recorded[kind]
        if wanted in recorded:
            return wanted
        self._missed[kind, wanted] += 1
        if self._missed[kind, wanted] > _PATIENCE:
            return wanted
        most_rows = max(2 * wanted[0], _FEW_ROWS)
        fitting = (each for each in recorded if each[0] <= most_rows and all(map(operator.ge, each, wanted)))
        return min(fitting, default=wanted)


def bucket(size: int, *, most: int) -> int:
    """Return `size` rounded up, so that few graphs serve all sizes: at most a quarter is wasted above 8."""
    if size <= 4:
        return min(1 << (size - 1).bit_length(), most)
    step = max(2, (1 << (size - 1).bit_length()) // 8)
    return min(-(-size // step) * step, most)
