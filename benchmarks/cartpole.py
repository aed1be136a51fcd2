"""How long CartPole-v1 takes to be solved: PPO of ours beside Stable-Baselines3 and a file in the style of CleanRL.

    python benchmarks/cartpole.py                    # ours, 5 seeds
    python benchmarks/cartpole.py --peer             # all three in turns, the others in an environment of their own
    python benchmarks/cartpole.py --lib ours --seed 3   # one run

Everybody steps the same environment, `gymnasium.make("CartPole-v1")`, with one torch thread. When the last 20 training
episodes have a mean of 300 or more, 100 deterministic episodes are played; from a mean of 475 on it is solved. The
clock runs from the first environment step and includes these evaluations.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEER_PACKAGES = ["torch==2.13.0", "gymnasium", "stable-baselines3"]
GATE, SOLVED, EVALUATION_SEED = 300.0, 475.0, 10_000
EVALUATION_STEPS = 2048  # an evaluation costs as much as many updates, so there is at most one in so many steps
Act = Callable[[Any], Any]
SETTINGS: dict[str, Any] = {
    "lr": 3e-3,
    "discount_factor": 0.98,
    "gae_lambda": 0.9,
    "max_grad_norm": 0.5,
    "reward_normalization": False,
    "eps_clip": 0.2,
    "value_clip": False,
    "vf_coef": 0.5,
    "ent_coef": 0.0,
    "max_batch_size": 256,
}
EPISODES, REPEAT = 8, 5


def evaluated(act: Act, episodes: int = 100) -> float:
    """The mean return of episodes that are played in lock-step."""
    import gymnasium as gym
    import numpy as np

    envs = [gym.make("CartPole-v1") for _ in range(episodes)]
    obs = np.stack([env.reset(seed=EVALUATION_SEED + number)[0] for number, env in enumerate(envs)])
    returns, alive = np.zeros(episodes), np.arange(episodes)
    while len(alive):
        stays = []
        for number, action in zip(alive, act(obs[alive]), strict=True):
            obs[number], reward, terminated, truncated, _ = envs[number].step(int(action))
            returns[number] += float(reward)
            stays.append(not (terminated or truncated))
        alive = alive[stays]
    return float(returns.mean())


class Attempt:
    """Watches a training run: when to evaluate, and whether it is solved."""

    def __init__(self, act: Act) -> None:
        self.act, self.returns = act, list[float]()
        self.start, self.evaluation_seconds, self.is_solved = time.perf_counter(), 0.0, False
        self._checked = -EVALUATION_STEPS

    def check(self, steps: int) -> bool:
        """Whether it is solved, after an update."""
        recent = self.returns[-20:]
        if len(recent) < 20 or sum(recent) / 20 < GATE or steps - self._checked < EVALUATION_STEPS:
            return False
        self._checked, before = steps, time.perf_counter()
        self.is_solved = evaluated(self.act) >= SOLVED
        self.evaluation_seconds += time.perf_counter() - before
        return self.is_solved

    def result(self, lib: str, seed: int, steps: int) -> dict[str, Any]:
        wall = time.perf_counter() - self.start
        return {
            "lib": lib,
            "seed": seed,
            "solved": self.is_solved,
            "wall_seconds": round(wall, 2),
            "evaluation_seconds": round(self.evaluation_seconds, 2),
            "steps": steps,
        }


def ours(seed: int, max_steps: int) -> dict[str, Any]:
    """PPO through the trainer, in process."""
    import gymnasium as gym
    import torch
    from gym_vessel import gym_vessel

    from sharpen.rl import MLP, PPO, Callback, Trainer

    torch.manual_seed(seed)
    env = gym.make("CartPole-v1")
    obs_space, action_space = env.observation_space, env.action_space
    policy = PPO(MLP(obs_space), obs_space, action_space, critic_network=MLP(obs_space), seed=seed, **SETTINGS)
    vessel = gym_vessel("CartPole-v1", policy, episode_per_iter=EPISODES, repeat=REPEAT)
    attempt = Attempt(lambda obs: policy.act(obs, rng=None, deterministic=True).action_N)

    class Watch(Callback):
        steps = 0

        def on_iter_end(self, trainer: Any, vessel: Any) -> None:
            self.steps += len(vessel.last_batch)
            attempt.returns += vessel.last_batch.returns_E.tolist()
            trainer.should_stop = attempt.check(self.steps) or self.steps >= max_steps

    watch = Watch()
    attempt.start = time.perf_counter()
    Trainer(callbacks=[watch], finite_env_type="dummy", concurrency=8, seed=seed).fit(vessel)
    return attempt.result("ours", seed, watch.steps)


def one(lib: str, seed: int, max_steps: int) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    if lib == "ours":
        return ours(seed, max_steps)
    import cartpole_peers

    return cartpole_peers.RUNS[lib](seed, max_steps, Attempt)


def peer_python(folder: Path) -> str:
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PEER_PACKAGES], check=True)
    return str(python)


def run_apart(python: str, lib: str, seed: int, max_steps: int) -> dict[str, Any]:
    command = [python, __file__, "--lib", lib, "--seed", str(seed), "--max-steps", str(max_steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{lib} failed:\n{done.stderr[-3000:]}")
    line = done.stdout.splitlines()[-1]
    print(line, flush=True)
    result: dict[str, Any] = json.loads(line)
    return result


def compare(seeds: int, max_steps: int, peer: str | None) -> None:
    """All runs in turns, so that everybody sees the same machine; then the ratio of medians."""
    pythons = {"ours": sys.executable} | ({"sb3": peer, "cleanrl": peer} if peer else {})
    results = {lib: list[dict[str, Any]]() for lib in pythons}
    for seed in range(seeds):
        for lib, python in pythons.items():
            results[lib].append(run_apart(python, lib, seed, max_steps))
    medians = {lib: statistics.median(run["wall_seconds"] for run in runs) for lib, runs in results.items()}
    line: dict[str, Any] = {"measure": "CartPole-v1 solved, median wall seconds", **medians}
    line |= {f"{lib}_solved": sum(run["solved"] for run in runs) for lib, runs in results.items()}
    if peer:
        line["share_of_faster_peer"] = round(medians["ours"] / min(medians["sb3"], medians["cleanrl"]), 2)
        line |= {"goal": 0.5, "reached": line["share_of_faster_peer"] <= 0.5 and line["ours_solved"] == seeds}
    print(json.dumps(line))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", choices=["ours", "sb3", "cleanrl"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--max-steps", type=int, default=300_000)
    parser.add_argument("--peer", action="store_true", help="run the others beside ours")
    parser.add_argument("--peer-python", help="an interpreter that has Stable-Baselines3")
    given = parser.parse_args()
    if given.lib:
        print(json.dumps(one(given.lib, given.seed, given.max_steps)))
        return
    peer = given.peer_python or (peer_python(HERE.parent / ".peer-rl") if given.peer else None)
    compare(given.seeds, given.max_steps, peer)


if __name__ == "__main__":
    main()
