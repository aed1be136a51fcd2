"""The whole loss of a micro-batch: policy, KL and entropy, as the settings say."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from .losses import (
    Metrics,
    Totals,
    aggregate,
    importance_weights,
    kl_loss,
    merge_metrics,
    policy_loss,
    ratio_metrics,
    token_share,
    value_loss,
)
from .packing import SampleRows
from .settings import LossSettings


def policy_objective(
    logprobs_BT: Tensor, entropy_BT: Tensor, rows: SampleRows, loss: LossSettings, totals: Totals
) -> tuple[Tensor, Metrics]:
    """What the policy minimises. The entropy is always measured, and the KL wherever the reference is known."""
    mask_BT = rows.mask_BT
    known_BT, weights_BT, metrics = rows.values("old_logprobs"), None, Metrics()
    old_BT = logprobs_BT.detach() if loss.is_on_policy else known_BT
    if loss.importance_cap is not None:
        is_known = rows.has("sampler_logprobs") or not loss.is_on_policy
        sampler_BT = rows.values("sampler_logprobs") if is_known else known_BT
        weights_BT, metrics = importance_weights(
            old_BT, sampler_BT, mask_BT, mode=loss.importance_mode, cap=loss.importance_cap, totals=totals
        )
    total, policy_metrics = policy_loss(
        logprobs_BT,
        old_BT,
        rows.values("advantages"),
        mask_BT,
        clip_low=loss.clip_low,
        clip_high=loss.clip_high,
        dual_clip=loss.dual_clip,
        aggregation=loss.aggregation,
        importance_weights=weights_BT,
        totals=totals,
    )
    metrics |= policy_metrics
    if loss.is_on_policy:
        metrics |= ratio_metrics(logprobs_BT, known_BT, mask_BT, totals)
    if loss.kl_coef or rows.has("ref_logprobs"):
        ref_BT = rows.values("ref_logprobs")
        kl, kl_metrics = kl_loss(
            logprobs_BT, ref_BT, mask_BT, kind=loss.kl_kind, aggregation=loss.aggregation, totals=totals
        )
        total, metrics = total + loss.kl_coef * kl, metrics | kl_metrics
    if loss.entropy_coef:
        entropy = aggregate(entropy_BT, mask_BT, aggregation=loss.aggregation, totals=totals)
        total = total - loss.entropy_coef * entropy
    metrics["entropy"] = token_share(entropy_BT, mask_BT, totals)
    return total, {"loss": total.detach(), **metrics}


def value_objective(values_BT: Tensor, rows: SampleRows, loss: LossSettings, totals: Totals) -> tuple[Tensor, Metrics]:
    """What the critic minimises."""
    return value_loss(
        values_BT,
        rows.values("values"),
        rows.values("returns"),
        rows.mask_BT,
        clip=loss.value_clip,
        aggregation=loss.aggregation,
        totals=totals,
    )


def merged(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """The metrics of a mini-batch; `clip_share` is that of both sides."""
    metrics = merge_metrics(parts)
    if "clip_share_low" in metrics:
        metrics["clip_share"] = metrics["clip_share_low"] + metrics["clip_share_high"]
    return metrics
