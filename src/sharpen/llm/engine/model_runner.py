"""Which runner a model gets, and the two that work on any device.

A runner computes what the scheduler has planned; it does not know the queue. On a GPU with Triton, supported models
get the `FusedRunner` of `fused_runner.py`.
"""

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import ModelError
from .attention import (
    DecodeAttention,
    DecodeSpan,
    PagedCache,
    PrefillAttention,
    PrefillSpan,
    arrange_rows,
    prefill_mask,
)
from .batch import (
    ID,
    NUM_LINES,
    PLACE,
    POSITION,
    SOURCE,
    Integers,
    LaunchedStep,
    decode_table,
    mode_of,
    sampling_lines,
    settings_of,
)
from .decoder import Decoder
from .fused_runner import FusedRunner
from .kernels import has_triton
from .request import Sequence
from .sampler import Mode, draw
from .scheduler import BlockTables, Chunk
from .sizes import Sizes

log = logging.getLogger(__name__)

_NUM_CHECKED = 8  # tokens of the comparison
_KERNEL_DTYPES = {torch.float32, torch.bfloat16, torch.float16}


class Runner(Protocol):
    """Computes what the scheduler has planned."""

    @property
    def shares_prefixes(self) -> bool: ...
    def prefill(self, chunks: list[Chunk], tables: BlockTables) -> LaunchedStep | None: ...
    def decode(self, sequences: list[Sequence], tables: BlockTables) -> LaunchedStep: ...
    def release(self, sequence: Sequence) -> None: ...
    def refresh(self, *, have_moved: bool) -> None: ...


def build_runner(model: Any, sizes: Sizes, *, static_shapes: bool | None, use_graphs: bool) -> Runner:
    """Return a runner with the engine's own forward pass if it gives the model's logits; otherwise a `ModelRunner`."""
    runner: PagedRunner | FusedRunner
    is_static = _suits_kernels(model, sizes) if static_shapes is None else static_shapes
    try:
        runner = FusedRunner(model, sizes, use_graphs=use_graphs) if is_static else PagedRunner(model, sizes)
    except ModelError as error:
        log.warning("%s; using the model's own forward pass, one sequence at a time: exact, but slow", error)
        return ModelRunner(model)
    if not _gives_same_logits(runner, model, sizes):
        log.warning(
            "the engine's forward pass gives other logits than %s; using the model's own, one sequence at a time",
            type(model).__name__,
        )
        return ModelRunner(model)
    return runner


def _suits_kernels(model: Any, sizes: Sizes) -> bool:
    """Return whether fixed shapes are worth it: on a GPU, with kernels that read only the live part of the cache."""
    if not sizes.is_cuda or model.get_input_embeddings().weight.dtype not in _KERNEL_DTYPES:
        return False
    if not has_triton():
        log.warning("Triton is not installed, so the engine samples without its own kernels: exact, but slower")
        return False
    return True


def _gives_same_logits(runner: "PagedRunner | FusedRunner", model: Any, sizes: Sizes) -> bool:
    """Return whether both give the same logits for some tokens, up to the rounding of the dtype."""
    count = min(_NUM_CHECKED, sizes.max_length)
    ids = [(7919 * (place + 1)) % sizes.vocab_size for place in range(count)]
    ours = runner.logits(ids)
    with _eval_mode(model):
        theirs = model(input_ids=torch.tensor([ids], device=sizes.device), use_cache=False).logits[0].float()
    is_full = model.get_input_embeddings().weight.dtype in {torch.float32, torch.float64}
    allowed = (1e-3 if is_full else 0.1) * max(1.0, theirs.abs().max().item())
    return bool((ours - theirs).abs().max().item() <= allowed)


