"""Any gymnasium environment as simulator, interpreters and reward, for the benchmarks of learning."""

from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from sharpen.rl import ActionInterpreter, Collector, EpisodeBatch, Reward, Simulator, StateInterpreter, TrainingVessel


class Situation(NamedTuple):
    obs: np.ndarray[Any, Any]
    reward: float


class GymEpisode(Simulator[int, Situation, Any]):
    """One episode; the initial state is a seed."""

    def __init__(self, initial: int, env_id: str) -> None:
        self._env = gym.make(env_id)
        self._situation = Situation(self._env.reset(seed=initial)[0], 0.0)
        self._terminated = self._truncated = False

    def step(self, action: Any) -> None:
        obs, reward, self._terminated, self._truncated, _ = self._env.step(action)
        self._situation = Situation(obs, float(reward))

    def get_state(self) -> Situation:
        return self._situation

    def done(self) -> bool:
        return self._terminated or self._truncated

    def truncated(self) -> bool:
        return self._truncated and not self._terminated


class Seen(StateInterpreter[Situation, Any]):
    """The observation as it is."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self._space = space

    @property
    def observation_space(self) -> gym.Space[Any]:
        return self._space

    def interpret(self, simulator_state: Situation) -> Any:
        return simulator_state.obs


class Done(ActionInterpreter[Situation, Any, Any]):
    """The action as it is."""

    def __init__(self, space: gym.Space[Any]) -> None:
        self._space = space

    @property
    def action_space(self) -> gym.Space[Any]:
        return self._space

    def interpret(self, simulator_state: Situation, action: Any) -> Any:
        return action


class Given(Reward[Situation]):
    """The reward as it is."""

    def reward(self, simulator_state: Situation) -> float:
        return simulator_state.reward


class GymVessel(TrainingVessel[int, Situation, Any, Any, Any]):
    """Keeps the episodes of the last collect, for the benchmark to look at."""

    last_batch: EpisodeBatch

    def train(self, vector_env: Any) -> dict[str, Any]:
        self.last_batch = Collector(self.policy, vector_env).collect(self.episode_per_iter)
        return self.policy.learn(self.last_batch, **self.update_kwargs)


def gym_vessel(env_id: str, policy: Any, *, episode_per_iter: int, **update_kwargs: Any) -> GymVessel:
    return GymVessel(
        simulator_fn=partial(GymEpisode, env_id=env_id),
        state_interpreter=Seen(policy.obs_space),
        action_interpreter=Done(policy.action_space),
        policy=policy,
        reward=Given(),
        train_initial_states=range(10_000),
        val_initial_states=range(20_000, 20_020),
        test_initial_states=range(10_000, 10_100),
        episode_per_iter=episode_per_iter,
        update_kwargs=update_kwargs,
    )
