"""The device that a model runs on, and the precision that it computes in."""

from typing import Any, Literal, cast, get_args

from ...checks import check_choice, needs_extra
from ...errors import ConfigError

Precision = Literal["fp32", "bf16", "fp16"]

PRECISIONS: tuple[str, ...] = get_args(Precision)


def choose_device(wanted: str | None = None) -> str:
    """The wanted device (`cuda:1` and the like too), or the best one here: `cuda`, `mps` or `cpu`."""
    torch = _torch()
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    found = [kind for kind, is_here in here.items() if is_here]
    if wanted is None:
        return found[0]
    if not isinstance(wanted, str) or wanted.partition(":")[0] not in found:
        raise ConfigError(f"device is {wanted!r}, but this machine has: {', '.join(found)}")
    return wanted


def choose_precision(wanted: str | None, device: str) -> Precision:
    """The wanted precision, if the device can compute in it; `auto` and None leave the choice to the device."""
    kind = device.partition(":")[0]
    if wanted is None or wanted == "auto":
        return _usual(kind)
    check_choice("precision", wanted, ("auto", *PRECISIONS))
    if wanted == "fp16" and kind == "cpu":
        raise ConfigError("precision is 'fp16', which a CPU cannot train in: use 'fp32' (or 'bf16'), or a GPU")
    if wanted == "bf16" and kind == "cuda" and not _has_bf16():
        raise ConfigError("precision is 'bf16', which this GPU does not have: use 'fp16' or 'fp32'")
    return cast(Precision, wanted)


def torch_dtype(precision: Precision) -> Any:
    """The type of numbers in torch."""
    torch = _torch()
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _usual(kind: str) -> Precision:
    if kind != "cuda":
        return "fp32"
    return "bf16" if _has_bf16() else "fp16"


def _has_bf16() -> bool:
    # Older GPUs emulate it, which is slower than not using it.
    return bool(_torch().cuda.is_bf16_supported(including_emulation=False))


def _torch() -> Any:
    with needs_extra("torch", extra="llm", feature="running a language model"):
        import torch
    return torch
