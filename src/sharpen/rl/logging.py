"""Logs of episodes: `LogCollector` gathers them beside the environment, a `LogWriter` receives them in the trainer.

A step logs values by name, each with a level; what is below the level that any writer wants never leaves its process.
A writer gets an episode when it ends, or step by step if it asks for that. `LogBuffer` turns them into metrics.
"""

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..loggers import LogLevel, Metrics

Logs: TypeAlias = dict[str, tuple[int, Any]]
"""What a step logged: the level and the value by name."""
Contents: TypeAlias = dict[str, Any]
"""What a step logged, by name, at the levels that the writer wants."""


class LogCollector:
    """Holds what is logged in the current step. Values below `min_loglevel` are dropped."""

    def __init__(self, min_loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        self._min_loglevel = int(min_loglevel)
        self._logged: Logs = {}

    @property
    def min_loglevel(self) -> int:
        return self._min_loglevel

    def set_min_loglevel(self, level: int | LogLevel) -> None:
        self._min_loglevel = int(level)

    def reset(self) -> None:
        """Forget the last step; the next one begins."""
        self._logged = {}

    def _put(self, name: str, value: Any, loglevel: int) -> None:
        if loglevel < self._min_loglevel:
            return
        if name in self._logged:
            raise ValueError(f"{name!r} was logged twice in one step: use another name, or call reset() between steps")
        self._logged[name] = (int(loglevel), value)

    def add_string(self, name: str, string: str, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        """Log a text."""
        if not isinstance(string, str):
            raise TypeError(f"{name!r} must be a str, not {type(string).__name__}: {string!r}")
        self._put(name, string, loglevel)

    def add_scalar(self, name: str, scalar: Any, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        """Log a number, or an array or tensor of one element, as a float; an episode has the mean of its steps."""
        self._put(name, scalar if type(scalar) is float else _number(name, scalar), loglevel)

    def add_array(self, name: str, array: Any, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        """Log an array, or a `DataFrame` or `Series` of pandas."""
        if not isinstance(array, np.ndarray) and type(array).__name__ not in ("DataFrame", "Series"):
            raise TypeError(f"{name!r} must be an array, not {type(array).__name__}: {array!r}")
        self._put(name, array, loglevel)

    def add_any(self, name: str, obj: Any, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        """Log any value that can be pickled."""
        self._put(name, obj, loglevel)

    def add(self, name: str, value: Any, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        """Log a value as a scalar, a string or anything else, depending on its type."""
        if isinstance(value, numbers.Real) or getattr(value, "ndim", None) == 0:
            self.add_scalar(name, value, loglevel)
        elif isinstance(value, str):
            self.add_string(name, value, loglevel)
        else:
            self.add_any(name, value, loglevel)

    def logs(self) -> Logs:
        """Return what the current step has logged so far."""
        return self._logged


def _number(name: str, scalar: Any) -> float:
    if hasattr(scalar, "item") and getattr(scalar, "ndim", 0) <= 1:  # numpy or torch
        try:
            scalar = scalar.item()
        except (ValueError, RuntimeError):
            raise TypeError(f"{name!r} must be a number, not an array of shape {tuple(scalar.shape)}") from None
    if not isinstance(scalar, numbers.Real):
        raise TypeError(f"{name!r} must be a number, not {type(scalar).__name__}: {scalar!r}")
    return float(scalar)


class LogWriter:
    """Counts steps and episodes and passes their logs to `log_step` and `log_episode`, which subclasses override.

    `episode_count` and `step_count` count the current collection, `global_episode` and `global_step` all of them.
    A writer that overrides `log_step` (or `on_env_step`, `on_env_reset`) is called at every step, which is slow; any
    other is called once per episode, at its end. A vector simulator reports whole episodes only.
    """

    episode_count: int
    step_count: int
    global_step: int
    global_episode: int

    def __init__(self, loglevel: int | LogLevel = LogLevel.PERIODIC) -> None:
        self.loglevel = loglevel
        self.global_step = self.global_episode = 0
        self.episode_lengths: dict[int, int] = {}
        self.episode_rewards: dict[int, list[float]] = {}
        self.episode_logs: dict[int, list[Contents]] = {}
        self.clear()

    @property
    def wants_steps(self) -> bool:
        """Whether this writer must be called at every step."""
        names = ("log_step", "on_env_step", "on_env_reset")
        return any(getattr(type(self), name) is not getattr(LogWriter, name) for name in names)

    @property
    def active_env_ids(self) -> set[int]:
        return set(self.episode_lengths)

    def clear(self) -> None:
        """Reset the counts of the collection."""
        self.episode_count = self.step_count = 0
        self.episode_lengths.clear()
        self.episode_rewards.clear()
        self.episode_logs.clear()

    def state_dict(self) -> dict[str, Any]:
        return {
            "episode_count": self.episode_count,
            "step_count": self.step_count,
            "global_step": self.global_step,
            "global_episode": self.global_episode,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in ("episode_count", "step_count", "global_step", "global_episode"):
            setattr(self, name, int(state_dict[name]))

    @staticmethod
    def aggregation(array: Sequence[Any], name: str | None = None) -> Any:
        """Return one value for an episode: the sum of rewards, the mean of other floats, the first of anything else."""
        if len(array) == 0:
            raise ValueError("cannot aggregate an empty sequence")
        if name == "reward":
            return np.sum(array)
        if isinstance(array[0], float | np.floating):
            return np.mean(array)
        return array[0]

    # -- overridable ---------------------------------------------------------------------------------

    def log_episode(self, length: int, rewards: list[float], contents: list[Contents]) -> None:
        """Handle a finished episode: its rewards, and what each of its steps logged."""

    def log_step(self, reward: float, contents: Contents) -> None:
        """Handle one step."""

    def on_env_all_ready(self) -> None:
        """Handle the start of a collection."""
        self.clear()

    def on_env_all_done(self) -> None:
        """Handle the end of a collection."""

    def on_env_reset(self, env_id: int, obs: Any) -> None:
        """Handle the start of an episode."""
        self._begin(env_id)

    def _begin(self, env_id: int) -> None:
        self.episode_lengths[env_id] = 0
        self.episode_rewards[env_id] = []
        self.episode_logs[env_id] = []

    def on_env_step(self, env_id: int, obs: Any, rew: float, done: bool, info: Mapping[str, Any]) -> None:
        """Handle a step of one environment; called only if `wants_steps`."""
        if env_id not in self.episode_lengths:
            self._begin(env_id)  # an override of on_env_reset may not have called its base
        contents = self._wanted(info.get("log") or {})
        self._count(env_id, steps=1)
        self.episode_rewards[env_id].append(rew)
        self.episode_logs[env_id].append(contents)
        self.log_step(rew, contents)
        if done:
            self._count_episode()
            length = self.episode_lengths.pop(env_id)
            self.log_episode(length, self.episode_rewards.pop(env_id), self.episode_logs.pop(env_id))

    def on_env_episode(self, env_id: int, rewards: list[float], logs: Sequence[tuple[int, Logs]]) -> None:
        """Handle a finished episode of one environment: its rewards, and the logs of some of its steps."""
        shows_reward = self.loglevel <= LogLevel.PERIODIC
        contents: list[Contents] = [{"reward": reward} if shows_reward else {} for reward in rewards]
        for step, step_logs in logs:
            contents[step] = self._wanted(step_logs)
        self.step_count += len(rewards)
        self.global_step += len(rewards)
        self.episode_lengths.pop(env_id, None)
        self._count_episode()
        self.log_episode(len(rewards), rewards, contents)

    def on_env_episodes(self, returns_E: Sequence[float], lengths_E: Sequence[int]) -> None:
        """Handle finished episodes of a vector simulator, which keeps only their returns and lengths."""
        for total, length in zip(returns_E, lengths_E, strict=True):
            self.step_count += length
            self.global_step += length
            self._count_episode()
            shown = self.loglevel <= LogLevel.PERIODIC
            self.log_episode(length, [total], [{"reward": total, "steps_per_episode": length} if shown else {}])

    # -- counting ------------------------------------------------------------------------------------

    def _wanted(self, logs: Logs) -> Contents:
        least = self.loglevel
        return {name: value for name, (level, value) in logs.items() if level >= least}

    def _count(self, env_id: int, *, steps: int) -> None:
        self.episode_lengths[env_id] += steps
        self.step_count += steps
        self.global_step += steps

    def _count_episode(self) -> None:
        self.episode_count += 1
        self.global_episode += 1

    def episode_wise(self, contents: Sequence[Contents]) -> Contents:
        """Return one value per name for an episode; only the steps that logged a name count for it."""
        values: dict[str, list[Any]] = {}
        for step in contents:
            for name, value in step.items():
                values.setdefault(name, []).append(value)
        return {name: self.aggregation(each, name) for name, each in values.items()}


class LogBuffer(LogWriter):
    """Keeps the metrics of the last episode and the averages of the collection, and calls `callback` for both.

    `callback(on_episode, on_collect, log_buffer)` is called after each episode and after each collection. An average
    counts only the episodes that logged the metric.
    """

    def __init__(
        self, callback: Callable[[bool, bool, "LogBuffer"], None], loglevel: int | LogLevel = LogLevel.PERIODIC
    ) -> None:
        self._means = Metrics()
        self._latest: dict[str, float] | None = None
        super().__init__(loglevel)
        self.callback = callback

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "sums": self._means.state_dict(), "latest_metrics": self._latest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._means.load_state_dict(state_dict["sums"])
        self._latest = state_dict["latest_metrics"]

    def clear(self) -> None:
        super().clear()
        self._means.clear()
        self._latest = None

    def log_episode(self, length: int, rewards: list[float], contents: list[Contents]) -> None:
        numbers = {name: value for name, value in self.episode_wise(contents).items() if is_number(value)}
        self._latest = {name: float(value) for name, value in numbers.items()}
        self._means.add_all(self._latest)
        self.callback(True, False, self)

    def on_env_episodes(self, returns_E: Sequence[float], lengths_E: Sequence[int]) -> None:
        """Count all episodes at once: thousands of them may end in a second."""
        if not len(returns_E):
            return
        self.episode_count += len(returns_E)
        self.global_episode += len(returns_E)
        steps = int(np.sum(lengths_E))
        self.step_count += steps
        self.global_step += steps
        if self.loglevel > LogLevel.PERIODIC:
            self._latest = {}
        else:
            self._latest = {"reward": float(returns_E[-1]), "steps_per_episode": float(lengths_E[-1])}
            means = {"reward": float(np.mean(returns_E)), "steps_per_episode": float(np.mean(lengths_E))}
            self._means.add_all(means, count=len(returns_E))
        self.callback(True, False, self)

    def on_env_all_done(self) -> None:
        self.callback(False, True, self)

    def episode_metrics(self) -> dict[str, float]:
        """Return the metrics of the last episode."""
        if self._latest is None:
            raise ValueError("no episode has finished yet, so there are no episode metrics")
        return dict(self._latest)

    def collect_metrics(self) -> dict[str, float]:
        """Return the averages over the episodes of the collection."""
        return self._means.means()


def is_number(value: Any) -> bool:
    """Return whether a value can be a metric."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
