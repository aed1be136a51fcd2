"""AdamW over the trained weights of a model, in float32.

Weights in half precision are too coarse for small steps: beside each stands a float32 copy, which collects the
gradients of all micro-batches, takes the step, and is rounded back into the weight.
"""

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from ...errors import ConfigError
from ..engine.kernels.training import add_to
from ..errors import TrainingError
from .settings import Schedule

MOMENTS = ("exp_avg", "exp_avg_sq")
"""What Adam keeps of each element."""


class AnyOptimiser(Protocol):
    """One that a model is trained with: `Optimiser`, or one that several processes share."""

    num_steps: int

    @property
    def has_gradient(self) -> bool: ...
    def zero(self) -> None: ...
    def step(self) -> dict[str, float]: ...
    def state(self) -> dict[str, Tensor]: ...
    def load_state(self, tensors: Mapping[str, Tensor], num_steps: int) -> None: ...


class Optimiser:
    """Steps when it is told to; until then gradients add up."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        schedule: Schedule,
        *,
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.999),
        grad_clip: float | None = 1.0,
    ) -> None:
        check_settings(parameters, weight_decay, betas, grad_clip)
        self.num_steps = 0
        self._schedule = schedule
        self._grad_clip = math.inf if grad_clip is None else grad_clip
        self._parameters = dict(parameters)
        self._masters = {name: _master(each) for name, each in parameters.items()}
        for name, each in self._coarse():
            each.register_post_accumulate_grad_hook(_Collector(self._masters[name]))  # type: ignore[no-untyped-call]
        self._adam = torch.optim.AdamW(
            self._masters.values(), lr=schedule.at(0), betas=betas, weight_decay=weight_decay, **self._way()
        )

    @property
    def has_gradient(self) -> bool:
        return any(each.grad is not None for each in self._masters.values())

    def zero(self) -> None:
        """Forget the gradients."""
        for name, each in self._parameters.items():
            each.grad = self._masters[name].grad = None

    def step(self) -> dict[str, float]:
        """Change the weights by the gradients so far, and forget those. A gradient that is no number changes nothing.

        `grad_norm` is that before clipping.
        """
        gradients = [each.grad for each in self._masters.values() if each.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        grad_norm, learning_rate = norm.item(), self._schedule.at(self.num_steps)
        if not math.isfinite(grad_norm):
            self.zero()
            raise TrainingError(
                f"the norm of the gradient is {grad_norm} in step {self.num_steps + 1}, so the weights were not "
                "changed: lower the learning rate or grad_clip, check rewards and log-probabilities, or use fp32"
            )
        torch.nn.utils.clip_grads_with_norm_(self._masters.values(), self._grad_clip, norm)
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()
        self._round_back()
        self.num_steps += 1
        self.zero()
        return {"grad_norm": grad_norm, "learning_rate": learning_rate}

    # -- state ---------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        """All numbers but `num_steps`: moments, the exact weights, and how often each was changed."""
        tensors: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            tensors[f"weight.{name}"] = master.detach()
            for key, value in self._adam.state.get(master, {}).items():
                tensors[f"{key}.{name}"] = value
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor], num_steps: int) -> None:
        """Go on from a state of the same weights."""
        with torch.no_grad():
            for name, master in self._masters.items():
                master.copy_(tensors[f"weight.{name}"])
                self._adam.state.pop(master, None)
                if f"step.{name}" in tensors:
                    self._adam.state[master] = self._moments(tensors, name, master)
            self._round_back()
        self.num_steps = num_steps
        self.zero()

    def _moments(self, tensors: Mapping[str, Tensor], name: str, master: Tensor) -> dict[str, Tensor]:
        moments = {key: tensors[f"{key}.{name}"].to(master.device, copy=True) for key in MOMENTS}
        # The fused kernel wants its count beside the weights, the other one on the CPU.
        device = master.device if self._way().get("fused") else torch.device("cpu")
        return {"step": tensors[f"step.{name}"].to(device, copy=True), **moments}

    # -- weights -------------------------------------------------------------------------------------

    def _way(self) -> dict[str, bool]:
        kinds = {each.device.type for each in self._masters.values()}
        return {"fused": True} if kinds <= {"cpu", "cuda"} else {}

    def _coarse(self) -> list[tuple[str, nn.Parameter]]:
        """The weights that have a float32 copy."""
        return [(name, each) for name, each in self._parameters.items() if self._masters[name] is not each]

    @torch.no_grad()
    def _round_back(self) -> None:
        coarse = self._coarse()
        if coarse:
            torch._foreach_copy_([each for _, each in coarse], [self._masters[name] for name, _ in coarse])


class _Collector:
    """Adds the gradient of a weight to that of its float32 copy, and frees it."""

    def __init__(self, master: nn.Parameter) -> None:
        self._master = master

    def __call__(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        parameter.grad = None
        if gradient is None:
            return
        if self._master.grad is None:
            self._master.grad = gradient.float()
        else:
            add_to(self._master.grad, gradient)


def _master(parameter: nn.Parameter) -> nn.Parameter:
    if parameter.dtype in {torch.float32, torch.float64}:
        return parameter
    return nn.Parameter(parameter.detach().float())


def check_settings(
    parameters: Mapping[str, nn.Parameter], weight_decay: float, betas: tuple[float, float], grad_clip: float | None
) -> None:
    """There is something to train, and the numbers can work."""
    if not parameters:
        raise ConfigError("there are no weights to train: use trainable 'all', 'lora' or 'top:N'")
    if not 0 <= weight_decay < math.inf:
        raise ConfigError(f"weight_decay is {weight_decay}: use 0 or more, such as 0.01")
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"betas is {betas}: use two numbers, 0 or more and below 1, such as (0.9, 0.999)")
    if grad_clip is not None and not grad_clip > 0:
        raise ConfigError(f"grad_clip is {grad_clip}: use a number above 0, or None for no clipping")
