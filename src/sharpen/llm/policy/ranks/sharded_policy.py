"""`ShardedPolicy`: a policy whose weights are divided between several devices of this machine."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from ....errors import ConfigError
from ...engine import Engine
from ..losses import Totals
from ..packing import Integers, TokenBatch, sample_rows
from ..samples import TrainingSample
from ..settings import LocalOptions, LossSettings
from .group import Group
from .messages import GatherModel, MakeEngine
from .ranked_policy import RankedPolicy, check_devices
from .shard_policy import ShardPolicy
from .sharding import Sharding


class ShardedPolicy(RankedPolicy, ShardPolicy):
    """A `RankedPolicy` whose ranks hold parts of the weights and of the gradients, too.

    For a model whose training does not fit into one device. Each layer is gathered while it computes, so ranks work in
    step: one that fails ends the policy. The engine of a rank holds a whole copy of the weights in the type that the
    model computes in, from the first time that it is used. One device is enough where `Sharding(offloads=True)` keeps
    the parts in the memory of the CPU. torch's default process group is this policy's until it is closed.
    """

    def __init__(
        self,
        model_name: str | os.PathLike[str],
        *,
        devices: Sequence[str],
        sharding: Sharding | None = None,
        **options: Unpack[LocalOptions],
    ) -> None:
        check_devices(devices, options, least=1)
        if options.get("compiles"):
            raise ConfigError("compiles is True, but sharded weights cannot be compiled: leave it out")
        self._sharding = sharding or Sharding()
        self._begin_all(model_name, devices, options, self._sharding)

    def _begin_own(self, model_name: str | os.PathLike[str], group: Group, options: LocalOptions) -> None:
        ShardPolicy.__init__(self, model_name, group, self._sharding, **options)

    @property
    def engine(self) -> Engine:
        """Made by all ranks when it is first asked for; it has a whole copy of the weights."""
        if self._engine is None:
            self._turns.take(lambda: self._done_together(MakeEngine(), self.make_engine))
        return super().engine

    def forward_backward(
        self, samples: Sequence[TrainingSample], loss: LossSettings, *, totals: Totals | None = None
    ) -> dict[str, float]:
        """As that of `RankedPolicy`, but wrong samples are found before a rank begins: it would leave the others."""
        _check_samples([each for each in samples if each.num_trained], loss)
        return super().forward_backward(samples, loss, totals=totals)

    def save_model(self, path: str | os.PathLike[str], *, merge: bool = False) -> Path:
        """As that of `LocalPolicy`. The weights are gathered in the memory of the CPU."""
        whole, _ = self._turns.take(lambda: self._done_together(GatherModel(), self.whole_model))
        return self._write_model(whole, path, merge=merge)

    def _most_passes(self, parts: Sequence[Sequence[Sequence[int]]]) -> int:
        return max(len(self._micro_batches(part)) for part in parts)

    def _is_checked_now(self) -> bool:
        return False  # no rank has what another one has

    def _batch(
        self, sequences: Sequence[Sequence[int]], places: Sequence[Integers], temperatures: Sequence[float]
    ) -> TokenBatch:
        """Also work that nobody waits for is done to its end: the others are in the middle of it."""
        return ShardPolicy._batch(self, sequences, places, temperatures)


def _check_samples(samples: Sequence[TrainingSample], loss: LossSettings) -> None:
    if not samples:
        return
    rows = sample_rows(samples, range(len(samples)))
    needed = ["old_logprobs", "advantages"]
    if loss.kl_coef or rows.has("ref_logprobs"):
        needed.append("ref_logprobs")
    if loss.importance_cap is not None and (rows.has("sampler_logprobs") or not loss.is_on_policy):
        needed.append("sampler_logprobs")
    for name in needed:
        rows.values(name)
