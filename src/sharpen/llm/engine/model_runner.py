"""Runs any causal language model of transformers by its own forward pass, one sequence at a time.

Slower than the paged runner (no batching, no shared prefixes), and exact for models whose attention, positions or
state only their own code knows.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .block_tables import BlockTables
from .rows import NUM_LINES, Integers, Ticket, mode_of, sampling_lines, settings_of
from .sampler import draw
from .scheduler import Chunk
from .sequence import Sequence


class ModelRunner:
    """Keeps one transformers cache for each sequence that holds a slot."""

    shares_prefixes = False

    def __init__(self, model: Any) -> None:
        self._model = model
        self._device: torch.device = model.get_input_embeddings().weight.device
        self._caches: dict[Sequence, Any] = {}

    def refresh(self, *, have_moved: bool) -> None:
        """The model is called as it is: there is nothing to look up again."""

    def release(self, sequence: Sequence) -> None:
        self._caches.pop(sequence, None)

    def prefill(self, chunks: list[Chunk], tables: BlockTables) -> Ticket | None:
        rows: list[Tensor] = []
        for chunk in chunks:
            if chunk.start == 0:
                self.release(chunk.sequence)  # it may have been pushed out in the middle of its prompt
            logits = self._advance(chunk.sequence, chunk.sequence.tokens[chunk.start : chunk.end])
            for follower in chunk.samples[1:]:
                self._caches[follower] = copy.deepcopy(self._caches[chunk.sequence])
            rows.extend([logits] * len(chunk.samples))
        samples = [each for chunk in chunks for each in chunk.samples]
        return self._drawn(samples, rows) if samples else None

    def decode(self, sequences: list[Sequence], tables: BlockTables) -> Ticket:
        rows = [self._advance(each, each.tokens[-1:]) for each in sequences]
        ticket = self._drawn(sequences, rows)
        for each in sequences:
            each.in_flight += 1
        return ticket

    def _advance(self, sequence: Sequence, ids: list[int]) -> Tensor:
        with eval_mode(self._model):
            out = self._model(
                input_ids=torch.tensor([ids], device=self._device),
                past_key_values=self._caches.get(sequence),
                use_cache=True,
            )
        self._caches[sequence] = out.past_key_values
        logits: Tensor = out.logits[0, -1].float()
        return logits

    def _drawn(self, samples: list[Sequence], rows: list[Tensor]) -> Ticket:
        table: Integers = np.zeros((NUM_LINES, len(samples)), dtype=np.int64)
        sampling_lines(table, samples)
        mode = mode_of(samples)
        _, packed = draw(torch.stack(rows), settings_of(torch.from_numpy(table).to(self._device)), mode)
        return Ticket(samples, packed, mode)


@contextmanager
def eval_mode(model: Any) -> Iterator[None]:
    """Dropout off while the model samples; a model in training goes on training afterwards."""
    # Module by module: layers that PEFT added train although the model around them does not.
    in_training = [module for module in model.modules() if module.training]
    for module in in_training:
        module.training = False
    try:
        yield
    finally:
        for module in in_training:
            module.training = True
