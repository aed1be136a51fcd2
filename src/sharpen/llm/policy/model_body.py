"""The body of any causal language model of transformers, by its own forward pass: padded rows, all logits.

Slower than `Body`, and exact for models whose attention, positions or output only their own code knows.
"""

from typing import Any

import torch
from torch import Tensor

from .losses import entropy_from_logits
from .packing import padded
from .token_batch import TokenBatch


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
