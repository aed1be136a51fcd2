"""The settings of the losses, and the closed sets that they choose from. No torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from ...errors import ConfigError

Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
"""The mean over all tokens; or the mean over sequences of the sum of their tokens, of the mean of their tokens, or of
the sum of their tokens over a fixed width (which favours no length)."""

KLKind = Literal["k1", "k2", "k3"]
"""Estimates of KL(policy || reference) from tokens of the policy, with d = log policy - log reference: d (no bias, much
spread), d² / 2 (little spread, some bias), exp(-d) - 1 + d (no bias, never negative). As a loss, k1 does not pull: its
gradient is 0 on average."""

ImportanceMode = Literal["token", "sequence"]
"""Whether the distance between sampler and trainer is taken of each token, or of all sampled tokens of a sequence."""


@dataclass(frozen=True, slots=True)
class LossSettings:
    """How samples become a loss: see `losses` for what each number does.

    `width` is what the aggregation `seq-mean-token-sum-norm` divides by. A coefficient of 0 leaves its term out.
    `importance_cap` None leaves the correction for another sampler out.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = 3.0
    aggregation: Aggregation = "token-mean"
    width: int = 2048
    kl_coef: float = 0.0
    kl_kind: KLKind = "k3"
    entropy_coef: float = 0.0
    importance_cap: float | None = None
    importance_mode: ImportanceMode = "token"
    value_clip: float | None = 0.5
    is_on_policy: bool = False
    """The policy has not changed since it sampled, so the ratio is 1: `old_logprobs`, those of the sampler, are only
    measured. What sampler and trainer round differently then has no say."""

    def __post_init__(self) -> None:
        check_clips(self.clip_low, self.clip_high, self.dual_clip)
        _check_choice("aggregation", self.aggregation, get_args(Aggregation))
        _check_choice("kl_kind", self.kl_kind, get_args(KLKind))
        _check_choice("importance_mode", self.importance_mode, get_args(ImportanceMode))
        if self.width < 1:
            raise ConfigError(f"width is {self.width}: use 1 or more, such as the maximum response length")
        if not self.kl_coef >= 0:
            raise ConfigError(f"kl_coef is {self.kl_coef}: use 0 or more")
        if self.importance_cap is not None and not self.importance_cap >= 1:
            raise ConfigError(
                f"importance_cap is {self.importance_cap}: use 1 or more, or None for no correction; below 1 every "
                "weight would be capped even if the policies agree"
            )
        if self.value_clip is not None and not self.value_clip > 0:
            raise ConfigError(f"value_clip is {self.value_clip}: use a number above 0, or None for no clipping")


def check_clips(clip_low: float, clip_high: float, dual_clip: float | None) -> None:
    """The bounds of the clipped loss can work."""
    if not 0 <= clip_low <= 1:
        raise ConfigError(
            f"clip_low is {clip_low}: use a number from 0 to 1, since the ratio is kept above 1 - clip_low"
        )
    if not clip_high >= 0:
        raise ConfigError(f"clip_high is {clip_high}: use 0 or more, since the ratio is kept below 1 + clip_high")
    if dual_clip is not None and not dual_clip > 1:
        raise ConfigError(f"dual_clip is {dual_clip}: use a number above 1, or None for no limit")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}: use {', '.join(map(repr, choices))}")
