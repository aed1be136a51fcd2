"""Steps a second of one kind of vector environment; one JSON line. Run by `vector_envs.py`.

    python benchmarks/vector_envs_measures.py dummy --package sharpen
    python benchmarks/vector_envs_measures.py sync --package gymnasium

Each kind steps 8 CartPoles with constant actions, without a policy, and begins the episodes that are due, in the way
that its own collector does. Ours and Qlib's are written as simulator, interpreters and reward; gymnasium's is a bare
environment.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np

N = 8


class CartPole:
    """The physics, in plain floats."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def reset(self) -> Any:
        self.x, self.v, self.angle, self.spin = self.rng.uniform(-0.05, 0.05, 4).tolist()
        self.steps = 0
        return np.array((self.x, self.v, self.angle, self.spin), np.float32)

    def step(self, action: int) -> tuple[Any, bool, bool]:
        cos, sin = math.cos(self.angle), math.sin(self.angle)
        push = ((10.0 if action == 1 else -10.0) + 0.05 * self.spin**2 * sin) / 1.1
        twist = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * cos * cos / 1.1))
        self.x += 0.02 * self.v
        self.v += 0.02 * (push - 0.05 * twist * cos / 1.1)
        self.angle += 0.02 * self.spin
        self.spin += 0.02 * twist
        self.steps += 1
        obs = np.array((self.x, self.v, self.angle, self.spin), np.float32)
        return obs, not (-2.4 < self.x < 2.4 and -0.2095 < self.angle < 0.2095), self.steps >= 500


def rate(step_once: Callable[[], int], seconds: float) -> float:
    """Steps a second: the median of three windows."""
    for _ in range(50):
        step_once()
    rates = []
    for _ in range(3):
        began, steps = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < seconds:
            for _ in range(20):
                steps += step_once()
        rates.append(steps / passed)
    return statistics.median(rates)


# -- simulator, interpreters, reward: ours and Qlib's --------------------------------------------------


def parts(rl: Any, spaces: Any) -> tuple[Any, Any, Any, Any]:
    """The same classes over the bases of either package."""

    class Sim(rl.Simulator):  # type: ignore[misc]
        def __init__(self, initial: int) -> None:
            self.core, self.reward, self.is_done, self.is_cut = CartPole(int(initial)), 0.0, False, False
            self.obs = self.core.reset()

        def step(self, action: int) -> None:
            self.obs, terminated, self.is_cut = self.core.step(action)
            self.reward, self.is_done = 1.0, terminated or self.is_cut

        def get_state(self) -> Any:
            return self.obs, self.reward

        def done(self) -> bool:
            return self.is_done

        def truncated(self) -> bool:
            return self.is_cut

    class State(rl.StateInterpreter):  # type: ignore[misc]
        observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)

        def interpret(self, state: Any) -> Any:
            return state[0]

    class Action(rl.ActionInterpreter):  # type: ignore[misc]
        action_space = spaces.Discrete(2)

        def interpret(self, state: Any, action: Any) -> Any:
            return action

    class Gain(rl.Reward):  # type: ignore[misc]
        def reward(self, state: Any) -> Any:
            return state[1]

    return Sim, State, Action, Gain


def seeds() -> Iterator[int]:
    return (number % 1000 for number in count())


def sharpen_rate(kind: str, seconds: float, validate: str) -> float:
    from gymnasium import spaces

    from sharpen import rl

    sim, state, action, gain = parts(rl, spaces)
    given = seeds()

    def factory() -> Any:
        return rl.EnvWrapper(sim, state(), action(), given, gain(), validate=validate)  # type: ignore[arg-type]

    with rl.vectorize_env(factory, kind, N, []) as venv:  # type: ignore[arg-type]
        venv.open_collection(each_step=False)
        return rate(rounds(venv), seconds)


def rounds(venv: Any) -> Callable[[], int]:
    """What our collector does: one round steps all running episodes and begins others; the steps that were made."""
    venv.round(np.zeros(0, np.int64), None)
    constant = np.ones(len(venv), np.int64)

    def step_once() -> int:
        ids = venv.running()
        venv.round(ids, constant[: len(ids)])
        return len(ids)

    return step_once


