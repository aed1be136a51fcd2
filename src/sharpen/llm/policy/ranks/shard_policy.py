"""One rank of a policy whose weights are divided: a part of every layer, on one device."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from ...engine import Engine
from ...engine.weights import unwrapped
from ...models.loading import choose_device
from ..fast_forward import Body
from ..forward import AnyBody, ModelBody, body_of
from ..packing import Integers, TokenBatch, token_batch
from ..settings import LocalOptions
from .group import Group
from .messages import Score, Train
from .rank_policy import RankPolicy
from .shard_optimiser import ShardOptimiser
from .sharded_model import ShardedBody, ShardedModel
from .sharding import Sharding
from .whole_model import fill, filled, outline_of


class ShardPolicy(RankPolicy):
    """Computes its part of the sequences with weights that it gathers from all, layer by layer.

    So all ranks pass through the model equally often: `train_part` and `score_part` are done by all at once, too. The
    reference is the same model with the weights of the start put into its place. An engine has a whole copy.
    """

    _sharded: ShardOptimiser
    _optimiser_kind = ShardOptimiser

    def __init__(
        self, model_name: str | os.PathLike[str], group: Group, sharding: Sharding, **options: Unpack[LocalOptions]
    ) -> None:
        self._sharding = sharding
        self._num_passes = 0
        self._whole: Any = None
        super().__init__(model_name, group, **options)
        self.device = choose_device(self.settings.device)

    def meet(self) -> None:
        """Wait for the other ranks, and divide the model between them."""
        self.group.join()
        is_ours = isinstance(body_of(self.model), Body)
        self._outline = outline_of(self.model)
        self._sharded_model = ShardedModel(self.model, self.group.mesh(self.device), self._sharding)
        self._body = self._made_body() if is_ours else ModelBody(unwrapped(self.model))
        self._optimiser = self._made_optimiser(self._trained())
        if self._has_reference:
            self._reference = self._body
            self._start = self._sharded.own_weights()
        with torch.no_grad():
            self._pass_idly(1)  # which readies what ranks need to gather weights
        self._sharded_model.give_up()

    def _made_body(self) -> AnyBody:
        return ShardedBody(self.model, checkpoints=self.settings.gradient_checkpointing)

    def _loads_on(self, device: str) -> str:
        return "cpu"  # a GPU may not hold the whole model

    def _prepare(self) -> None:
        """Nothing is made before the model is divided."""

    # -- passes --------------------------------------------------------------------------------------

    def train_part(self, order: Train) -> dict[str, float]:
        self._num_passes = 0
        metrics = super().train_part(order)
        self._pass_idly(order.num_passes - self._num_passes)
        return metrics

    def score_part(self, order: Score) -> list[Tensor]:
        self._num_passes = 0
        with self._as_at_the_start() if order.reference and order.num_passes else nullcontext():
            found = super().score_part(order)
            with torch.no_grad():
                self._pass_idly(order.num_passes - self._num_passes)
            self._sharded_model.give_up()
        return found

    def _batch(
        self, sequences: Sequence[Sequence[int]], places: Sequence[Integers], temperatures: Sequence[float]
    ) -> TokenBatch:
        self._num_passes += 1
        return super()._batch(sequences, places, temperatures)

    def _pass_idly(self, count: int) -> None:
        """Give the others what they need of this rank; the gradients are 0."""
        for _ in range(count):
            batch = token_batch([[0, 0]], [np.array([1])], [1.0], device=self.device)
            logprob_N, _ = self._body.logprobs(batch)
            if torch.is_grad_enabled():
                (0.0 * logprob_N.sum()).backward()  # type: ignore[no-untyped-call]

    @contextmanager
    def _as_at_the_start(self) -> Iterator[None]:
        self._sharded.exchange(self._start)
        try:
            yield
        finally:
            self._sharded.exchange(self._start)

    # -- whole copies --------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """Made by all ranks at once: see `make_engine`."""
        assert self._engine is not None
        return self._engine

    def make_engine(self) -> None:
        """Gather all weights, for sampling."""
        if self._engine is None:
            self._whole = filled(self._outline, self.device, self._sharded_model.whole_units())
            self._engine = self._engine_of(self._whole)

    def whole_model(self) -> Any:
        """The model on the CPU of rank 0; the others give their parts, and get nothing."""
        units = self._sharded_model.whole_units()
        if self.group.rank == 0:
            return filled(self._outline, "cpu", units)
        for _ in units:
            pass
        return None

    def _take_over(self, version: int) -> None:
        if self._whole is not None:
            fill(self._whole, self._sharded_model.whole_units())
        super()._take_over(version)
