"""Policies of others: a plain `nn.Module`, a Stable-Baselines3 model, a policy written for tianshou 0.4.

Each is passed in ready-made and wrapped, so that the trainer can play it and, where it has a way to learn, train it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from ...checks import check_names
from ...errors import ConfigError
from ..policy import Actions, EpisodeBatch
from ..trees import Array, rows
from .networks import as_tensors, sample_categorical
from .updates import (
    LEARN_OPTIONS,
    limit_threads,
    load_optimiser_state,
    load_scheduler_state,
    optimiser_state,
    scheduler_state,
    weights_state,
)

LearnModule = Callable[..., dict[str, float]]
# Attributes kept in checkpoints; tianshou's are those of its running statistics and of its Q-learning policies.
SB3_COUNTERS = ("num_timesteps", "_n_calls", "_n_updates", "_current_progress_remaining", "exploration_rate")
TIANSHOU_MOMENTS = ("mean", "var", "count")
TIANSHOU_COUNTERS = ("_iter", "_cnt", "eps")


class ModulePolicy:
    """Wraps a module that maps a batch of observations to logits (Discrete) or to actions (Box).

    Pass `learn(module, batch, **update_kwargs)` to train it; without it the module does not change.
    """

    def __init__(self, module: nn.Module, action_space: spaces.Space[Any], *, learn: LearnModule | None = None) -> None:
        if not isinstance(action_space, spaces.Discrete | spaces.Box):
            raise ConfigError(f"ModulePolicy supports Discrete and Box action spaces, not {action_space}")
        self.module, self.action_space = module, action_space
        self._learn = learn

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        """Choose the module's action; a discrete one is sampled, unless `deterministic`.

        With `deterministic` the module is in `eval` mode, so that dropout is off.
        """
        self.module.train(not deterministic)
        output_N = self._outputs(obs_N)
        if isinstance(self.action_space, spaces.Box):
            shaped = output_N.reshape(len(output_N), *self.action_space.shape)
            inside = np.clip(shaped, self.action_space.low, self.action_space.high)
            return Actions(inside.astype(self.action_space.dtype))
        if deterministic or rng is None:
            chosen_N = output_N.argmax(-1)
        else:
            chosen_N = sample_categorical(output_N, rng.random(len(output_N)))
        return Actions(chosen_N + int(self.action_space.start))

    def _outputs(self, obs_N: Any) -> Array:
        parameter = next(self.module.parameters(), None)
        device = torch.device("cpu") if parameter is None else parameter.device
        with limit_threads(self.module), torch.inference_mode():
            return self.module(as_tensors(obs_N, device)).numpy(force=True)  # type: ignore[no-any-return]

    def learn(self, batch: EpisodeBatch, **update_kwargs: Any) -> dict[str, float]:
        """Call the `learn` function that was passed, if any."""
        return {} if self._learn is None else self._learn(self.module, batch, **update_kwargs)

    def state_dict(self) -> dict[str, Any]:
        return {"weights": weights_state(self.module)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.module.load_state_dict(state_dict["weights"])


class SB3Policy:
    """Wraps a Stable-Baselines3 model: `predict` acts and, if there is a replay buffer, `learn` fills it and trains.

    Off-policy models (DQN, SAC, TD3) are trained from their own replay buffer, as their own loop would do: the buffer
    holds actions scaled to (-1, 1), and each step advances schedules, exploration and target network. On-policy models
    learn inside their own loop around an environment, so here they only act.

    The model's schedules (exploration, learning rate) run over `total_steps` steps; without it they keep their initial
    values. Create the model with one environment, which is never stepped.
    """

    def __init__(self, model: Any, *, total_steps: int | None = None) -> None:
        for name in ("predict", "policy"):
            if not hasattr(model, name):
                raise ConfigError(
                    f"SB3Policy wraps a Stable-Baselines3 model, but {type(model).__name__} has no {name}"
                )
        if getattr(model, "n_envs", 1) not in (None, 1):
            raise ConfigError(f"the model has {model.n_envs} environments: SB3Policy needs a model with one")
        self.model, self.total_steps = model, total_steps
        if hasattr(model, "set_logger") and not hasattr(model, "_logger"):
            model.set_logger(import_module("stable_baselines3.common.logger").Logger(None, []))
        if hasattr(model, "exploration_schedule"):
            model.exploration_rate = model.exploration_schedule(1.0)

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        """Return what `predict` chooses. A stochastic model draws from torch and NumPy, seeded from `rng`."""
        if rng is not None and not deterministic and hasattr(self.model, "exploration_rate"):
            self.model.action_space.seed(int(rng.random(1)[0] * 2**32))  # random actions come from the space
        with seeded_from(None if deterministic else rng):
            return Actions(np.asarray(self.model.predict(obs_N, deterministic=deterministic)[0]))

    def learn(
        self, batch: EpisodeBatch, *, repeat: int | None = None, batch_size: int | None = None, **unknown: Any
    ) -> dict[str, float]:
        """Fill the model's replay buffer and make `repeat` gradient steps (default: one per collected step)."""
        check_names(unknown, LEARN_OPTIONS, owner="SB3Policy.learn")
        model = self.model
        if getattr(model, "replay_buffer", None) is None:
            raise ConfigError(
                f"{type(model).__name__} has no replay buffer, so it can act here but not learn: "
                "train it with its own learn(), or use sharpen.rl.PPO"
            )
        self._fill_buffer(batch)
        if getattr(model, "num_timesteps", 1) <= getattr(model, "learning_starts", 0):
            return {}
        model.train(gradient_steps=len(batch) if repeat is None else repeat, batch_size=batch_size or model.batch_size)
        values = getattr(getattr(model, "logger", None), "name_to_value", {})
        return {
            name.removeprefix("train/"): float(value)
            for name, value in values.items()
            if isinstance(value, int | float | np.number)
        }

    def _fill_buffer(self, batch: EpisodeBatch) -> None:
        next_obs_T, done_T = batch.next_obs_T, batch.terminated_T | batch.truncated_T
        action_T = batch.action_T
        if isinstance(getattr(self.model, "action_space", None), spaces.Box):
            action_T = self.model.policy.scale_action(action_T)
        for step in range(len(batch)):
            one = slice(step, step + 1)
            time_limit = {"TimeLimit.truncated": bool(batch.truncated_T[step] and not batch.terminated_T[step])}
            obs, after = rows(batch.obs_T, one), rows(next_obs_T, one)
            self.model.replay_buffer.add(obs, after, action_T[one], batch.reward_T[one], done_T[one], [time_limit])
            self._advance_schedules()

    def _advance_schedules(self) -> None:
        """Do what the model's own loop does after each step."""
        model = self.model
        if not hasattr(model, "_on_step"):
            return
        model.num_timesteps += 1
        if self.total_steps is not None:
            model._update_current_progress_remaining(min(model.num_timesteps, self.total_steps), self.total_steps)
        model._on_step()

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimisers, temperature and counters; the model's replay buffer is not included."""
        temperature = getattr(self.model, "log_ent_coef", None)
        return {
            "weights": weights_state(self.model.policy),
            "optimisers": {name: optimiser_state(each) for name, each in self._optimisers().items()},
            "temperature": None if temperature is None else temperature.detach().clone(),
            "counters": {name: getattr(self.model, name) for name in SB3_COUNTERS if hasattr(self.model, name)},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.model.policy.load_state_dict(state_dict["weights"])
        for name, optimiser in self._optimisers().items():
            load_optimiser_state(optimiser, state_dict["optimisers"][name])
        if state_dict["temperature"] is not None:
            self.model.log_ent_coef.data.copy_(state_dict["temperature"])
        for name, value in state_dict["counters"].items():
            setattr(self.model, name, value)

    def _optimisers(self) -> dict[str, torch.optim.Optimizer]:
        model, policy = self.model, self.model.policy
        found = {
            "policy": getattr(policy, "optimizer", None),
            "actor": getattr(getattr(policy, "actor", None), "optimizer", None),
            "critic": getattr(getattr(policy, "critic", None), "optimizer", None),
            "temperature": getattr(model, "ent_coef_optimizer", None),
        }
        return {name: each for name, each in found.items() if isinstance(each, torch.optim.Optimizer)}


class Tianshou04Policy:
    """Wraps a tianshou 0.4 policy: `forward(batch, state=None)` acts, `update(sample_size, buffer, **kw)` learns.

    Its random draws come from torch and NumPy, which are seeded from `rng` for each call. If tianshou is installed the
    policy gets its `Batch`; otherwise it gets the small one below, which has what such policies use of it. The buffer
    holds the episodes of one collect, in order.
    """

    def __init__(self, policy: Any) -> None:
        if not callable(getattr(policy, "forward", None)):
            raise ConfigError(f"a tianshou policy has forward(batch, state=None), but {type(policy).__name__} does not")
        self.policy = policy
        self._batch_class = _batch_class()

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        """Return what `forward` chooses, in `eval` mode if `deterministic`."""
        if isinstance(self.policy, torch.nn.Module):
            self.policy.train(not deterministic)
        batch = self._batch_class(obs=obs_N, info={})
        with seeded_from(rng), torch.no_grad():
            action = self.policy.forward(batch, state=None)["act"]
            action = action.numpy(force=True) if isinstance(action, torch.Tensor) else np.asarray(action)
            if not deterministic and hasattr(self.policy, "exploration_noise"):
                action = self.policy.exploration_noise(action, batch)
        return Actions(self.policy.map_action(action) if hasattr(self.policy, "map_action") else action)

    def learn(self, batch: EpisodeBatch, **update_kwargs: Any) -> dict[str, float]:
        """Call `update(0, buffer, **update_kwargs)`: the whole collect, in order."""
        if isinstance(self.policy, torch.nn.Module):
            self.policy.train()
        found = self.policy.update(0, EpisodeBuffer(batch, self._batch_class), **update_kwargs) or {}
        return {name: float(np.mean(value)) for name, value in dict(found).items()}

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimiser and schedule (`optim`, `lr_scheduler`), the normaliser of returns, and counters."""
        policy = self.policy
        is_module, optimiser = isinstance(policy, torch.nn.Module), getattr(policy, "optim", None)
        returns = getattr(policy, "ret_rms", None)
        return {
            "weights": weights_state(policy) if is_module else {},
            "optimiser": optimiser_state(optimiser) if isinstance(optimiser, torch.optim.Optimizer) else {},
            "scheduler": scheduler_state(getattr(policy, "lr_scheduler", None)),
            "returns": {name: getattr(returns, name) for name in TIANSHOU_MOMENTS if hasattr(returns, name)},
            "counters": {name: getattr(policy, name) for name in TIANSHOU_COUNTERS if hasattr(policy, name)},
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
        """Yield parts of `size` rows, shuffled if asked; with `merge_last` a small remainder joins the last part."""
        count = len(self)
        order = np.random.permutation(count) if shuffle else np.arange(count)
        for start in range(0, count, size):
            rest = count - start - size
            if merge_last and 0 < rest < size:
                yield self[order[start:]]
                return
            yield self[order[start : start + size]]


class EpisodeBuffer:
    """The episodes of a collect with the methods of a tianshou buffer."""

    def __init__(self, batch: EpisodeBatch, batch_class: Any = Batch) -> None:
        self._last_T = batch.is_last_T
        self._length = len(batch)
        self._batch_class = batch_class
        self._parts = {**batch.as_dict(), "info": {}}

    def __getattr__(self, name: str) -> Any:
        """Return one field of all steps: `buffer.rew`, `buffer.terminated`."""
        parts: dict[str, Any] = self.__dict__.get("_parts", {})
        if name not in parts:
            raise AttributeError(f"the episode buffer has no field {name!r}")
        return parts[name]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._batch_class(**{name: rows(part, index) for name, part in self._parts.items()})

    def sample(self, batch_size: int) -> tuple[Any, Array]:
        """Return random steps and their indices, or all steps in order if `batch_size` is 0, as in tianshou."""
        index = np.arange(self._length) if batch_size == 0 else np.random.choice(self._length, batch_size)
        return self[index], index

    def next(self, index: Array) -> Array:
        """Return the step after each; an episode's last step is followed by itself."""
        return np.where(self._last_T[index], index, index + 1)

    def prev(self, index: Array) -> Array:
        """Return the step before each; an episode's first step is preceded by itself."""
        first = index == 0
        return np.where(first | self._last_T[index - 1], index, index - 1)

    def unfinished_index(self) -> Array:
        """Return an empty array: every episode was played to its end."""
        return np.zeros(0, np.int64)


def _batch_class() -> Any:
    try:
        return import_module("tianshou.data").Batch
    except ImportError:
        return Batch


@contextmanager
def seeded_from(rng: np.random.Generator | None) -> Iterator[None]:
    """Seed the global generators of torch and NumPy from `rng` in this block, and restore them afterwards."""
    if rng is None:
        yield
        return
    number, before = int(rng.random(1)[0] * 2**53), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        np.random.seed(number % 2**32)
        try:
            yield
        finally:
            np.random.set_state(before)
