"""The settings of a model that is trained on this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from ...errors import ConfigError
from .schedule import Schedule, ScheduleKind


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
