"""A policy written for tianshou 0.4: `forward(batch, state=None)` acts, `update(sample_size, buffer, **kw)` learns.

Where tianshou is installed its policies get its own `Batch`; otherwise they get the small one below, which knows what
such policies use of it. The buffer holds the episodes of one collect, in order.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import torch

from ...errors import ConfigError
from ..episodes import EpisodeBatch
from ..policy import Actions
from ..trees import Array, rows
from .optimiser import (
    load_optimiser_state,
    load_scheduler_state,
    optimiser_state,
    scheduler_state,
    weights_state,
)
from .sampling import drawing_from

MOMENTS = ("mean", "var", "count")  # of tianshou's running statistics
COUNTERS = ("_iter", "_cnt", "eps")  # of its Q-learning policies: when the target follows, how much is explored


class Batch:
    """Named arrays with rows: `batch.obs`, `batch["obs"]`, `batch[3:5]`, `len(batch)`, `batch.split(64)`."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update({name: Batch(**part) if isinstance(part, dict) else part for name, part in parts.items()})

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self.__dict__[key]
        return Batch(**{name: part if part is None else part[key] for name, part in self.__dict__.items()})

    def __setitem__(self, key: str, value: Any) -> None:
        self.__dict__[key] = value

    def __contains__(self, key: str) -> bool:
        return key in self.__dict__

    def __len__(self) -> int:
        return len(next(part for part in self.__dict__.values() if part is not None))

    def keys(self) -> list[str]:
        return list(self.__dict__)

    def split(self, size: int, shuffle: bool = True, merge_last: bool = False) -> Iterator["Batch"]:
        """Parts of `size` rows, in a new order if `shuffle`; with `merge_last` a small rest joins the last part."""
        count = len(self)
        order = np.random.permutation(count) if shuffle else np.arange(count)
        for start in range(0, count, size):
            rest = count - start - size
            if merge_last and 0 < rest < size:
                yield self[order[start:]]
                return
            yield self[order[start : start + size]]


class EpisodeBuffer:
    """The episodes of a collect behind the methods of a tianshou buffer."""

    def __init__(self, batch: EpisodeBatch, batch_class: Any = Batch) -> None:
        self._last_T = batch.is_last_T
        self._length = len(batch)
        self._batch_class = batch_class
        self._parts = {**batch.as_dict(), "info": {}}

    def __getattr__(self, name: str) -> Any:
        """One part of all steps: `buffer.rew`, `buffer.terminated`."""
        parts: dict[str, Any] = self.__dict__.get("_parts", {})
        if name not in parts:
            raise AttributeError(f"a buffer of episodes has no {name!r}")
        return parts[name]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._batch_class(**{name: rows(part, index) for name, part in self._parts.items()})

    def sample(self, batch_size: int) -> tuple[Any, Array]:
        """All steps in order for 0, as tianshou means it, and otherwise random ones."""
        index = np.arange(self._length) if batch_size == 0 else np.random.choice(self._length, batch_size)
        return self[index], index

    def next(self, index: Array) -> Array:
        """The step after each, which for an episode's last step is itself."""
        return np.where(self._last_T[index], index, index + 1)

    def prev(self, index: Array) -> Array:
        """The step before each, which for an episode's first step is itself."""
        first = index == 0
        return np.where(first | self._last_T[index - 1], index, index - 1)

    def unfinished_index(self) -> Array:
        """None: every episode was played to its end."""
        return np.zeros(0, np.int64)


def _batch_class() -> Any:
    try:
        return import_module("tianshou.data").Batch
    except ImportError:
        return Batch


class Tianshou04Policy:
    """Wraps such a policy. Its random draws come from torch and NumPy, which are seeded from `rng` for each call."""

    def __init__(self, policy: Any) -> None:
        if not callable(getattr(policy, "forward", None)):
            raise ConfigError(f"a tianshou policy has forward(batch, state=None), but {type(policy).__name__} has not")
        self.policy = policy
        self._batch_class = _batch_class()

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        """What `forward` says, in `eval` mode where `deterministic`."""
        if isinstance(self.policy, torch.nn.Module):
            self.policy.train(not deterministic)
        batch = self._batch_class(obs=obs_N, info={})
        with drawing_from(rng), torch.no_grad():
            action = self.policy.forward(batch, state=None)["act"]
            action = action.numpy(force=True) if isinstance(action, torch.Tensor) else np.asarray(action)
            if not deterministic and hasattr(self.policy, "exploration_noise"):
                action = self.policy.exploration_noise(action, batch)
        return Actions(self.policy.map_action(action) if hasattr(self.policy, "map_action") else action)

    def learn(self, batch: EpisodeBatch, **update_kwargs: Any) -> dict[str, float]:
        """`update(0, buffer, **update_kwargs)`: the whole collect, in order."""
        if isinstance(self.policy, torch.nn.Module):
            self.policy.train()
        found = self.policy.update(0, EpisodeBuffer(batch, self._batch_class), **update_kwargs) or {}
        return {name: float(np.mean(value)) for name, value in dict(found).items()}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser and schedule (`optim`, `lr_scheduler`), the normaliser of returns, and counters."""
        policy = self.policy
        is_module, optimiser = isinstance(policy, torch.nn.Module), getattr(policy, "optim", None)
        returns = getattr(policy, "ret_rms", None)
        return {
            "weights": weights_state(policy) if is_module else {},
            "optimiser": optimiser_state(optimiser) if isinstance(optimiser, torch.optim.Optimizer) else {},
            "scheduler": scheduler_state(getattr(policy, "lr_scheduler", None)),
            "returns": {name: getattr(returns, name) for name in MOMENTS if hasattr(returns, name)},
            "counters": {name: getattr(policy, name) for name in COUNTERS if hasattr(policy, name)},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        policy = self.policy
        if state_dict["weights"]:
            policy.load_state_dict(state_dict["weights"])
        if state_dict["optimiser"]:
            load_optimiser_state(policy.optim, state_dict["optimiser"])
        load_scheduler_state(getattr(policy, "lr_scheduler", None), state_dict["scheduler"])
        for name, value in state_dict["returns"].items():
            setattr(policy.ret_rms, name, value)
        for name, value in state_dict["counters"].items():
            setattr(policy, name, value)
