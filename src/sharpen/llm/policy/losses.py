"""Losses of a policy and of its critic. Pure functions on torch tensors of the shape (B rows, T positions).

A mini-batch is too large for memory, so it is computed in micro-batches. Each divides by the totals of the whole
mini-batch (`Totals`), never by its own: the losses, and so the gradients, of the micro-batches add up to those of the
whole, however it is split. Every loss returns itself and its metrics. What stands outside the mask has no influence,
whatever it is.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self, get_args

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...errors import ConfigError, InvalidInputError
from .settings import Aggregation, ImportanceMode, KLKind, check_clips


def check_rows(mask_BT: Tensor, **values: Tensor) -> None:
    """Refuse what is not (rows, positions) like the mask: torch would broadcast it without a word."""
    for name, each in values.items():
        if mask_BT.dim() != 2 or each.shape != mask_BT.shape:
            raise InvalidInputError(
                f"{name} has the shape {tuple(each.shape)} and the mask {tuple(mask_BT.shape)}: "
                "both must be (rows, positions)"
            )


def as_floats(values: Tensor) -> Tensor:
    """In float32 at least: whole numbers and half precision are too coarse for means."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def only_masked(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """0 outside the mask. Whatever stood there, also NaN, reaches neither the value nor the gradient."""
    return torch.where(mask_BT.bool(), as_floats(values_BT), 0.0)


# -- how losses per token become one number -----------------------------------------------------------


Metrics = dict[str, Tensor]
"""Numbers of a micro-batch by name, without gradient. They add up to those of the mini-batch; those whose name ends in
`_max` take the greatest (see `merge_metrics`)."""


@dataclass(frozen=True, slots=True)
class Totals:
    """What a whole mini-batch holds, over all of its micro-batches.

    With several processes whose gradients are averaged, it is the mini-batch of all of them, and each loss is
    multiplied by their number.
    """

    tokens: int
    """Trained tokens."""
    sequences: int
    """Sequences with at least one."""
    width: int
    """What `seq-mean-token-sum-norm` divides by: a bound for the length, such as max_response_length."""

    def __post_init__(self) -> None:
        if self.tokens < 0 or self.sequences < 0 or self.width < 0:
            raise InvalidInputError(f"{self} has a negative count: use the counts of the whole mini-batch")

    @classmethod
    def of(cls, mask_BT: Tensor) -> Self:
        """Those of a mini-batch that is all here; its width is that of the mask."""
        mask_BT = mask_BT.bool()
        return cls(int(mask_BT.sum()), int(mask_BT.any(dim=1).sum()), mask_BT.shape[1])


def aggregate(
    losses_BT: Tensor, mask_BT: Tensor, *, aggregation: Aggregation = "token-mean", totals: Totals | None = None
) -> Tensor:
    """One number from a loss (or an entropy) per token. Without totals, the rows are the whole mini-batch."""
    check_rows(mask_BT, losses_BT=losses_BT)
    totals = totals or Totals.of(mask_BT)
    sum_B = only_masked(losses_BT, mask_BT).sum(dim=1)
    # A mini-batch without a trained token has the loss 0, not 0 / 0.
    tokens, sequences, width = max(totals.tokens, 1), max(totals.sequences, 1), max(totals.width, 1)
    match aggregation:
        case "token-mean":
            return sum_B.sum() / tokens
        case "seq-mean-token-sum":
            return sum_B.sum() / sequences
        case "seq-mean-token-mean":
            return (sum_B / mask_BT.bool().sum(dim=1).clamp(min=1)).sum() / sequences
        case "seq-mean-token-sum-norm":
            return sum_B.sum() / width / sequences
        case _:
            raise ConfigError(f"aggregation is {aggregation!r}: use {', '.join(map(repr, get_args(Aggregation)))}")


def token_share(values_BT: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """This micro-batch's part of a mean over all trained tokens, for a metric."""
    return only_masked(values_BT.detach(), mask_BT).sum() / max(totals.tokens, 1)


def sequence_share(values_B: Tensor, mask_BT: Tensor, totals: Totals) -> Tensor:
    """This micro-batch's part of a mean over all sequences with a trained token, for a metric."""
    has_token_B = mask_BT.bool().any(dim=1)
    return torch.where(has_token_B, values_B.detach(), 0.0).sum() / max(totals.sequences, 1)


