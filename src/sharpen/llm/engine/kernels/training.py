"""Parts of a model's forward pass with their gradients, for a trainer: in Triton on a GPU, else in plain torch.

Axis letters: R rows (tokens), H heads, D head size, C tokens of a chunk, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .kernels import is_triton_there

_WIDTH = 1024
_SCORE_WIDTH = 4096
_BACK_PROGRAMS = 1024


def are_fused(device: torch.device) -> bool:
    """Whether these functions are kernels of their own on this device."""
    return device.type == "cuda" and is_triton_there()


def turned(x_RHD: Tensor, cos_RD: Tensor, sin_RD: Tensor) -> Tensor:
    """Queries or keys at their positions; the sines carry the sign of the swapped half."""
    if not are_fused(x_RHD.device):
        swapped = torch.roll(x_RHD, x_RHD.shape[-1] // 2, dims=-1)
        return x_RHD * cos_RD.unsqueeze(1) + swapped * sin_RD.unsqueeze(1)
    out: Tensor = _Turn.apply(x_RHD, cos_RD, sin_RD)  # type: ignore[no-untyped-call]
    return out


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    if not are_fused(gate.device):
        return F.silu(gate) * up
    out: Tensor = _Gate.apply(gate, up)  # type: ignore[no-untyped-call]
    return out


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + delta (or x), and its norm (root of the mean of squares); both have gradients."""
    if not are_fused(x.device):
        total = x if delta is None else x + delta
        return total, F.rms_norm(total, (x.shape[-1],), weight, eps)
    total, out = _AddNorm.apply(x, delta, weight, eps)  # type: ignore[no-untyped-call]
    return total, out


def scores(logits_CV: Tensor, targets_C: Tensor, temperature_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability of each target, entropy, and logarithm of the sum of each row at its temperature, in float32.

    Without gradient: `toward_logits` is its gradient.
    """
    if not are_fused(logits_CV.device):
        scaled_CV = logits_CV.float() / temperature_C[:, None]
        log_total_C = scaled_CV.logsumexp(-1)
        logprob_C = scaled_CV.gather(1, targets_C[:, None])[:, 0] - log_total_C
        return logprob_C, log_total_C - torch.linalg.vecdot(scaled_CV.softmax(-1), scaled_CV), log_total_C
    from . import triton_training

    found = torch.empty((3, len(logits_CV)), dtype=torch.float32, device=logits_CV.device)
    triton_training.score[(len(logits_CV),)](
        logits_CV, targets_C, temperature_C, *found.unbind(), logits_CV.shape[1], WIDTH=_SCORE_WIDTH, num_warps=8
    )
    return found[0], found[1], found[2]


def toward_logits(
    logits_CV: Tensor, targets_C: Tensor, temperature_C: Tensor, log_total_C: Tensor, toward_logprob_C: Tensor
) -> Tensor:
    """The gradient of the logits; on a GPU it takes their place."""
    if not are_fused(logits_CV.device):
        share_CV = (logits_CV.float() / temperature_C[:, None] - log_total_C[:, None]).exp_()
        slope_C = toward_logprob_C / temperature_C
        grad_CV = share_CV.mul_(-slope_C[:, None])
        return grad_CV.scatter_add_(1, targets_C[:, None], slope_C[:, None].float()).to(logits_CV.dtype)
    from . import triton_training

    rows, vocab = logits_CV.shape
    triton_training.score_back[(rows, -(-vocab // _SCORE_WIDTH))](
        logits_CV, targets_C, temperature_C, log_total_C, toward_logprob_C.contiguous(), vocab,
        WIDTH=_SCORE_WIDTH, num_warps=8,
    )  # fmt: skip
    return logits_CV


def add_to(total: Tensor, part: Tensor) -> None:
    """Add a gradient to its sum in float32, in place."""
    if not are_fused(total.device) or not (total.is_contiguous() and part.is_contiguous()):
        total += part
        return
    from . import triton_training

    count = total.numel()
    triton_training.add[(-(-count // _WIDTH),)](total, part, count, WIDTH=_WIDTH, num_warps=4)


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RHD: Tensor, cos_RD: Tensor, sin_RD: Tensor) -> Tensor:
        ctx.save_for_backward(cos_RD, sin_RD)
        return _launch_turn(x_RHD, cos_RD, sin_RD, is_back=False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _launch_turn(gradients[0], *ctx.saved_tensors, is_back=True), None, None


def _launch_turn(x_RHD: Tensor, cos_RD: Tensor, sin_RD: Tensor, *, is_back: bool) -> Tensor:
    from . import triton_training

    rows, heads, size = x_RHD.shape
    if x_RHD.stride()[1:] != (size, 1):
        x_RHD = x_RHD.contiguous()
    out = torch.empty((rows, heads, size), dtype=x_RHD.dtype, device=x_RHD.device)
    triton_training.turn[(rows,)](
        x_RHD, cos_RD.contiguous(), sin_RD.contiguous(), out, heads, x_RHD.stride(0),
        SIZE=size, SIZE_PAD=_power(size), HEADS_PAD=_power(heads), IS_BACK=is_back, num_warps=4,
    )  # fmt: skip
    return out


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        from . import triton_training

        rows, size = x.shape
        total = x if delta is None else torch.empty_like(x)
        out, scales = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
        triton_training.add_norm[(rows,)](
            x, x if delta is None else delta.contiguous(), weight, total, out, scales, rows, size, eps,
            HAS_DELTA=delta is not None, WIDTH=_power(size), num_warps=_row_warps(size),
        )  # fmt: skip
        ctx.save_for_backward(total, weight, scales)
        ctx.has_delta = delta is not None
        if delta is None:
            total = total.view_as(total)
        return total, out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        from . import triton_training

        total, weight, scales = ctx.saved_tensors
        toward_total, toward_out = gradients[0].contiguous(), gradients[1].contiguous()
        rows, size = total.shape
        programs = min(rows, _BACK_PROGRAMS)
        toward_x = torch.empty_like(total)
        sums = torch.empty((programs, size), dtype=torch.float32, device=total.device)
        triton_training.add_norm_back[(programs,)](
            total, weight, scales, toward_total, toward_out, toward_x, sums, rows, size,
            WIDTH=_power(size), num_warps=_row_warps(size),
        )  # fmt: skip
        return toward_x, toward_x if ctx.has_delta else None, sums.sum(0).to(weight.dtype), None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        from . import triton_training

        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(gate)
        triton_training.gate[(-(-out.numel() // _WIDTH),)](gate, up, out, out.numel(), WIDTH=_WIDTH, num_warps=4)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        from . import triton_training

        gate, up = ctx.saved_tensors
        toward_gate, toward_up = torch.empty_like(gate), torch.empty_like(up)
        triton_training.gate_back[(-(-gate.numel() // _WIDTH),)](
            gate, up, gradients[0].contiguous(), toward_gate, toward_up, gate.numel(), WIDTH=_WIDTH, num_warps=4
        )
        return toward_gate, toward_up


def _row_warps(size: int) -> int:
    return min(8, max(1, _power(size) // 512))


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()
