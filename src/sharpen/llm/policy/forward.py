"""The forward pass of a model for training: our own over shared rows where that is known to be exact (`fast_forward`).

Any other causal language model of transformers is computed by its own forward pass, on padded rows with all logits:
slower, and exact for models whose attention, positions or output only their own code knows.
"""

import logging
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..engine.weights import unwrapped
from ..errors import ModelError
from .fast_forward import Body
from .losses import entropy_from_logits
from .packing import TokenBatch, padded, token_batch

log = logging.getLogger(__name__)

_NUM_CHECKED = 8  # tokens of the comparison


class AnyBody(Protocol):
    """Computes a batch, with gradients where they are on."""

    @property
    def shares_prefixes(self) -> bool: ...
    def logprobs(self, batch: TokenBatch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]: ...
    def hidden(self, batch: TokenBatch) -> Tensor: ...


def body_of(model: Any, *, checkpoints: bool = True, compiles: bool = False) -> AnyBody:
    """Our own forward pass, if on a few tokens it gives what the model gives; else the model's own."""
    theirs = ModelBody(unwrapped(model))
    try:
        ours = Body(model, checkpoints=checkpoints, compiles=compiles)
    except ModelError as error:
        log.warning("%s; training it with its own forward pass on padded rows, which is exact but slower", error)
        return theirs
    if not is_same(ours, theirs, model):
        log.warning("the fast forward pass differs from that of %s; using the model's own", type(model).__name__)
        return theirs
    return ours


@torch.no_grad()
def is_same(ours: AnyBody, theirs: AnyBody, model: Any) -> bool:
    """Whether both give the same log-probabilities for some tokens, to the rounding of the dtype."""
    weight = model.get_input_embeddings().weight
    ids = [(7919 * (place + 1)) % weight.shape[0] for place in range(_NUM_CHECKED)]
    batch = token_batch([ids], [np.arange(1, _NUM_CHECKED)], [1.0], device=weight.device)
    (one, _), (other, _) = ours.logprobs(batch), theirs.logprobs(batch)
    allowed = 1e-3 if weight.dtype in {torch.float32, torch.float64} else 0.1
    return bool(((one - other).abs() <= allowed * other.abs().clamp(min=1.0)).all())


# -- the forward pass of transformers -----------------------------------------------------------------


class ModelBody:
    """Padding comes after the tokens, where no token sees it."""

    shares_prefixes = False

    def __init__(self, model: Any) -> None:
        self._model = model

    def logprobs(self, batch: TokenBatch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy of each token that the batch asks about."""
        logits_NV = _asked(self._run(batch).logits, batch).float() / batch.temperature_N[:, None]
        logprob_N = logits_NV.log_softmax(dim=-1).gather(1, batch.targets_N[:, None])[:, 0]
        with torch.set_grad_enabled(torch.is_grad_enabled() and entropy_gradient):
            return logprob_N, entropy_from_logits(logits_NV)

    def hidden(self, batch: TokenBatch) -> Tensor:
        """The last hidden state before each token that the batch asks about."""
        return _asked(self._run(batch, output_hidden_states=True).hidden_states[-1], batch)

    def _run(self, batch: TokenBatch, **options: Any) -> Any:
        device = batch.targets_N.device
        input_ids_BT = padded(batch.inputs, dtype=torch.long, device=device)
        length_B1 = torch.tensor([[len(each)] for each in batch.inputs], device=device)
        mask_BT = torch.arange(input_ids_BT.shape[1], device=device) < length_B1
        return self._model(input_ids=input_ids_BT, attention_mask=mask_BT.long(), use_cache=False, **options)


def _asked(values_BTX: Tensor, batch: TokenBatch) -> Tensor:
    """What stands before each token that the batch asks about."""
    rows = [torch.full((len(places),), number) for number, places in enumerate(batch.places)]
    places = [torch.from_numpy(each - 1) for each in batch.places]
    device = values_BTX.device
    return values_BTX[torch.cat(rows).to(device), torch.cat(places).to(device)]
