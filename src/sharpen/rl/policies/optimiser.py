"""Optimisers: one step, their state as plain trees, and the number of threads that small networks want."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

LEARN_OPTIONS = ("repeat", "batch_size")
"""What `learn` takes beside the batch; another setting in `update_kwargs` would silently have no effect."""

MakeScheduler = Callable[[Optimizer], LRScheduler]
# Below this many parameters a second thread costs more than it gives: 7 to 35 times slower on busy cores.
_SMALL_PARAMETERS = 1_000_000


@contextmanager
def fitting_threads(module: nn.Module) -> Iterator[None]:
    """One torch thread while a small network on the CPU is at work."""
    before = torch.get_num_threads()
    if before == 1 or sum(p.numel() for p in module.parameters()) > _SMALL_PARAMETERS:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def descend(optimiser: Optimizer, loss: Tensor, *, max_grad_norm: float | None = None) -> None:
    """One step down the gradient of a loss."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    if max_grad_norm is not None:
        nn.utils.clip_grad_norm_(optimiser.param_groups[0]["params"], max_grad_norm)
    optimiser.step()


def weights_state(module: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights, which later updates do not change."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def optimiser_state(optimiser: Optimizer) -> dict[str, Any]:
    """Moments and learning rates; what the constructor was given is not repeated."""
    state = optimiser.state_dict()
    moments = {str(index): {k: _copied(v) for k, v in slots.items()} for index, slots in state["state"].items()}
    return {"moments": moments, "lr": [float(group["lr"]) for group in optimiser.param_groups]}


def load_optimiser_state(optimiser: Optimizer, state: dict[str, Any]) -> None:
    """Put back what `optimiser_state` gave."""
    groups = optimiser.state_dict()["param_groups"]
    for group, lr in zip(groups, state["lr"], strict=True):
        group["lr"] = lr
    moments = {int(index): dict(slots) for index, slots in state["moments"].items()}
    optimiser.load_state_dict({"state": moments, "param_groups": groups})


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def scheduler_state(scheduler: LRScheduler | None) -> dict[str, Any]:
    """Where a schedule stands; empty without one."""
    return dict(scheduler.state_dict()) if scheduler is not None else {}


def load_scheduler_state(scheduler: LRScheduler | None, state: dict[str, Any]) -> None:
    """Put back what `scheduler_state` gave."""
    if scheduler is not None and state:
        scheduler.load_state_dict(state)