class PagedRunner:
    """Runs a model of a supported family over the paged cache, on exactly the rows and blocks in use."""

    shares_prefixes = True

    def __init__(self, model: Any, sizes: Sizes) -> None:
        self._decoder = Decoder(model, max_length=sizes.max_length)
        self._device = sizes.device
        shape = self._decoder.shape
        self.cache = PagedCache(
            num_layers=shape.num_layers,
            num_blocks=sizes.num_blocks,
            block_size=sizes.block_size,
            num_heads=shape.num_kv_heads,
            head_size=shape.head_size,
            dtype=model.get_input_embeddings().weight.dtype,
            device=self._device,
        )
        self._last_ids = torch.zeros(2 * sizes.max_batch, dtype=torch.int64, device=self._device)

    def refresh(self, *, have_moved: bool) -> None:
        """Use changed weights; modules may have been replaced too."""
        self._decoder.refresh()

    def release(self, sequence: Sequence) -> None:
        """Do nothing: the blocks of a sequence are the scheduler's."""

    def logits(self, ids: list[int]) -> Tensor:
        """Return the logits of one text, written to the padding block; used to check the forward pass."""
        rows = torch.tensor(ids, device=self._device)
        positions = torch.arange(len(ids), device=self._device)
        span = PrefillSpan(0, len(ids), 0, rows, None)
        attend = PrefillAttention(self.cache, torch.zeros_like(positions), [span])
        return self._decoder.logits(self._decoder.hidden(rows, positions, attend))

    def prefill(self, chunks: list[Chunk], tables: BlockTables) -> LaunchedStep | None:
        """Compute these chunks, copy what their followers need, and draw a token for each of their samples."""
        hidden = self._prefilled(chunks)
        self.cache.copy([pair for chunk in chunks for pair in chunk.copies])
        ends = np.cumsum([chunk.end - chunk.start for chunk in chunks]) - 1
        last = [int(end) for end, chunk in zip(ends, chunks, strict=True) if chunk.samples]
        samples = [sequence for chunk in chunks for sequence in chunk.samples]
        if not samples:
            return None
        logits = self._decoder.logits(hidden[self._to_device(np.array(last))])
        counts = [len(chunk.samples) for chunk in chunks if chunk.samples]
        rows = self._to_device(np.repeat(np.arange(len(last)), counts))
        table: Integers = np.zeros((NUM_LINES, len(samples)), dtype=np.int64)
        sampling_lines(table, samples)
        mode = mode_of(samples)
        drawn, packed = draw(logits.index_select(0, rows), settings_of(self._to_device(table)), mode)
        # After those of the decode step, where the next one finds them if it does not wait for the host.
        first = len(self._last_ids) // 2
        self._last_ids[first : first + len(drawn)] = drawn
        for number, sequence in enumerate(samples):
            sequence.row = first + number
        return LaunchedStep(samples, packed, mode)

    def decode(self, sequences: list[Sequence], tables: BlockTables) -> LaunchedStep:
        """Compute the newest token of each sequence and draw the next one."""
        sequences, spans = arrange_rows(sequences, self.cache.block_size)
        mode = mode_of(sequences)
        table = self._to_device(decode_table(sequences, tables, self.cache.block_size))
        num_blocks = max(span.num_blocks for span in spans)
        blocks = self._to_device(tables.array[np.array([each.slot for each in sequences]), :num_blocks])
        for row, sequence in enumerate(sequences):
            sequence.row = row
            sequence.in_flight += 1
        return LaunchedStep(sequences, self._decode(table, blocks, list(spans), mode), mode)

    def _decode(self, table: Tensor, blocks: Tensor, spans: list[DecodeSpan], mode: Mode) -> Tensor:
        # The newest token is on the device already if the previous step was not waited for.
        source = table[SOURCE]
        ids = torch.where(source >= 0, self._last_ids[source.clamp(min=0)], table[ID])
        attend = DecodeAttention(self.cache, table[PLACE], table[POSITION], blocks, spans)
        logits = self._decoder.logits(self._decoder.hidden(ids, table[POSITION], attend))
        drawn, packed = draw(logits, settings_of(table), mode)
        self._last_ids[: len(drawn)] = drawn
        return packed

    def _prefilled(self, chunks: list[Chunk]) -> Tensor:
        block_size = self.cache.block_size
        ids = [token for chunk in chunks for token in chunk.sequence.tokens[chunk.start : chunk.end]]
        positions = np.concatenate([np.arange(chunk.start, chunk.end) for chunk in chunks])
        places, spans, first = [], [], 0
        for chunk in chunks:
            own = np.arange(chunk.start, chunk.end)
            blocks = np.array(chunk.sequence.blocks)
            places.append(blocks[own // block_size] * block_size + own % block_size)
            table = self._to_device(blocks[: -(-chunk.end // block_size)]).unsqueeze(0)
            mask = prefill_mask(chunk.start, chunk.end, self._device)
            spans.append(PrefillSpan(first, first + len(own), chunk.start, table, mask))
            first += len(own)
        attend = PrefillAttention(self.cache, self._to_device(np.concatenate(places)), spans)
        return self._decoder.hidden(self._to_device(np.array(ids)), self._to_device(positions), attend)

    def _to_device(self, values: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self._device)


class ModelRunner:
    """Runs any causal language model of transformers by its own forward pass, one sequence at a time.

    Slower than the other runners (no batching, no shared prefixes), and exact for models whose attention, positions or
    state only their own code computes. It keeps one transformers cache for each sequence that holds a slot.
    """

    shares_prefixes = False

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._caches: dict[Sequence, Any] = {}

    def refresh(self, *, have_moved: bool) -> None:
        """Do nothing: the model is called as it is."""

    def release(self, sequence: Sequence) -> None:
        self._caches.pop(sequence, None)

    def prefill(self, chunks: list[Chunk], tables: BlockTables) -> LaunchedStep | None:
        rows: list[Tensor] = []
        for chunk in chunks:
            if chunk.start == 0:
                self.release(chunk.sequence)  # it may have been preempted in the middle of its prompt
            logits = self._advance(chunk.sequence, chunk.sequence.tokens[chunk.start : chunk.end])
            for follower in chunk.samples[1:]:
                self._caches[follower] = copy.deepcopy(self._caches[chunk.sequence])
            rows.extend([logits] * len(chunk.samples))
        samples = [each for chunk in chunks for each in chunk.samples]
        return self._drawn(samples, rows) if samples else None

    def decode(self, sequences: list[Sequence], tables: BlockTables) -> LaunchedStep:
        rows = [self._advance(each, each.tokens[-1:]) for each in sequences]
        step = self._drawn(sequences, rows)
        for each in sequences:
            each.in_flight += 1
        return step

    def _advance(self, sequence: Sequence, ids: list[int]) -> Tensor:
        with _eval_mode(self._model):
            out = self._model(
                input_ids=torch.tensor([ids], device=self._device),
                past_key_values=self._caches.get(sequence),
                use_cache=True,
            )
        self._caches[sequence] = out.past_key_values
        logits: Tensor = out.logits[0, -1].float()
        return logits

    def _drawn(self, samples: list[Sequence], rows: list[Tensor]) -> LaunchedStep:
        table: Integers = np.zeros((NUM_LINES, len(samples)), dtype=np.int64)
        sampling_lines(table, samples)
        mode = mode_of(samples)
        _, packed = draw(torch.stack(rows), settings_of(torch.from_numpy(table).to(self._device)), mode)
        return LaunchedStep(samples, packed, mode)


@contextmanager
def _eval_mode(model: Any) -> Iterator[None]:
    """Turn off dropout while the model samples; a model in training mode returns to it afterwards."""
    # Module by module: layers that PEFT added may be in training mode although the model is not.
    in_training = [module for module in model.modules() if module.training]
    for module in in_training:
        module.training = False
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
