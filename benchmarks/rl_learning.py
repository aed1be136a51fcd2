"""What SAC reaches on Pendulum-v1 and DQN on CartPole-v1, with the step budgets of Stable-Baselines3's zoo.

    python benchmarks/rl_learning.py                        # both, 3 seeds: several minutes
    python benchmarks/rl_learning.py --task dqn --seeds 1
    python benchmarks/rl_learning.py --peer-python PATH     # Stable-Baselines3 beside ours, in another environment

The zoo's own figures are a mean return of -157 (standard deviation 89) for SAC and 500 for DQN. After training, 100
deterministic episodes are played: with the last weights (`final_return`), since DQN's last weights are a matter of luck
in both libraries, and with those of the best validation on the way (`mean_return`; 20 other episodes, every 20
iterations). Each line is JSON.
"""

import argparse
import copy
import json
import statistics
import subprocess
import sys
import time
from typing import Any

# The zoo: mean over many episodes, and how much less is still as good: twice the standard error of a mean over 100
# episodes; CartPole counts as solved from 475.
LEVELS = {"sac": (-157.0, 17.7), "dqn": (500.0, 25.0)}
BUDGET = {"sac": 20_000, "dqn": 50_000}
ENVS = {"sac": "Pendulum-v1", "dqn": "CartPole-v1"}


def policy_of(task: str, seed: int) -> Any:
    import gymnasium as gym
    import torch

    from sharpen.rl import DQN, MLP, SAC

    torch.manual_seed(seed)
    env = gym.make(ENVS[task])
    if task == "sac":
        network = MLP(env.observation_space, (256, 256), activation="relu")
        return SAC(network, env.observation_space, env.action_space, lr=1e-3, learning_starts=400, seed=seed)
    return DQN(
        MLP(env.observation_space, (256, 256), activation="relu", init="plain"),
        env.observation_space,
        env.action_space,
        lr=2.3e-3,
        target_update_freq=128,
        is_double=False,
        clip_loss_grad=True,
        eps_end=0.04,
        exploration_steps=8_000,
        learning_starts=1_000,
        updates_per_step=0.5,
        seed=seed,
    )


def ours(task: str, seed: int, budget: int) -> dict[str, Any]:
    """Train through the trainer until the budget of steps is spent, then play 100 episodes."""
    from gym_vessel import gym_vessel

    from sharpen.rl import Callback, Trainer

    class Watch(Callback):
        """Ends the run when the budget is spent, and keeps the weights of the best validation."""

        steps, best, weights = 0, float("-inf"), None

        def on_validate_end(self, trainer: Any, vessel: Any) -> None:
            if trainer.metrics["val/reward"] > self.best:
                self.best, self.weights = trainer.metrics["val/reward"], copy.deepcopy(policy.module.state_dict())

        def on_iter_end(self, trainer: Any, vessel: Any) -> None:
            self.steps += len(vessel.last_batch)
            trainer.should_stop = self.steps >= budget

    policy, watch = policy_of(task, seed), Watch()
    vessel = gym_vessel(ENVS[task], policy, episode_per_iter=1)
    trainer = Trainer(callbacks=[watch], val_every_n_iters=20, finite_env_type="dummy", concurrency=100, seed=seed)
    start = time.perf_counter()
    trainer.fit(vessel)
    seconds = time.perf_counter() - start
    final = tested(trainer, vessel)
    if watch.weights is not None:
        policy.module.load_state_dict(watch.weights)
    best = tested(trainer, vessel)
    return {"steps": watch.steps, "seconds": round(seconds, 1), "mean_return": best, "final_return": final}


def tested(trainer: Any, vessel: Any) -> float:
    trainer.test(vessel)
    return round(float(trainer.metrics["reward"]), 1)


def sb3(task: str, seed: int, budget: int) -> dict[str, Any]:
    """Stable-Baselines3 with the settings of its zoo."""
    import gymnasium as gym
    from stable_baselines3 import DQN, SAC
    from stable_baselines3.common.evaluation import evaluate_policy

    if task == "sac":
        model = SAC("MlpPolicy", gym.make(ENVS[task]), learning_rate=1e-3, seed=seed, device="cpu")
    else:
        zoo: dict[str, Any] = {"learning_rate": 2.3e-3, "batch_size": 64, "buffer_size": 100_000, "gamma": 0.99}
        zoo |= {"learning_starts": 1_000, "target_update_interval": 10, "train_freq": 256, "gradient_steps": 128}
        zoo |= {"exploration_fraction": 0.16, "exploration_final_eps": 0.04, "policy_kwargs": {"net_arch": [256, 256]}}
        model = DQN("MlpPolicy", gym.make(ENVS[task]), seed=seed, device="cpu", **zoo)
    start = time.perf_counter()
    model.learn(budget)
    seconds = time.perf_counter() - start
    mean, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=100)
    return {"steps": model.num_timesteps, "seconds": round(seconds, 1), "mean_return": round(float(mean), 1)}


def apart(python: str, lib: str, task: str, seed: int, steps: int) -> dict[str, Any]:
    command = [python, __file__, "--one", lib, "--task", task, "--seed", str(seed), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{lib} failed:\n{done.stderr[-3000:]}")
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(line), flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=["sac", "dqn"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="instead of the zoo's budget")
    parser.add_argument("--peer-python", help="an interpreter that has Stable-Baselines3")
    parser.add_argument("--one", choices=["ours", "sb3"], help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        import torch

        torch.set_num_threads(1)
        run = ours if given.one == "ours" else sb3
        found = run(given.task, given.seed, given.steps or BUDGET[given.task])
        print(json.dumps({"lib": given.one, "task": given.task, "seed": given.seed, **found}))
        return
    pythons = {"ours": sys.executable} | ({"sb3": given.peer_python} if given.peer_python else {})
    for task in [given.task] if given.task else ["sac", "dqn"]:
        returns: dict[str, list[float]] = {lib: [] for lib in pythons}
        for seed in range(given.seeds):
            for lib, python in pythons.items():
                returns[lib].append(apart(python, lib, task, seed, given.steps)["mean_return"])
        level, noise = LEVELS[task]
        line: dict[str, Any] = {
            "measure": f"{task} on {ENVS[task]}, mean return over 100 episodes",
            "zoo": LEVELS[task],
        }
        line |= {lib: {"median": statistics.median(found), "all": found} for lib, found in returns.items()}
        print(json.dumps(line | {"reached": statistics.median(returns["ours"]) >= level - noise}))


if __name__ == "__main__":
    main()
