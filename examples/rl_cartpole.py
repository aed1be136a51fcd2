"""Balance a pole: a simulator of one's own, interpreters, a reward, and PPO that learns to balance it.

    python examples/rl_cartpole.py

It stops when 100 episodes that were not trained on last 475 steps on average, of 500 at most.
"""

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from sharpen.rl import (
    MLP,
    PPO,
    ActionInterpreter,
    Callback,
    Reward,
    Simulator,
    StateInterpreter,
    Trainer,
    TrainingVessel,
)

State = tuple[float, float, float, float]  # position and speed of the cart, angle and angular speed of the pole


class CartPole(Simulator[int, State, float]):
    """A cart on a track with a pole on it; the initial state is a seed."""

    def __init__(self, initial: int) -> None:
        start = np.random.default_rng(initial).uniform(-0.05, 0.05, 4)
        self.state: State = tuple(start.tolist())
        self.steps = 0

    def step(self, action: float) -> None:
        x, speed, angle, spin = self.state
        push = (action + 0.05 * spin**2 * math.sin(angle)) / 1.1
        turn = (9.8 * math.sin(angle) - math.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        pull = push - 0.05 * turn * math.cos(angle) / 1.1
        self.state = (x + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn)
        self.steps += 1

    def get_state(self) -> State:
        return self.state

    def done(self) -> bool:
        return abs(self.state[0]) > 2.4 or abs(self.state[2]) > 12 * math.pi / 180 or self.truncated()

    def truncated(self) -> bool:
        return self.steps >= 500  # it could have gone on


class See(StateInterpreter[State, Any]):
    """The policy sees the whole state."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def interpret(self, simulator_state: State) -> Any:
        return np.array(simulator_state, np.float32)


class Push(ActionInterpreter[State, Any, float]):
    """Left or right, with a force of 10."""

    action_space = spaces.Discrete(2)

    def interpret(self, simulator_state: State, action: Any) -> float:
        return 10.0 if action == 1 else -10.0


class Upright(Reward[State]):
    """One for every step."""

    def reward(self, simulator_state: State) -> float:
        return 1.0


class StopWhenSolved(Callback):
    """Looks at each validation."""

    def on_validate_end(self, trainer: Any, vessel: Any) -> None:
        print(f"iteration {trainer.current_iter + 1}: {trainer.metrics['val/reward']:.0f} steps", flush=True)
        trainer.should_stop = trainer.metrics["val/reward"] >= 475


if __name__ == "__main__":
    torch.manual_seed(0)
    see, push = See(), Push()
    policy = PPO(
        MLP(see.observation_space),
        see.observation_space,
        push.action_space,
        lr=3e-3,
        discount_factor=0.98,
        gae_lambda=0.9,
        max_grad_norm=0.5,
        reward_normalization=False,
        eps_clip=0.2,
        value_clip=False,
        vf_coef=0.5,
        ent_coef=0.0,
        critic_network=MLP(see.observation_space),
        seed=0,
    )
    vessel: TrainingVessel[Any, Any, Any, Any, Any] = TrainingVessel(
        simulator_fn=CartPole,
        state_interpreter=see,
        action_interpreter=push,
        policy=policy,
        reward=Upright(),
        train_initial_states=range(1000),
        val_initial_states=range(1000, 1100),
        episode_per_iter=8,
        update_kwargs={"repeat": 5},
    )
    trainer = Trainer(
        max_iters=100,
        val_every_n_iters=5,
        callbacks=[StopWhenSolved()],
        finite_env_type="dummy",
        concurrency=8,
        seed=0,
    )
    trainer.fit(vessel)
    print(f"balanced for {trainer.metrics['val/reward']:.0f} steps after {trainer.current_iter * 8} episodes")
