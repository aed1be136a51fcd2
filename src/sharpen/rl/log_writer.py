"""`LogWriter`: what becomes of the logs of episodes, in the trainer's process; and `LogBuffer`, which makes metrics."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..loggers import LogLevel, Metrics
from .log_collector import Logs

Contents: TypeAlias = dict[str, Any]
"""What a step logged, by name, at the levels that the writer wants."""

STEPWISE = ("log_step", "on_env_step", "on_env_reset")


class LogWriter:
    """Counts steps and episodes and hands their logs to `log_step` and `log_episode`, which subclasses override.

    `episode_count` and `step_count` count the current collection, `global_episode` and `global_step` all of them.
    A writer that overrides `log_step` (or `on_env_step`, `on_env_reset`) is called at every step, which has its price;
    all others hear of an episode once, at its end. Of a vector simulator, all hear of whole episodes only.
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
        """Whether each step must be told at once."""
        return any(getattr(type(self), name) is not getattr(LogWriter, name) for name in STEPWISE)

    @property
    def active_env_ids(self) -> set[int]:
        return set(self.episode_lengths)

    def clear(self) -> None:
        """Begin a collection."""
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
        """One value for an episode's steps: rewards are summed, other floats averaged, else the first one counts."""
        if len(array) == 0:
            raise ValueError("there is nothing to aggregate: the sequence is empty")
        if name == "reward":
            return np.sum(array)
        if isinstance(array[0], float | np.floating):
            return np.mean(array)
        return array[0]

    # -- overridable ---------------------------------------------------------------------------------

    def log_episode(self, length: int, rewards: list[float], contents: list[Contents]) -> None:
        """An episode is over: its rewards, and what each of its steps logged."""

    def log_step(self, reward: float, contents: Contents) -> None:
        """A step was made."""

    def on_env_all_ready(self) -> None:
        """A collection begins."""
        self.clear()

    def on_env_all_done(self) -> None:
        """A collection is over."""

    def on_env_reset(self, env_id: int, obs: Any) -> None:
        """An episode begins."""
        self._begin(env_id)

    def _begin(self, env_id: int) -> None:
        self.episode_lengths[env_id] = 0
        self.episode_rewards[env_id] = []
        self.episode_logs[env_id] = []

    def on_env_step(self, env_id: int, obs: Any, rew: float, done: bool, info: Mapping[str, Any]) -> None:
        """A step of one environment, told at once."""
        if env_id not in self.episode_lengths:
            self._begin(env_id)  # an override of on_env_reset need not call its base
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
        """A whole episode of one environment, told at its end: its rewards, and the logs of some of its steps."""
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
        """Many episodes of a vector simulator, which keeps only their sums."""
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
        """One value per name for an episode; a step that did not log a name does not count for it."""
        values: dict[str, list[Any]] = {}
        for step in contents:
            for name, value in step.items():
                values.setdefault(name, []).append(value)
        return {name: self.aggregation(each, name) for name, each in values.items()}


class LogBuffer(LogWriter):
    """Keeps the metrics of the last episode and the averages of the collection, and tells a callback of both.

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
        """All at once: thousands of episodes end in a second there."""
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
        """The metrics of the last episode."""
        if self._latest is None:
            raise ValueError("no episode has finished yet, so there are no metrics of the last one")
        return dict(self._latest)

    def collect_metrics(self) -> dict[str, float]:
        """The averages over the episodes of the collection."""
        return self._means.means()


def is_number(value: Any) -> bool:
    """Whether a metric can be made of it."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
