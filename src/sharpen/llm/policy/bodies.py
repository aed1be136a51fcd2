"""Which body a model gets: our own over shared rows where it is known to be exact, else the model's."""

import logging
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..engine.weights import unwrapped
from ..errors import ModelError
from .body import Body
from .model_body import ModelBody
from .token_batch import TokenBatch, token_batch

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
