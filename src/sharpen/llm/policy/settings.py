"""What is set for training: losses and the closed sets they choose from, learning rates, the model. No torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, get_args

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


# -- learning rates over the steps of a run -----------------------------------------------------------


ScheduleKind = Literal["constant", "linear", "cosine"]
"""After the warm-up: as it is, or down to 0 at `total_steps` in a straight line or along a cosine."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """`warmup_steps` steps lead up to the learning rate; the last of them has all of it."""

    learning_rate: float
    kind: ScheduleKind = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.learning_rate < math.inf:
            raise ConfigError(f"learning_rate is {self.learning_rate}: use 0 or more, such as 1e-6")
        if self.kind not in get_args(ScheduleKind):
            raise ConfigError(f"lr_scheduler is {self.kind!r}: use {', '.join(map(repr, get_args(ScheduleKind)))}")
        if self.warmup_steps < 0:
            raise ConfigError(f"warmup_steps is {self.warmup_steps}: use 0 or more")
        if self.kind != "constant" and (self.total_steps is None or self.total_steps < 1):
            raise ConfigError(
                f"lr_scheduler is {self.kind!r} and total_steps is {self.total_steps}: set the number of steps "
                "after which the learning rate is 0, or use 'constant'"
            )

    def at(self, step: int) -> float:
        """The learning rate of a step; the first is step 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.kind == "constant" or self.total_steps is None:
            return self.learning_rate
        way = min(1.0, (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps))
        return self.learning_rate * (1 - way if self.kind == "linear" else (1 + math.cos(math.pi * way)) / 2)


# -- a model that is trained on this machine ----------------------------------------------------------


class LocalOptions(TypedDict, total=False):
    """The keyword arguments of `LocalPolicy` and `LocalCritic`: see `LocalSettings`."""

    trainable: str | None
    lora_rank: int
    lora_alpha: float
    target_modules: str | Sequence[str]
    precision: str | None
    device: str | None
    gradient_checkpointing: bool
    packs: bool
    micro_batch_size: int | None
    token_budget: int | None
    learning_rate: float
    weight_decay: float
    betas: tuple[float, float]
    grad_clip: float | None
    lr_scheduler: ScheduleKind
    warmup_steps: int
    total_steps: int | None
    seed: int
    attn_implementation: str | None
    allow_download: bool
    trust_remote_code: bool
    engine_options: Mapping[str, Any] | None
    keeps_reference: bool
    compiles: bool


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """What `LocalOptions` mean where they are not given."""

    trainable: str | None = None
    """`all`, `top:N` (the last N layers) or `lora`; None is `lora` where there is a rank or an adapter, else `all`."""
    lora_rank: int = 0
    lora_alpha: float = 16
    target_modules: str | Sequence[str] = "all-linear"
    precision: str | None = None
    """Of the weights: fp32 or bf16. Steps are always taken in float32."""
    device: str | None = None
    gradient_checkpointing: bool = True
    """Whether layers may be computed again for the gradient, where memory does not hold what they need for it."""
    packs: bool = True
    """Whether micro-batches are filled by tokens, and a common beginning of sequences is computed once."""
    micro_batch_size: int | None = 4
    """Bounds a micro-batch by the room that so many of the longest sequences take."""
    token_budget: int | None = None
    """Bounds it by tokens, and then `micro_batch_size` has no say. With neither, the device decides."""
    learning_rate: float = 1e-6
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    grad_clip: float | None = 1.0
    lr_scheduler: ScheduleKind = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    seed: int = 0
    attn_implementation: str | None = None
    allow_download: bool = True
    trust_remote_code: bool = False
    engine_options: Mapping[str, Any] | None = None
    """Further arguments of the `Engine`."""
    keeps_reference: bool = False
    """Whether the weights at the start are kept. An adapter always keeps them: they are small."""
    compiles: bool = False
    """Whether torch compiles the layers: faster on a GPU, after a minute or two of compiling."""
    schedule: Schedule = field(init=False)

    def __post_init__(self) -> None:
        for name in ("micro_batch_size", "token_budget"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}: use 1 or more, or None")
        if self.precision == "fp16":
            raise ConfigError("precision is 'fp16', in which gradients underflow: use 'bf16' or 'fp32'")
        made = Schedule(self.learning_rate, self.lr_scheduler, self.warmup_steps, self.total_steps)
        object.__setattr__(self, "schedule", made)
