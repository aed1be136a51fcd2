"""`LocalPolicy`: the policy on this machine, which samples, scores and learns with one set of weights.

The reference is a second view of the model, in which only the trained weights are copies.
"""

import copy
import os
import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor, nn

from ...errors import ConfigError, InvalidInputError
from ..engine import Engine, Generation, SamplingParams
from ..models.saving import save_model
from .checkpoint import ModelState
from .forward import AnyBody
from .local_model import LocalModel
from .losses import Metrics, Totals
from .objective import policy_objective
from .packing import SampleRows, TokenBatch
from .samples import TrainingSample
from .settings import LocalOptions, LocalSettings, LossSettings


class LocalPolicy(LocalModel):
    """A causal language model, or a LoRA adapter on one, that is sampled from and trained.

    The engine samples from the very weights that are trained. `weights_version` grows by one with every update, and
    each sampled token carries the version that sampled it. The arguments are explained at `LocalSettings`.
    """

    kind = "policy"

    def __init__(self, model_name: str | os.PathLike[str], **options: Unpack[LocalOptions]) -> None:
        settings = LocalSettings(**options)
        self.weights_version = 0
        self._random = random.Random(settings.seed)
        self._engine: Engine | None = None
        self._reference: AnyBody | None = None
        super().__init__(model_name, settings)

    def _prepare(self) -> None:
        super()._prepare()
        if self._has_reference:
            self._reference = self._body_of(frozen_copy(self.model))

    @property
    def _has_reference(self) -> bool:
        return self.settings.keeps_reference or self.trainable.kind == "lora"

    # -- sampling ------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """Made when it is first asked for; it shares the weights, and an adapter is applied, not merged."""
        if self._engine is None:
            self._engine = self._engine_of(self.model)
        return self._engine

    def _engine_of(self, model: Any) -> Engine:
        options: dict[str, Any] = {"seed": self.settings.seed, **(self.settings.engine_options or {})}
        return Engine(model, self.tokenizer, weights_version=self.weights_version, **options)

    def sample(self, prompts: Sequence[Sequence[int]], params: SamplingParams | None = None) -> list[Generation]:
        """The samples of many prompts, in their order. Without a seed in `params`, each prompt gets one of its own."""
        params = params or SamplingParams()
        requests = [self.engine.submit(prompt, self._seeded(params)) for prompt in prompts]
        return [request.result() for request in requests]

    def _seeded(self, params: SamplingParams) -> SamplingParams:
        return params if params.seed is not None else replace(params, seed=self._random.getrandbits(63))

    def close(self) -> None:
        """End what the policy has started: its engine, where it runs. It can be used again."""
        if self._engine is not None:
            self._engine.stop()

    # -- scoring -------------------------------------------------------------------------------------

    def logprobs(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        masks: Sequence[Sequence[bool]] | None = None,
        temperature: float | Sequence[float] = 1.0,
        reference: bool = False,
    ) -> list[Tensor]:
        """The log-probability of each token of each sequence, in float32 on the CPU, without gradient.

        It is 0 at the first token and where a mask is False. `temperature` is one for all, or one for each sequence.
        `reference` asks the policy as it was at the start.
        """
        body = self._reference if reference else self._body
        if body is None:
            raise ConfigError("the policy has no reference: create it with keeps_reference=True")
        temperatures = temperatures_of(temperature, len(sequences))
        return self._scored(sequences, masks, temperatures, lambda batch: body.logprobs(batch)[0])

    # -- learning ------------------------------------------------------------------------------------

    def forward_backward(
        self, samples: Sequence[TrainingSample], loss: LossSettings, *, totals: Totals | None = None
    ) -> dict[str, float]:
        """Add up the gradients of these samples, and return their metrics. Those without a trained token are skipped.

        A mini-batch may come in several calls, each with the `totals` of all of it: gradients and metrics then add
        up (those named `_max` take the greatest). An error leaves no gradient behind.
        """

        def objective(batch: TokenBatch, rows: SampleRows, totals: Totals) -> tuple[Tensor, Metrics]:
            logprob_N, entropy_N = self._body.logprobs(batch, entropy_gradient=loss.entropy_coef != 0)
            return policy_objective(rows.spread(logprob_N), rows.spread(entropy_N), rows, loss, totals)

        return self._train(samples, loss.width, totals, objective)

    def _step(self) -> dict[str, float]:
        with nullcontext() if self._engine is None else self._engine.paused():
            metrics = super()._step()
            self._take_over(self.weights_version + 1)
        return metrics

    def _take_over(self, version: int) -> None:
        """The weights have changed."""
        self.weights_version = version
        if self._engine is not None:
            self._engine.update_weights(version)

    # -- files ---------------------------------------------------------------------------------------

    def save_model(self, path: str | os.PathLike[str], *, merge: bool = False) -> Path:
        """Write a Hugging Face folder: the adapter where one is trained, else the model. `merge` writes the model."""
        return self._write_model(self.model, path, merge=merge)

    def _write_model(self, model: Any, path: str | os.PathLike[str], *, merge: bool) -> Path:
        if merge and hasattr(model, "peft_config"):
            model = merged_copy(model)
        return save_model(model, self.tokenizer, path, source=self.source)

    def _state(self) -> ModelState:
        version, internal, carried = self._random.getstate()
        counters = {"weights_version": self.weights_version, "random": [version, list(internal), carried]}
        return replace(super()._state(), counters=counters)

    def _take(self, state: ModelState) -> None:
        version, internal, carried = state.counters["random"]
        self._random.setstate((version, tuple(internal), carried))
        with nullcontext() if self._engine is None else self._engine.paused():
            super()._take(state)
            self._take_over(state.counters["weights_version"])


def temperatures_of(temperature: float | Sequence[float], count: int) -> Sequence[float]:
    """One for each sequence."""
    temperatures = [temperature] * count if isinstance(temperature, int | float) else list(temperature)
    if len(temperatures) != count:
        raise InvalidInputError(f"there are {len(temperatures)} temperatures for {count} sequences: pass one for each")
    for each in temperatures:
        if not each > 0:
            raise InvalidInputError(f"temperature is {each}: use a number above 0")
    return temperatures


# -- the policy as it was at the start ----------------------------------------------------------------


def frozen_copy(model: Any) -> Any:
    """A model that stays as this one is now. Weights that are not trained are the same tensors, not copies."""
    shared: dict[int, Any] = {id(each): each for each in _fixed(model)}
    own = copy.deepcopy(model, shared).requires_grad_(False)
    for parameter in own.parameters():
        parameter.grad = None
    return own


def _fixed(model: nn.Module) -> list[Any]:
    return [each for each in model.parameters() if not each.requires_grad] + list(model.buffers())


# -- a merged copy ------------------------------------------------------------------------------------


def merged_copy(model: Any) -> Any:
    """The merged model, on the CPU, in the type of the base. The given one stays as it is."""
    # Copied straight to the CPU: a GPU need not hold the model twice.
    moved: dict[int, Any] = {
        **{id(each): nn.Parameter(each.detach().to("cpu", copy=True), False) for each in model.parameters()},
        **{id(each): each.detach().to("cpu", copy=True) for each in model.buffers()},
    }
    return copy.deepcopy(model, moved).merge_and_unload()