def sharpen_collector_rate(kind: str, seconds: float) -> float:
    """The way of training: whole collects with a policy that does nothing, steps kept."""
    from gymnasium import spaces

    from sharpen import rl

    class Ones:
        steps = 0

        def act(self, obs_N: Any, *, rng: Any, deterministic: bool) -> rl.Actions:
            self.steps += len(obs_N)
            return rl.Actions(np.ones(len(obs_N), np.int64))

    sim, state, action, gain = parts(rl, spaces)
    given, policy = seeds(), Ones()
    logger = rl.LogBuffer(lambda on_episode, on_collect, buffer: None)
    with rl.vectorize_env(lambda: rl.EnvWrapper(sim, state(), action(), given, gain()), kind, N, logger) as venv:  # type: ignore[arg-type]
        collector = rl.Collector(policy, venv)
        collector.collect(100)
        rates = []
        for _ in range(3):
            policy.steps, began = 0, time.perf_counter()
            while (passed := time.perf_counter() - began) < seconds:
                venv.bind(given)
                collector.collect(200)
            rates.append(policy.steps / passed)
    return statistics.median(rates)


def qlib_rate(kind: str, seconds: float) -> float:
    import logging
    import types

    logging.disable(logging.INFO)
    from gym import spaces  # type: ignore[import-not-found]
    from qlib.rl.interpreter import ActionInterpreter, StateInterpreter  # type: ignore[import-not-found]
    from qlib.rl.reward import Reward  # type: ignore[import-not-found]
    from qlib.rl.simulator import Simulator  # type: ignore[import-not-found]
    from qlib.rl.utils import DataQueue, EnvWrapper, LogCollector, vectorize_env  # type: ignore[import-not-found]

    bases = types.SimpleNamespace(
        Simulator=Simulator, StateInterpreter=StateInterpreter, ActionInterpreter=ActionInterpreter, Reward=Reward
    )
    sim, state, action, gain = parts(bases, spaces)
    action_N, ids = np.ones(N, np.int64), np.arange(N)
    with DataQueue(list(range(1000)), repeat=-1, queue_maxsize=64) as queue:

        def factory() -> Any:
            return EnvWrapper(sim, state(), action(), queue, gain(), logger=LogCollector())

        venv = vectorize_env(factory, kind, N, [])
        with venv.collector_guard():
            venv.reset()

            def step_once() -> int:
                _, _, done, _ = venv.step(action_N)
                if done.any():
                    venv.reset(ids[done])
                return N

            value = rate(step_once, seconds)
        venv.close()
    return value


# -- a bare environment: gymnasium's -------------------------------------------------------------------


