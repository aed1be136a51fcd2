"""A model on this machine whose weights are trained: what a policy and its critic have in common.

Its state is all that is needed to go on to the same numbers: the trained weights, the optimiser, the counters. The
weights that are not trained come from the model's own files, and the state knows their fingerprint.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...errors import InvalidInputError
from ..errors import TrainingError
from ..models.loading import choose_device, choose_precision, load_model
from ..models.source import ModelSource, find_model
from .checkpoint import ModelState, fingerprint, read_state, write_state
from .forward import AnyBody, body_of
from .losses import Metrics, Totals
from .objective import merged
from .optimiser import AnyOptimiser, Optimiser
from .packing import (
    Integers,
    SampleRows,
    TokenBatch,
    check_ids,
    micro_batches,
    places_of,
    sample_rows,
    token_batch,
    totals_of,
    tree_batches,
)
from .samples import TrainingSample
from .settings import LocalSettings
from .trainable import apply_trainable, read_trainable, trained_weights

# Rows of a micro-batch where neither a size nor a budget is given.
_CPU_ROWS, _GPU_ROWS = 2_048, 32_768

Objective = Callable[[TokenBatch, SampleRows, Totals], tuple[Tensor, Metrics]]
"""The loss of a micro-batch, given the totals of the mini-batch."""


class LocalModel:
    """Loads a model, chooses what is trained, and keeps its optimiser. Dropout is never on."""

    kind = "model"
    model: Any
    """The transformers model; with LoRA, PEFT's around it."""
    tokenizer: Any
    source: ModelSource
    device: str
    _body: AnyBody
    _optimiser: AnyOptimiser

    def __init__(self, model_name: str | os.PathLike[str], settings: LocalSettings) -> None:
        self.settings = settings
        self._load(model_name)
        self._vocab_size: int = self.model.get_input_embeddings().weight.shape[0]
        self._prepare()

    @property
    def num_updates(self) -> int:
        """How often the weights were changed."""
        return self._optimiser.num_steps

    def optim_step(self) -> dict[str, float]:
        """Change the weights by the gradients that have added up, and forget those.

        Without any the weights stay, and nothing is counted. A gradient that is no number is a TrainingError, and
        the weights stay, too. `grad_norm` is that before clipping.
        """
        if not self._optimiser.has_gradient:
            return {"grad_norm": 0.0, "learning_rate": self.settings.schedule.at(self.num_updates)}
        return self._step()

    def zero_grad(self) -> None:
        """Forget the gradients that have added up."""
        self._optimiser.zero()

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the state into a folder; a state that is there is replaced at once."""
        return write_state(Path(folder), self.kind, self._state())

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Go on from a state. One of another model, or of other trained weights, is refused and changes nothing."""
        self._take(read_state(Path(folder), self.kind, like=self._state()))

    # -- what a policy and a critic add to ----------------------------------------------------------

    def _prepare(self) -> None:
        """Make what computes with the loaded model, and what changes it."""
        self._body = self._body_of(self.model)
        self._optimiser = self._made_optimiser(self._trained())

    def _step(self) -> dict[str, float]:
        return self._optimiser.step()

    def _made_optimiser(self, weights: dict[str, nn.Parameter]) -> AnyOptimiser:
        settings = self.settings
        return Optimiser(
            weights,
            settings.schedule,
            weight_decay=settings.weight_decay,
            betas=settings.betas,
            grad_clip=settings.grad_clip,
        )

    def _trained(self) -> dict[str, nn.Parameter]:
        return trained_weights(self.model)

    def _state(self) -> ModelState:
        return ModelState(self._fingerprint, self.trainable.name, self.num_updates, self._optimiser.state())

    def _take(self, state: ModelState) -> None:
        self._optimiser.load_state(state.tensors, state.num_updates)

    # -- micro-batches -------------------------------------------------------------------------------

    def _train(
        self, samples: Sequence[TrainingSample], width: int, totals: Totals | None, objective: Objective
    ) -> dict[str, float]:
        """Add up the gradients of these samples, micro-batch by micro-batch."""
        check_ids([each.token_ids for each in samples], self._vocab_size)
        totals = totals or totals_of(samples, width)
        trained = [number for number, each in enumerate(samples) if each.num_trained]
        parts: list[Metrics] = []
        with self._whole_gradients():
            for numbers in self._micro_batches([samples[number].token_ids for number in trained]):
                rows = sample_rows(samples, [trained[number] for number in numbers], device=self.device)
                temperatures = [each.temperature for each in rows.samples]
                batch = self._batch([each.token_ids for each in rows.samples], rows.places, temperatures)
                loss, metrics = objective(batch, rows, totals)
                loss.backward()  # type: ignore[no-untyped-call]
                parts.append(metrics)
        return merged(parts)

    def _scored(
        self,
        sequences: Sequence[Sequence[int]],
        masks: Sequence[Sequence[bool]] | None,
        temperatures: Sequence[float],
        score: Callable[[TokenBatch], Tensor],
    ) -> list[Tensor]:
        """A number for each token of each sequence, on the CPU; 0 at the first token and where a mask is False."""
        check_ids(sequences, self._vocab_size)
        places = _places(sequences, masks)
        scores = [torch.zeros(len(each)) for each in sequences]
        asked = [number for number, each in enumerate(places) if len(each)]
        for numbers in self._micro_batches([sequences[number] for number in asked]):
            chosen = [asked[each] for each in numbers]
            places_here = [places[each] for each in chosen]
            batch = self._batch([sequences[n] for n in chosen], places_here, [temperatures[n] for n in chosen])
            with torch.no_grad():
                parts = torch.split(score(batch).cpu(), [len(each) for each in places_here])
            for number, part in zip(chosen, parts, strict=True):
                scores[number][torch.from_numpy(places[number])] = part
        return scores

    def _batch(
        self, sequences: Sequence[Sequence[int]], places: Sequence[Integers], temperatures: Sequence[float]
    ) -> TokenBatch:
        return token_batch(sequences, places, temperatures, shares=self.settings.packs, device=self.device)

    def _micro_batches(self, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
        """The numbers of the sequences in each micro-batch."""
        settings, lengths = self.settings, [len(each) for each in sequences]
        if not lengths:
            return []
        if not settings.packs:
            return micro_batches(lengths, size=settings.micro_batch_size or 1)
        budget = settings.token_budget
        if budget is None and settings.micro_batch_size is not None:
            budget = settings.micro_batch_size * max(lengths)
        elif budget is None:
            budget = _GPU_ROWS if self.device.startswith("cuda") else _CPU_ROWS
        if not self._body.shares_prefixes:
            return micro_batches(lengths, token_budget=budget)
        return tree_batches(sequences, token_budget=budget)

    @contextmanager
    def _whole_gradients(self) -> Iterator[None]:
        """After an error no gradient is left: part of a mini-batch would pull one way."""
        try:
            yield
        except BaseException as error:
            self.zero_grad()
            if not isinstance(error, torch.OutOfMemoryError):
                raise
            raise TrainingError(
                f"a micro-batch does not fit into the memory of {self.device}: lower token_budget or "
                f"micro_batch_size, or keep gradient_checkpointing on ({error})"
            ) from error

    # -- loading -------------------------------------------------------------------------------------

    def _load(self, model_name: str | os.PathLike[str]) -> None:
        settings = self.settings
        self.trainable = read_trainable(settings.trainable, lora_rank=settings.lora_rank, source=find_model(model_name))
        is_lora = self.trainable.kind == "lora"
        device = choose_device(settings.device)
        loaded = load_model(
            model_name,
            precision=_precision(settings.precision, device),
            device=self._loads_on(device),
            is_trainable=is_lora,
            merge=not is_lora,
            allow_download=settings.allow_download,
            trust_remote_code=settings.trust_remote_code,
            attn_implementation=settings.attn_implementation,
        )
        self.tokenizer, self.source, self.device = loaded.tokenizer, loaded.source, loaded.device
        self._fingerprint = fingerprint(loaded.model)
        self.model = apply_trainable(
            loaded.model,
            self.trainable,
            loaded.source,
            lora_rank=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            target_modules=settings.target_modules,
            seed=settings.seed,
        )

    def _loads_on(self, device: str) -> str:
        """Where the weights are before anything is done with them."""
        return device

    def _body_of(self, model: Any) -> AnyBody:
        return body_of(model, checkpoints=self.settings.gradient_checkpointing, compiles=self.settings.compiles)


def _places(sequences: Sequence[Sequence[int]], masks: Sequence[Sequence[bool]] | None) -> list[Integers]:
    if masks is None:
        return [np.arange(1, len(each)) for each in sequences]
    if [len(each) for each in masks] != [len(each) for each in sequences]:
        raise InvalidInputError("the masks do not have the lengths of the sequences: pass one entry for each token")
    return [places_of(each) for each in masks]


def _precision(wanted: str | None, device: str) -> str:
    """fp16 is nobody's choice here: gradients vanish in it."""
    chosen = choose_precision(wanted, device)
    return "fp32" if chosen == "fp16" else chosen
