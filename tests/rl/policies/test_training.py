"""Every policy through the trainer: it learns, and a resumed run ends where one that was never stopped does."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from sharpen.callbacks import save_state
from sharpen.rl import (
    DQN,
    MLP,
    PPO,
    SAC,
    ActionInterpreter,
    Reward,
    Simulator,
    StateInterpreter,
    Trainer,
    TrainingVessel,
)

from .toys import SIGN_OBS, TWO, UNIT, same


class Walk(Simulator[int, tuple[float, float], float]):
    """A point on a line that drifts; the action pushes it, and being near 0 is good. It is cut after six steps."""

    def __init__(self, initial: int) -> None:
        self.place, self.speed, self.steps = np.random.default_rng(initial).uniform(-1, 1), 0.0, 0

    def step(self, action: float) -> None:
        self.place, self.steps = float(np.clip(self.place + 0.3 * action, -2, 2)), self.steps + 1

    def get_state(self) -> tuple[float, float]:
        return self.place, self.steps / 6

    def done(self) -> bool:
        return self.steps >= 6

    def truncated(self) -> bool:
        return True


class See(StateInterpreter[Any, Any]):
    observation_space = spaces.Box(-2.0, 2.0, (2,), np.float32)

    def interpret(self, simulator_state: Any) -> Any:
        return np.array(simulator_state, np.float32)


class Step(ActionInterpreter[Any, Any, float]):
    action_space = TWO

    def interpret(self, simulator_state: Any, action: Any) -> float:
        return 1.0 if action == 1 else -1.0


class Push(ActionInterpreter[Any, Any, float]):
    action_space = UNIT

    def interpret(self, simulator_state: Any, action: Any) -> float:
        return float(action[0])


class Near(Reward[Any]):
    def reward(self, simulator_state: Any) -> float:
        return -abs(float(simulator_state[0]))


def policy_of(kind: str) -> tuple[Any, Any]:
    torch.manual_seed(0)
    network, space = MLP(SIGN_OBS, (16,)), See.observation_space
    if kind == "ppo":
        return PPO(network, space, TWO, 1e-2, discount_factor=0.9, seed=0), Step()
    if kind == "dqn":
        settings: dict[str, Any] = {"learning_starts": 48, "exploration_steps": 300, "target_update_freq": 20}
        return DQN(network, space, TWO, 1e-2, discount_factor=0.9, buffer_size=200, seed=0, **settings), Step()
    small: dict[str, Any] = {"critic_hidden_sizes": (16,), "batch_size": 32, "learning_starts": 48}
    return SAC(network, space, UNIT, 1e-2, discount_factor=0.9, buffer_size=200, seed=0, **small), Push()


def fitted(kind: str, iterations: int, ckpt_path: Path | None = None) -> tuple[Trainer, Any]:
    policy, action = policy_of(kind)
    vessel: TrainingVessel[Any, Any, Any, Any, Any] = TrainingVessel(
        simulator_fn=Walk,
        state_interpreter=See(),
        action_interpreter=action,
        policy=policy,
        reward=Near(),
        train_initial_states=range(50),
        val_initial_states=range(50, 70),
        episode_per_iter=8,
    )
    trainer = Trainer(max_iters=iterations, val_every_n_iters=1, finite_env_type="dummy", concurrency=3, seed=7)
    trainer.fit(vessel, ckpt_path)
    return trainer, policy


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ppo", "dqn", "sac"])
def test_a_policy_learns_through_the_trainer(kind: str) -> None:
    trainer, _ = fitted(kind, 20)
    assert trainer.metrics["val/reward"] > -2.0  # steps at random reach -4


@pytest.mark.parametrize("kind", ["ppo", "dqn", "sac"])
def test_a_resumed_run_ends_with_the_same_numbers(kind: str, tmp_path: Path) -> None:
    straight, wanted = fitted(kind, 6)
    stopped, _ = fitted(kind, 4)
    save_state(tmp_path / "checkpoint", stopped.state_dict())
    resumed, found = fitted(kind, 6, tmp_path / "checkpoint")
    assert resumed.metrics == straight.metrics
    assert same(found.state_dict(), wanted.state_dict())


# -- long episodes -----------------------------------------------------------------------------------

ACROBOT = gym.make("Acrobot-v1")  # 500 steps, until the policy has learned to swing up in about 90


class Acrobot(Simulator[int, Any, int]):
    def __init__(self, initial: int) -> None:
        self.acrobot = gym.make("Acrobot-v1")
        self.obs, self.reward, self.ends = self.acrobot.reset(seed=initial)[0], 0.0, [False, False]

    def step(self, action: int) -> None:
        self.obs, reward, *self.ends, _ = self.acrobot.step(action)
        self.reward = float(reward)

    def get_state(self) -> Any:
        return self.obs, self.reward

    def done(self) -> bool:
        return any(self.ends)

    def truncated(self) -> bool:
        return not self.ends[0]


class Observed(StateInterpreter[Any, Any]):
    observation_space = ACROBOT.observation_space

    def interpret(self, simulator_state: Any) -> Any:
        return simulator_state[0]


class Torque(ActionInterpreter[Any, Any, Any]):
    action_space = ACROBOT.action_space

    def interpret(self, simulator_state: Any, action: Any) -> Any:
        return action


class Earned(Reward[Any]):
    def reward(self, simulator_state: Any) -> float:
        return float(simulator_state[1])


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ppo_with_a_budget_of_steps_learns_where_episodes_are_long(seed: int) -> None:
    torch.manual_seed(seed)
    space = Observed.observation_space
    policy = PPO(
        MLP(space, (64, 64)), space, Torque.action_space, lr=1e-3, critic_network=MLP(space, (64, 64)), seed=seed
    )
    vessel: Any = TrainingVessel(
        simulator_fn=Acrobot,
        state_interpreter=Observed(),
        action_interpreter=Torque(),
        policy=policy,
        reward=Earned(),
        train_initial_states=range(10_000),
        test_initial_states=range(20_000, 20_010),
        step_per_iter=1024,
        update_kwargs={"repeat": 10, "batch_size": 64},
    )
    trainer = Trainer(max_steps=12_000, finite_env_type="dummy", concurrency=8, seed=seed)
    trainer.fit(vessel)
    trainer.test(vessel)
    assert trainer.metrics["reward"] > -200