def gymnasium_rate(kind: str, seconds: float) -> float:
    import gymnasium as gym

    class Bare(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def __init__(self) -> None:
            self.core = CartPole(0)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
            return self.core.reset(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            obs, terminated, truncated = self.core.step(action)
            return obs, 1.0, terminated, truncated, {}

    factories: Any = [Bare] * N
    venv: Any
    if kind == "sync":
        venv = gym.vector.SyncVectorEnv(factories)
    else:
        venv = gym.vector.AsyncVectorEnv(factories, shared_memory=kind == "async-shm")
    venv.reset(seed=0)
    action_N = np.ones(N, np.int64)

    begins_N = np.zeros(N, bool)

    def step_once() -> int:
        nonlocal begins_N
        steps = N - int(begins_N.sum())  # after an episode's end, a step of it only begins the next one
        _, _, terminated_N, truncated_N, _ = venv.step(action_N)
        begins_N = (terminated_N | truncated_N) & ~begins_N
        return steps

    value = rate(step_once, seconds)
    venv.close()
    return value


# -- many at once ------------------------------------------------------------------------------------


def vector_rate(n: int, seconds: float) -> float:
    from gymnasium import spaces

    from sharpen import rl

    class ManyCartPoles(rl.VectorSimulator[int]):
        observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
        action_space = spaces.Discrete(2)

        def __init__(self, n: int) -> None:
            super().__init__(n)
            self.state, self.steps = np.zeros((4, n)), np.zeros(n, np.int64)

        def reset(self, slots_M: Any, initial_states: Any, rng: np.random.Generator) -> Any:
            self.state[:, slots_M] = rng.uniform(-0.05, 0.05, (len(slots_M), 4)).T
            self.steps[slots_M] = 0
            return self.state[:, slots_M].T

        def step(self, slots_N: Any, action_N: Any) -> tuple[Any, Any, Any, Any]:
            x, v, angle, spin = self.state[:, slots_N]
            cos, sin = np.cos(angle), np.sin(angle)
            push = (np.where(action_N == 1, 10.0, -10.0) + 0.05 * spin * spin * sin) / 1.1
            twist = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
            new = np.stack(
                [x + 0.02 * v, v + 0.02 * (push - 0.05 * twist * cos / 1.1), angle + 0.02 * spin, spin + 0.02 * twist]
            )
            self.state[:, slots_N] = new
            self.steps[slots_N] += 1
            fell = (np.abs(new[0]) > 2.4) | (np.abs(new[2]) > 0.2095)
            return new.T, np.ones(len(slots_N)), fell, ~fell & (self.steps[slots_N] >= 500)

    logger = rl.LogBuffer(lambda on_episode, on_collect, buffer: None)
    with rl.vectorize_env(ManyCartPoles, "dummy", n, logger) as venv:  # type: ignore[arg-type]
        venv.bind(seeds())
        venv.open_collection(each_step=False)
        return rate(rounds(venv), seconds)


def idle_iteration_seconds(kind: str) -> float:
    """An iteration of the trainer with nothing to do: one episode of one step, and no learning."""
    from gymnasium import spaces

    from sharpen import rl

    sim, state, action, gain = parts(rl, spaces)

    class OneStep(sim):  # type: ignore[misc, valid-type]
        def done(self) -> bool:
            return True

    class Nothing:
        def act(self, obs_N: Any, *, rng: Any, deterministic: bool) -> rl.Actions:
            return rl.Actions(np.zeros(len(obs_N), np.int64))

        def learn(self, batch: rl.EpisodeBatch, **_: Any) -> dict[str, float]:
            return {}

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            return

    times: list[float] = []

    class Watch(rl.Callback):
        def on_iter_start(self, loop: Any, trained: Any) -> None:
            self.began = time.perf_counter()

        def on_iter_end(self, loop: Any, trained: Any) -> None:
            times.append(time.perf_counter() - self.began)

    vessel: Any = rl.TrainingVessel(
        simulator_fn=OneStep,
        state_interpreter=state(),
        action_interpreter=action(),
        policy=Nothing(),
        reward=gain(),
        train_initial_states=[0],
        episode_per_iter=1,
    )
    rl.Trainer(max_iters=50, finite_env_type=kind, concurrency=2, callbacks=[Watch()]).fit(vessel)  # type: ignore[arg-type]
    return statistics.median(times[5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("kind")
    parser.add_argument("--package", default="sharpen", choices=["sharpen", "gymnasium", "qlib"])
    parser.add_argument("--seconds", type=float, default=0.7, help="of each of three windows")
    parser.add_argument("--validate", default="shape", choices=["shape", "first", "always"])
    chosen = parser.parse_args()
    kind, seconds = chosen.kind, chosen.seconds
    if chosen.package == "gymnasium":
        value = gymnasium_rate(kind, seconds)
    elif chosen.package == "qlib":
        value = qlib_rate(kind, seconds)
    elif kind.startswith("vector-"):
        value = vector_rate(int(kind.partition("-")[2]), seconds)
    elif kind.startswith("idle-"):
        value = idle_iteration_seconds(kind.partition("-")[2])
    elif kind.startswith("collect-"):
        value = sharpen_collector_rate(kind.partition("-")[2], seconds)
    else:
        value = sharpen_rate(kind, seconds, chosen.validate)
    print(json.dumps({"kind": kind, "package": chosen.package, "value": round(value, 6)}))


if __name__ == "__main__":
    main()
