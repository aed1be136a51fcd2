"""The output layer of a language model: log-probabilities and entropies, a chunk of tokens at a time.

The logits of a chunk are all that exists of (tokens x vocabulary), forward and backward. Where the layer itself is not
trained, the gradient of a log-probability towards its hidden state is known before the loss is: it is computed at once,
and no logits are computed twice.

Axis letters: N tokens, C tokens of a chunk, H hidden size, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..engine.kernels.training import are_fused, logits_gradient, scores

# Logits of one chunk: few enough to stay near the processor, enough to keep a GPU busy.
_CPU_NUMBERS, _GPU_NUMBERS = 1 << 24, 1 << 28
# So many logits of a micro-batch, in half precision, are kept for the gradient: 4 GB. More are computed twice.
_KEPT_NUMBERS = 1 << 31


def head_logprobs(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    temperature_N: Tensor,
    *,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """The log-probability of each target, and the entropy of its distribution, both at its temperature.

    The entropy has a gradient only where it is asked for. Both are float32.
    """
    logprob_N, entropy_N = _HeadLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_NH, weight_VH, bias_V, targets_N, temperature_N, entropy_gradient, torch.is_grad_enabled()
    )
    return logprob_N, entropy_N


def head_weights(head: Any) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of an output layer, with what LoRA adds to it."""
    if not hasattr(head, "lora_A"):
        return head.weight, head.bias
    base: nn.Linear = head.base_layer
    weight: Tensor = base.weight
    if not (head.merged or head.disable_adapters):
        for adapter in head.active_adapters:
            if adapter in head.lora_A:
                delta = head.lora_B[adapter].weight @ head.lora_A[adapter].weight * head.scaling[adapter]
                weight = weight + delta.to(weight.dtype)
    return weight, base.bias


class _HeadLogprobs(torch.autograd.Function):
    """`is_needed` says whether gradients are on: inside of `forward` they never are."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        temperature_N: Tensor,
        entropy_gradient: bool,
        is_needed: bool,
    ) -> tuple[Tensor, Tensor]:
        is_head_trained = weight_VH.requires_grad or (bias_V is not None and bias_V.requires_grad)
        is_ahead = is_needed and hidden_NH.requires_grad and not is_head_trained
        slope_NH = torch.empty_like(hidden_NH) if is_ahead else None
        entropy_slope_NH = torch.empty_like(hidden_NH) if is_ahead and entropy_gradient else None
        logprob_N = temperature_N.new_empty(len(hidden_NH))
        entropy_N = torch.empty_like(logprob_N)
        kind = _chunk_kind(hidden_NH, entropy_gradient)
        is_kept = is_needed and not is_ahead and kind.is_small and len(hidden_NH) * len(weight_VH) <= _KEPT_NUMBERS
        ctx.kept = []
        for rows in _chunks(hidden_NH, weight_VH):
            chunk = kind(hidden_NH[rows], weight_VH, bias_V, targets_N[rows], temperature_N[rows])
            if is_kept:
                ctx.kept.append(chunk)
            logprob_N[rows], entropy_N[rows] = chunk.logprob_C, chunk.entropy_C
            if entropy_slope_NH is not None:
                entropy_slope_NH[rows] = chunk.entropy_slope()
            if slope_NH is not None:
                slope_NH[rows] = chunk.slope()
        if is_ahead:
            ctx.save_for_backward(slope_NH, entropy_slope_NH)
        else:
            ctx.save_for_backward(hidden_NH, weight_VH, bias_V, targets_N, temperature_N)
        ctx.is_ahead, ctx.entropy_gradient = is_ahead, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_N)
        return logprob_N, entropy_N

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        toward_logprob_N = gradients[0]
        toward_entropy_N = gradients[1] if ctx.entropy_gradient else None
        if not ctx.is_ahead:
            return *_computed_again(ctx, toward_logprob_N, toward_entropy_N), None, None, None, None
        slope_NH, entropy_slope_NH = ctx.saved_tensors
        hidden_NH = toward_logprob_N[:, None] * slope_NH
        if toward_entropy_N is not None:
            hidden_NH += toward_entropy_N[:, None] * entropy_slope_NH
        return hidden_NH.to(slope_NH.dtype), None, None, None, None, None, None


def _computed_again(
    ctx: Any, toward_logprob_N: Tensor, toward_entropy_N: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The gradients of hidden states, weight and bias."""
    hidden_NH, weight_VH, bias_V, targets_N, temperature_N = ctx.saved_tensors
    grad_NH = torch.empty_like(hidden_NH)
    # Sums over chunks are kept in float32.
    grad_VH = torch.zeros_like(weight_VH, dtype=torch.float32) if ctx.needs_input_grad[1] else None
    grad_V = torch.zeros_like(bias_V, dtype=torch.float32) if ctx.needs_input_grad[2] else None
    kind = _chunk_kind(hidden_NH, ctx.entropy_gradient)
    # A gradient uses the logits up: they serve once.
    kept, ctx.kept = ctx.kept, []
    for number, rows in enumerate(_chunks(hidden_NH, weight_VH)):
        if kept:
            chunk, kept[number] = kept[number], None
        else:
            chunk = kind(hidden_NH[rows], weight_VH, bias_V, targets_N[rows], temperature_N[rows])
        toward_entropy_C = None if toward_entropy_N is None else toward_entropy_N[rows]
        grad_CV = chunk.toward_logits(toward_logprob_N[rows], toward_entropy_C)
        if grad_V is not None:
            grad_V += grad_CV.sum(dim=0, dtype=torch.float32)
        grad_CV = grad_CV.to(hidden_NH.dtype)
        grad_NH[rows] = grad_CV @ weight_VH
        if grad_VH is not None:
            grad_VH += grad_CV.t() @ hidden_NH[rows]
    return (
        grad_NH,
        None if grad_VH is None else grad_VH.to(weight_VH.dtype),
        None if grad_V is None else grad_V.to(bias_V.dtype),
    )


