"""Small simulators and policies that the tests share."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from sharpen.rl import ActionInterpreter, Actions, EpisodeBatch, Reward, Simulator, StateInterpreter, VectorSimulator


class Countdown(Simulator[int, float, int]):
    """An episode of as many steps as its initial state says; every third is cut short instead of over."""

    def __init__(self, initial: int) -> None:
        self.initial, self.left = initial, max(initial, 1)
        self.luck = float(self.rng.random())

    def step(self, action: int) -> None:
        self.left -= 1

    def get_state(self) -> float:
        return float(self.left)

    def done(self) -> bool:
        return self.left == 0

    def truncated(self) -> bool:
        return self.initial % 3 == 0


class Left(StateInterpreter[float, Any]):
    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def interpret(self, simulator_state: float) -> Any:
        assert self.env is not None
        return np.array([simulator_state, self.env.simulator.luck], np.float32)  # type: ignore[attr-defined]


class Two(ActionInterpreter[float, Any, int]):
    @property
    def action_space(self) -> spaces.Discrete:
        return spaces.Discrete(2)

    def interpret(self, simulator_state: float, action: Any) -> int:
        return int(action)


class InitialAsReward(Reward[float]):
    """Logs which episode it belongs to."""

    def reward(self, simulator_state: float) -> float:
        assert self.env is not None
        if simulator_state == 0:
            self.log("initial", float(self.env.status["initial_state"]))
        return 1.0


# -- a task that can be learned ----------------------------------------------------------------------


class Guess(Simulator[int, Any, int]):
    """Say on which side of zero a number is; eight numbers an episode."""

    def __init__(self, initial: int) -> None:
        self.steps, self.gain = 0, 0.0
        self.x = float(self.rng.uniform(-1, 1))

    def step(self, action: int) -> None:
        self.gain = 1.0 if (self.x > 0) == bool(action) else 0.0
        self.steps += 1
        self.x = float(self.rng.uniform(-1, 1))

    def get_state(self) -> Any:
        return self

    def done(self) -> bool:
        return self.steps == 8


class GuessState(StateInterpreter[Any, Any]):
    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(-1, 1, (2,), np.float32)

    def interpret(self, simulator_state: Any) -> Any:
        return np.array([simulator_state.x, 1.0], np.float32)


class GuessReward(Reward[Any]):
    def reward(self, simulator_state: Any) -> float:
        return float(simulator_state.gain)


class SoftmaxPolicy:
    """A linear policy with REINFORCE in NumPy; it has momentum and a shuffle of the global generator to remember."""

    def __init__(self, n_obs: int = 2, n_actions: int = 2, lr: float = 0.5) -> None:
        self.weights = np.zeros((n_obs, n_actions))
        self.momentum = np.zeros_like(self.weights)
        self.lr, self.seen = lr, 0

    def _probabilities(self, obs_N: Any) -> Any:
        logits_N_A = obs_N @ self.weights
        exp_N_A = np.exp(logits_N_A - logits_N_A.max(1, keepdims=True))
        return exp_N_A / exp_N_A.sum(1, keepdims=True)

    def act(self, obs_N: Any, *, rng: np.random.Generator | None, deterministic: bool) -> Actions:
        p_N_A = self._probabilities(obs_N)
        if deterministic:
            return Actions(p_N_A.argmax(1))
        assert rng is not None
        u_N = rng.random(len(obs_N))
        action_N = (u_N[:, None] > np.cumsum(p_N_A, 1)[:, :-1]).sum(1)
        return Actions(action_N, {"p": p_N_A[np.arange(len(action_N)), action_N]})

    def learn(self, batch: EpisodeBatch, **update_kwargs: Any) -> dict[str, float]:
        order = np.random.permutation(len(batch))  # the global generator, whose state a checkpoint must hold
        self.seen += batch.n_episodes
        advantage_T = (batch.reward_T - batch.reward_T.mean())[order]
        obs_T, action_T = batch.obs_T[order], batch.action_T[order]
        grad_T_A = -self._probabilities(obs_T)
        grad_T_A[np.arange(len(order)), action_T] += 1
        gradient = obs_T.T @ (grad_T_A * advantage_T[:, None]) / len(order)
        self.momentum = 0.9 * self.momentum + gradient
        self.weights = self.weights + self.lr * self.momentum
        return {"loss": float(-(np.log(batch.extras["p"]) * batch.reward_T).mean())}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights.copy(), "momentum": self.momentum.copy(), "seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.weights, self.momentum = state_dict["weights"].copy(), state_dict["momentum"].copy()
        self.seen = state_dict["seen"]


class Zeros:
    """Always action 0; keeps what it has seen."""

    def __init__(self) -> None:
        self.batches: list[EpisodeBatch] = []

    def act(self, obs_N: Any, *, rng: np.random.Generator | None, deterministic: bool) -> Actions:
        first = obs_N if isinstance(obs_N, np.ndarray) else next(iter(obs_N.values()))
        return Actions(np.zeros(len(first), np.int64))

    def learn(self, batch: EpisodeBatch, **update_kwargs: Any) -> dict[str, float]:
        self.batches.append(batch)
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        return


# -- many at once ------------------------------------------------------------------------------------


class VectorCartPole(VectorSimulator[int]):
    """CartPole for all slots at once."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.state, self.steps = np.zeros((4, n)), np.zeros(n, np.int64)

    def reset(self, slots_M: Any, initial_states: Sequence[int], rng: np.random.Generator) -> Any:
        self.state[:, slots_M] = rng.uniform(-0.05, 0.05, (len(slots_M), 4)).T
        self.steps[slots_M] = 0
        return self.state[:, slots_M].T

    def step(self, slots_N: Any, action_N: Any) -> tuple[Any, Any, Any, Any]:
        x, v, angle, spin = self.state[:, slots_N]
        force = np.where(np.asarray(action_N) == 1, 10.0, -10.0)
        cos, sin = np.cos(angle), np.sin(angle)
        push = (force + 0.05 * spin**2 * sin) / 1.1
        twist = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        speed = push - 0.05 * twist * cos / 1.1
        new = np.stack([x + 0.02 * v, v + 0.02 * speed, angle + 0.02 * spin, spin + 0.02 * twist])
        self.state[:, slots_N] = new
        self.steps[slots_N] += 1
        fell = (np.abs(new[0]) > 2.4) | (np.abs(new[2]) > 12 * math.pi / 180)
        return new.T, np.ones(len(slots_N)), fell, ~fell & (self.steps[slots_N] >= 500)
