"""Decode steps recorded once as CUDA graphs and replayed; elsewhere they simply run."""

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
"""The rows of a step, then what else its tensors are sized by."""

_PATIENCE = 32  # steps in a larger shape cost about as much as recording one of their own
_FEW_ROWS = 256  # so many take little longer than one: the weights have to be read for either


class StepKey(NamedTuple):
    """Which recorded step it is. Steps of a kind differ in their shape, and in what `variant` says."""

    kind: str
    shape: Shape
    variant: Hashable = None


class StepGraphs:
    """Recorded steps by their key. A step must read and write only tensors that stay where they are.

    Recording runs the step twice before: writing the same keys and values again changes nothing, and what else a step
    changes is named by its caller and put back. All graphs share one pool of memory, because only one of them runs at
    a time.
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
        """The shape for a step that would fit into `wanted`; a larger one where that is recorded already."""
        return self._shapes.choose(kind, wanted) if self._is_enabled else wanted

    def run(self, key: StepKey, step: Step, *, changes: Sequence[Tensor] = (), free_uses: int = 0) -> Tensor:
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
            self._shapes.add(key.kind, key.shape)
        graph, result = self._graphs[key]
        graph.replay()
        return result

    def clear(self) -> None:
        """Forget what was recorded: the tensors behind it have moved."""
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


class RecordedShapes:
    """Chooses among the shapes that are recorded.

    Recording takes as long as dozens of recorded steps, and the end of a batch passes through many numbers of rows,
    each for a few steps only. So a step takes the least recorded shape that holds it, unless that would cost too much
    or its own has been wanted often.
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
    """The size to which `size` is rounded up, so that few graphs serve all: at most a quarter is wasted above 8."""
    if size <= 4:
        return min(1 << (size - 1).bit_length(), most)
    step = max(2, (1 << (size - 1).bit_length()) // 8)
    return min(-(-size // step) * step, most)