# -- the distributions of some tokens ----------------------------------------------------------------


class _Chunk:
    """In plain torch. What gives a gradient may use the logits up, so it is asked for last."""

    is_small = False  # whether it holds no more than the logits in the dtype of the model

    def __init__(
        self, hidden_CH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_C: Tensor, temperature_C: Tensor
    ) -> None:
        self._weight_VH, self._targets_C, self._temperature_C = weight_VH, targets_C, temperature_C
        logits_CV = nn.functional.linear(hidden_CH, weight_VH, bias_V).float()
        self._logprobs_CV = logits_CV.div_(temperature_C[:, None]).log_softmax(dim=-1)
        self._probs_CV = torch.exp(self._logprobs_CV, out=logits_CV)
        self.logprob_C = self._logprobs_CV.gather(1, targets_C[:, None])[:, 0]
        self.entropy_C: Tensor = -torch.linalg.vecdot(self._probs_CV, self._logprobs_CV)

    def slope(self) -> Tensor:
        """How the log-probability changes with the hidden state."""
        mean_CH = self._probs_CV.to(self._weight_VH.dtype) @ self._weight_VH
        return (self._weight_VH[self._targets_C] - mean_CH) / self._temperature_C[:, None]

    def entropy_slope(self) -> Tensor:
        """How the entropy changes with the hidden state."""
        return self._toward_entropy().to(self._weight_VH.dtype) @ self._weight_VH / self._temperature_C[:, None]

    def toward_logits(self, toward_logprob_C: Tensor, toward_entropy_C: Tensor | None) -> Tensor:
        """The gradient of the logits."""
        grad_CV = self._probs_CV * -toward_logprob_C[:, None]
        grad_CV.scatter_add_(1, self._targets_C[:, None], toward_logprob_C[:, None])
        if toward_entropy_C is not None:
            grad_CV += self._toward_entropy() * toward_entropy_C[:, None]
        return grad_CV.div_(self._temperature_C[:, None])

    def _toward_entropy(self) -> Tensor:
        """By the logits over the temperature: -p (log p + entropy)."""
        return -self._probs_CV * (self._logprobs_CV + self.entropy_C[:, None])


class _FusedChunk(_Chunk):
    """In kernels that read the logits once, as they come out of the product. It gives no gradient of the entropy."""

    is_small = True

    def __init__(
        self, hidden_CH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, targets_C: Tensor, temperature_C: Tensor
    ) -> None:
        self._weight_VH, self._targets_C, self._temperature_C = weight_VH, targets_C, temperature_C
        self._logits_CV = nn.functional.linear(hidden_CH, weight_VH, bias_V)
        self.logprob_C, self.entropy_C, self._log_total_C = scores(self._logits_CV, targets_C, temperature_C)

    def slope(self) -> Tensor:
        return self.toward_logits(torch.ones_like(self.logprob_C), None) @ self._weight_VH

    def toward_logits(self, toward_logprob_C: Tensor, toward_entropy_C: Tensor | None) -> Tensor:
        return logits_gradient(
            self._logits_CV, self._targets_C, self._temperature_C, self._log_total_C, toward_logprob_C
        )


def _chunk_kind(hidden_NH: Tensor, entropy_gradient: bool) -> type[_Chunk]:
    return _FusedChunk if are_fused(hidden_NH.device) and not entropy_gradient else _Chunk


def _chunks(hidden_NH: Tensor, weight_VH: Tensor) -> list[slice]:
    numbers = _CPU_NUMBERS if hidden_NH.device.type == "cpu" else _GPU_NUMBERS
    size = max(1, numbers // len(weight_VH))
    return [slice(start, start + size) for start in range(0, len(hidden_NH), size)]
