"""Parts of a model's forward pass with their gradients, for a trainer: in Triton on a GPU, otherwise in plain torch.

Axis letters: R rows (tokens), H heads, D head size, C tokens of a chunk, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .kernels import has_triton, power_of_two, warps_for_row

_WIDTH = 1024
_SCORE_WIDTH = 4096
_BACKWARD_PROGRAMS = 1024


def are_fused(device: torch.device) -> bool:
    """Return whether these functions run as Triton kernels on this device."""
    return device.type == "cuda" and has_triton()


def rotated(x_RHD: Tensor, cos_RD: Tensor, sin_RD: Tensor) -> Tensor:
    """Return queries or keys rotated to their positions; the sines carry the sign of the swapped half."""
    if not are_fused(x_RHD.device):
        swapped = torch.roll(x_RHD, x_RHD.shape[-1] // 2, dims=-1)
        return x_RHD * cos_RD.unsqueeze(1) + swapped * sin_RD.unsqueeze(1)
    out: Tensor = _Rotate.apply(x_RHD, cos_RD, sin_RD)  # type: ignore[no-untyped-call]
    return out


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    if not are_fused(gate.device):
        return F.silu(gate) * up
    out: Tensor = _Gate.apply(gate, up)  # type: ignore[no-untyped-call]
    return out


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x + delta (or x) and its RMS norm; both have gradients."""
    if not are_fused(x.device):
        total = x if delta is None else x + delta
        return total, F.rms_norm(total, (x.shape[-1],), weight, eps)
    total, out = _AddNorm.apply(x, delta, weight, eps)  # type: ignore[no-untyped-call]
    return total, out


def scores(logits_CV: Tensor, targets_C: Tensor, temperature_C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-probability of each target, and the entropy and log-sum-exp of each row at its temperature.

    In float32 and without gradients, which `logits_gradient` computes.
    """
    if not are_fused(logits_CV.device):
        scaled_CV = logits_CV.float() / temperature_C[:, None]
        log_total_C = scaled_CV.logsumexp(-1)
        logprob_C = scaled_CV.gather(1, targets_C[:, None])[:, 0] - log_total_C
        return logprob_C, log_total_C - torch.linalg.vecdot(scaled_CV.softmax(-1), scaled_CV), log_total_C
    from . import triton_sampling

    found = torch.empty((3, len(logits_CV)), dtype=torch.float32, device=logits_CV.device)
    triton_sampling.score[(len(logits_CV),)](
        logits_CV, targets_C, temperature_C, *found.unbind(), logits_CV.shape[1], WIDTH=_SCORE_WIDTH, num_warps=8
    )
    return found[0], found[1], found[2]


def logits_gradient(
    logits_CV: Tensor, targets_C: Tensor, temperature_C: Tensor, log_total_C: Tensor, grad_logprob_C: Tensor
) -> Tensor:
    """Return the gradient of the logits; on a GPU it overwrites them."""
    if not are_fused(logits_CV.device):
        share_CV = (logits_CV.float() / temperature_C[:, None] - log_total_C[:, None]).exp_()
        slope_C = grad_logprob_C / temperature_C
        grad_CV = share_CV.mul_(-slope_C[:, None])
        return grad_CV.scatter_add_(1, targets_C[:, None], slope_C[:, None].float()).to(logits_CV.dtype)
    from . import triton_sampling

    rows, vocab = logits_CV.shape
    triton_sampling.score_backward[(rows, -(-vocab // _SCORE_WIDTH))](
        logits_CV, targets_C, temperature_C, log_total_C, grad_logprob_C.contiguous(), vocab,
        WIDTH=_SCORE_WIDTH, num_warps=8,
    )  # fmt: skip
    return logits_CV


def add_to(total: Tensor, part: Tensor) -> None:
    """Add a gradient to its float32 sum in place."""
    if not are_fused(total.device) or not (total.is_contiguous() and part.is_contiguous()):
        total += part
        return
    from . import triton_norms

    count = total.numel()
    triton_norms.add_to[(-(-count // _WIDTH),)](total, part, count, WIDTH=_WIDTH, num_warps=4)


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RHD: Tensor, cos_RD: Tensor, sin_RD: Tensor) -> Tensor:
        ctx.save_for_backward(cos_RD, sin_RD)
        return _launch_rotate(x_RHD, cos_RD, sin_RD, is_backward=False)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _launch_rotate(gradients[0], *ctx.saved_tensors, is_backward=True), None, None


def _launch_rotate(x_RHD: Tensor, cos_RD: Tensor, sin_RD: Tensor, *, is_backward: bool) -> Tensor:
    from . import triton_norms

    rows, heads, size = x_RHD.shape
    if x_RHD.stride()[1:] != (size, 1):
        x_RHD = x_RHD.contiguous()
    out = torch.empty((rows, heads, size), dtype=x_RHD.dtype, device=x_RHD.device)
    triton_norms.rotate[(rows,)](
        x_RHD, cos_RD.contiguous(), sin_RD.contiguous(), out, heads, x_RHD.stride(0),
        SIZE=size, SIZE_PAD=power_of_two(size), HEADS_PAD=power_of_two(heads), IS_BACKWARD=is_backward, num_warps=4,
    )  # fmt: skip
    return out


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        from . import triton_norms

        rows, size = x.shape
        total = x if delta is None else torch.empty_like(x)
        out, scales = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
        triton_norms.add_norm_forward[(rows,)](
            x, x if delta is None else delta.contiguous(), weight, total, out, scales, rows, size, eps,
            HAS_DELTA=delta is not None, WIDTH=power_of_two(size), num_warps=warps_for_row(size),
        )  # fmt: skip
        ctx.save_for_backward(total, weight, scales)
        ctx.has_delta = delta is not None
        if delta is None:
            total = total.view_as(total)
        return total, out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        from . import triton_norms

        total, weight, scales = ctx.saved_tensors
        grad_total, grad_out = gradients[0].contiguous(), gradients[1].contiguous()
        rows, size = total.shape
        programs = min(rows, _BACKWARD_PROGRAMS)
        grad_x = torch.empty_like(total)
        sums = torch.empty((programs, size), dtype=torch.float32, device=total.device)
        triton_norms.add_norm_backward[(programs,)](
            total, weight, scales, grad_total, grad_out, grad_x, sums, rows, size,
            WIDTH=power_of_two(size), num_warps=warps_for_row(size),
        )  # fmt: skip
        return grad_x, grad_x if ctx.has_delta else None, sums.sum(0).to(weight.dtype), None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        from . import triton_norms

        gate, up = gate.contiguous(), up.contiguous()
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(gate)
        triton_norms.gate_forward[(-(-out.numel() // _WIDTH),)](gate, up, out, out.numel(), WIDTH=_WIDTH, num_warps=4)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        from . import triton_norms

        gate, up = ctx.saved_tensors
        grad_gate, grad_up = torch.empty_like(gate), torch.empty_like(up)
        triton_norms.gate_backward[(-(-gate.numel() // _WIDTH),)](
            gate, up, gradients[0].contiguous(), grad_gate, grad_up, gate.numel(), WIDTH=_WIDTH, num_warps=4
        )
        return grad_gate, grad_up