def merge_metrics(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """The metrics of a mini-batch from those of its micro-batches. The only place that waits for the device."""
    values: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(value)
    return {
        name: float(torch.stack(each).max() if name.endswith("_max") else torch.stack(each).sum())
        for name, each in values.items()
    }


# -- losses -------------------------------------------------------------------------------------------


# exp(20) is far outside any clipping range, and far from infinity.
_LOG_RATIO_LIMIT = 20.0


# -- policy ------------------------------------------------------------------------------------------


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None = None,
    aggregation: Aggregation = "token-mean",
    importance_weights: Tensor | None = None,
    totals: Totals | None = None,
) -> tuple[Tensor, Metrics]:
    """The clipped surrogate loss: with r = policy / old policy, -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A).

    `dual_clip` c bounds the loss of a token with a negative advantage by -c A. `importance_weights` multiply the loss
    of each token (see the function of that name).
    """
    check_rows(mask, logprobs=logprobs, old_logprobs=old_logprobs, advantages=advantages)
    check_clips(clip_low, clip_high, dual_clip)
    totals = totals or Totals.of(mask)
    log_ratio = _log_ratio(logprobs, old_logprobs.detach(), mask)
    ratio = log_ratio.exp()
    advantages = only_masked(advantages.detach(), mask)
    free = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(free, clipped)
    metrics = ratio_metrics(logprobs, old_logprobs, mask, totals)
    is_clipped = clipped > free
    metrics["clip_share_high"] = token_share(is_clipped & (advantages > 0), mask, totals)
    metrics["clip_share_low"] = token_share(is_clipped & (advantages < 0), mask, totals)
    if dual_clip is not None:
        # The loss of a positive advantage is negative, so this bounds only the others.
        bound = advantages.abs() * dual_clip
        metrics["dual_clip_share"] = token_share(losses > bound, mask, totals)
        losses = torch.minimum(losses, bound)
    if importance_weights is not None:
        check_rows(mask, importance_weights=importance_weights)
        losses = losses * only_masked(importance_weights.detach(), mask)
    loss = aggregate(losses, mask, aggregation=aggregation, totals=totals)
    return loss, {"policy_loss": loss.detach(), **metrics}


def ratio_metrics(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, totals: Totals) -> Metrics:
    """The ratio before clipping, and how far the policy has moved (k3 of old policy against policy)."""
    log_ratio = _log_ratio(logprobs.detach(), old_logprobs.detach(), mask)
    ratio = log_ratio.exp()
    return {
        "ratio": token_share(ratio, mask, totals),
        "ratio_max": _greatest(only_masked(ratio, mask)),
        "old_policy_kl": token_share(ratio - 1 - log_ratio, mask, totals),
    }


# -- the sampler is not the trainer ------------------------------------------------------------------


def importance_weights(
    trainer_logprobs: Tensor,
    sampler_logprobs: Tensor,
    mask: Tensor,
    *,
    mode: ImportanceMode = "token",
    cap: float,
    totals: Totals | None = None,
) -> tuple[Tensor, Metrics]:
    """Truncated importance weights, min(trainer / sampler, cap), for tokens that another policy sampled.

    That is one with older weights, or the same in other kernels or precision. `trainer_logprobs` are those that the
    policy loss takes as the old ones. The ratio is that of each token, or of the whole sampled part of its sequence (no
    bias but that of the cap, and more spread). The weights have no gradient, and are 0 outside the mask. The metrics
    hold the ratio before the cap: near 1 where sampler and trainer agree.
    """
    check_rows(mask, trainer_logprobs=trainer_logprobs, sampler_logprobs=sampler_logprobs)
    if not cap >= 1:
        raise ConfigError(
            f"cap is {cap}: use 1 or more; below 1 every weight would be capped even if the policies agree"
        )
    totals = totals or Totals.of(mask)
    log_ratio = _log_ratio(trainer_logprobs.detach(), sampler_logprobs.detach(), mask)
    if mode == "sequence":
        log_ratio_B1 = log_ratio.sum(dim=1, keepdim=True).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
        log_ratio = log_ratio_B1.expand_as(log_ratio)
        ratio_B = log_ratio_B1[:, 0].exp()
        mean, share = (sequence_share(each, mask, totals) for each in (ratio_B, as_floats(ratio_B > cap)))
    elif mode == "token":
        ratio = log_ratio.exp()
        mean, share = (token_share(each, mask, totals) for each in (ratio, ratio > cap))
    else:
        raise ConfigError(f"mode is {mode!r}: use 'token' or 'sequence'")
    ratio = only_masked(log_ratio.exp(), mask)
    metrics = {"importance_ratio": mean, "importance_ratio_max": _greatest(ratio), "importance_capped_share": share}
    return ratio.clamp(max=cap), metrics


