"""What policies share for an update: gradient steps, a check of the losses, generators, and state as plain trees."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ...errors import InvalidInputError
from ..policy import EpisodeBatch
from ..trees import Tree, leaves

LEARN_OPTIONS = ("repeat", "batch_size")
"""What `learn` accepts besides the batch. Policies reject other names, which would silently have no effect."""

MakeScheduler = Callable[[Optimizer], LRScheduler]
# Below this many parameters a second thread makes torch slower: 7 to 35 times on busy cores.
_SMALL_PARAMETERS = 1_000_000


@contextmanager
def limit_threads(module: nn.Module) -> Iterator[None]:
    """Use a single torch thread inside this block if the network is small."""
    before = torch.get_num_threads()
    if before == 1 or sum(p.numel() for p in module.parameters()) > _SMALL_PARAMETERS:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def gradient_step(optimiser: Optimizer, loss: Tensor, *, max_grad_norm: float | None = None) -> None:
    """Make one step down the gradient of a loss."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    if max_grad_norm is not None:
        nn.utils.clip_grad_norm_(optimiser.param_groups[0]["params"], max_grad_norm)
    optimiser.step()


def weights_state(module: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the weights, which later updates do not change."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def optimiser_state(optimiser: Optimizer) -> dict[str, Any]:
    """Return moments and learning rates, but not the settings that the constructor was given."""
    state = optimiser.state_dict()

    def copied(value: Any) -> Any:
        return value.detach().clone() if isinstance(value, Tensor) else value

    moments = {str(index): {k: copied(v) for k, v in slots.items()} for index, slots in state["state"].items()}
    return {"moments": moments, "lr": [float(group["lr"]) for group in optimiser.param_groups]}


def load_optimiser_state(optimiser: Optimizer, state: dict[str, Any]) -> None:
    """Restore what `optimiser_state` returned."""
    groups = optimiser.state_dict()["param_groups"]
    for group, lr in zip(groups, state["lr"], strict=True):
        group["lr"] = lr
    moments = {int(index): dict(slots) for index, slots in state["moments"].items()}
    optimiser.load_state_dict({"state": moments, "param_groups": groups})


def scheduler_state(scheduler: LRScheduler | None) -> dict[str, Any]:
    """Return the state of a schedule; empty without one."""
    return dict(scheduler.state_dict()) if scheduler is not None else {}


def load_scheduler_state(scheduler: LRScheduler | None, state: dict[str, Any]) -> None:
    """Restore what `scheduler_state` returned."""
    if scheduler is not None and state:
        scheduler.load_state_dict(state)


def new_rng(seed: int | None) -> np.random.Generator:
    """Return a generator with this seed, or one drawn from torch, so that `torch.manual_seed` fixes a whole run."""
    return np.random.default_rng(int(torch.randint(2**62, ()).item()) if seed is None else seed)


def rng_state(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator as a plain tree."""
    return dict(rng.bit_generator.state)


def load_rng_state(rng: np.random.Generator, state: dict[str, Any]) -> None:
    """Restore what `rng_state` returned."""
    rng.bit_generator.state = state


# -- losses that are not finite ----------------------------------------------------------------------

_LOSSES = ("loss", "loss/critic", "loss/actor")


def check_losses(policy: str, metrics: Mapping[str, float], batch: EpisodeBatch) -> dict[str, float]:
    """Return the metrics of an update, or raise if a loss is not finite: the weights are lost from then on."""
    wrong = next((name for name, value in metrics.items() if name in _LOSSES and not math.isfinite(value)), None)
    if wrong is not None:
        raise InvalidInputError(f"{policy}.learn: {wrong} is {metrics[wrong]}. {_likely_cause(batch)}")
    return dict(metrics)


def _likely_cause(batch: EpisodeBatch) -> str:
    count = _rows_not_finite(batch.obs_T)
    if count:
        return (
            f"{count} of {len(batch)} observations are not finite: give their space bounds, and set "
            "validate_when = 'always' in the state interpreter to find the first one"
        )
    return (
        "All observations of this collect are finite, so the weights have diverged: "
        "use a smaller lr, smaller rewards, or a smaller max_grad_norm"
    )


def _rows_not_finite(obs_T: Tree) -> int:
    is_wrong_T: Any = False
    for leaf in leaves(obs_T):
        if np.issubdtype(leaf.dtype, np.floating):
            is_wrong_T = is_wrong_T | ~np.isfinite(leaf.reshape(len(leaf), -1)).all(1)
    return int(np.count_nonzero(is_wrong_T))