# -- KL ----------------------------------------------------------------------------------------------


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, kind: KLKind = "k3") -> Tensor:
    """KL(policy || reference) per token, estimated from the log-probabilities of the sampled token."""
    log_ratio = (as_floats(logprobs) - as_floats(ref_logprobs)).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    match kind:
        case "k1":
            return log_ratio
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return torch.expm1(-log_ratio) + log_ratio
        case _:
            raise ConfigError(f"kind is {kind!r}: use {', '.join(map(repr, get_args(KLKind)))}")


def kl_loss(
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor,
    *,
    kind: KLKind = "k3",
    aggregation: Aggregation = "token-mean",
    totals: Totals | None = None,
) -> tuple[Tensor, Metrics]:
    """The KL to the reference as a loss, before its coefficient."""
    losses = _masked_kl(logprobs, ref_logprobs.detach(), mask, kind)
    loss = aggregate(losses, mask, aggregation=aggregation, totals=totals)
    return loss, {"kl_loss": loss.detach(), "kl": token_share(losses, mask, totals or Totals.of(mask))}


def _masked_kl(logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, kind: KLKind) -> Tensor:
    check_rows(mask, logprobs=logprobs, ref_logprobs=ref_logprobs)
    return kl_estimate(only_masked(logprobs, mask), only_masked(ref_logprobs, mask), kind)


# -- entropy and values ------------------------------------------------------------------------------


def entropy_from_logits(logits: Tensor, *, chunk_size: int = 1024) -> Tensor:
    """The entropy of each distribution along the last axis, in float32 at least.

    The float32 copies of only `chunk_size` distributions exist at a time, also when the gradient is computed. Logits
    of minus infinity are tokens that cannot come.
    """
    if chunk_size < 1:
        raise ConfigError(f"chunk_size is {chunk_size}: use 1 or more")
    rows = logits.reshape(-1, logits.shape[-1])
    if not len(rows):
        return as_floats(logits).new_zeros(logits.shape[:-1])
    chunks = torch.split(rows, chunk_size)
    entropy_of = _entropy_computed_twice if torch.is_grad_enabled() and logits.requires_grad else _entropy
    return torch.cat([entropy_of(chunk) for chunk in chunks]).reshape(logits.shape[:-1])


def _entropy_computed_twice(logits_NV: Tensor) -> Tensor:
    """Again for the gradient, so that no chunk's copies are kept until then. Nothing in it is random."""
    entropy_N: Tensor = checkpoint(_entropy, logits_NV, use_reentrant=False, preserve_rng_state=False)
    return entropy_N


def _entropy(logits_NV: Tensor) -> Tensor:
    logprobs_NV = torch.log_softmax(as_floats(logits_NV), dim=-1)
    # 0 * log 0 is 0 here, and its gradient too.
    finite_NV = logprobs_NV.clamp(min=torch.finfo(logprobs_NV.dtype).min)
    return -(logprobs_NV.exp() * finite_NV).sum(dim=-1)


def value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor,
    *,
    clip: float | None,
    aggregation: Aggregation = "token-mean",
    totals: Totals | None = None,
) -> tuple[Tensor, Metrics]:
    """Half the squared error of a critic; with `clip`, the greater of that and of the value held near its old one."""
    check_rows(mask, values=values, old_values=old_values, returns=returns)
    if clip is not None and not clip > 0:
        raise ConfigError(f"clip is {clip}: use a number above 0, or None for no clipping")
    totals = totals or Totals.of(mask)
    values, old_values, returns = (only_masked(each, mask) for each in (values, old_values.detach(), returns.detach()))
    losses = (values - returns).square() / 2
    metrics = {"value": token_share(values, mask, totals)}
    if clip is not None:
        near = old_values + (values - old_values).clamp(-clip, clip)
        clipped = (near - returns).square() / 2
        metrics["value_clip_share"] = token_share(clipped > losses, mask, totals)
        losses = torch.maximum(losses, clipped)
    loss = aggregate(losses, mask, aggregation=aggregation, totals=totals)
    return loss, {"value_loss": loss.detach(), **metrics}


# -- shared ------------------------------------------------------------------------------------------


def _log_ratio(logprobs: Tensor, others: Tensor, mask: Tensor) -> Tensor:
    difference = only_masked(logprobs, mask) - only_masked(others, mask)
    return difference.clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)


def _greatest(values: Tensor) -> Tensor:
    return values.max() if values.numel() else values.new_zeros(())
