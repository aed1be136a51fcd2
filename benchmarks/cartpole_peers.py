"""The others on CartPole-v1: Stable-Baselines3 with the settings of its zoo, and one plain file as CleanRL writes them.

Both use 8 environments, 32 steps a collect, 20 passes, discount 0.98, lambda 0.8, and a learning rate (1e-3) and a clip
(0.2) that fall to 0 over 100,000 steps: the settings with which they are fastest.
"""

import time
from collections.abc import Callable
from typing import Any

PLANNED_STEPS, ENVS, HORIZON, PASSES, DISCOUNT, LAMBDA, RATE, CLIP = 100_000, 8, 32, 20, 0.98, 0.8, 1e-3, 0.2
Run = Callable[[int, int, Any], dict[str, Any]]


def sb3(seed: int, max_steps: int, attempt_class: Any) -> dict[str, Any]:
    import gymnasium as gym
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    env = VecMonitor(DummyVecEnv([lambda: gym.make("CartPole-v1")] * ENVS))
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=HORIZON,
        batch_size=ENVS * HORIZON,
        n_epochs=PASSES,
        gamma=DISCOUNT,
        gae_lambda=LAMBDA,
        learning_rate=lambda left: left * RATE,
        clip_range=lambda left: left * CLIP,
        ent_coef=0.0,
        seed=seed,
        device="cpu",
    )
    attempt = attempt_class(lambda obs: model.predict(obs, deterministic=True)[0])

    class Watch(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            return not attempt.is_solved

        def _on_rollout_start(self) -> None:
            attempt.returns = [float(each["r"]) for each in self.model.ep_info_buffer]
            attempt.check(self.num_timesteps)

    attempt.start = time.perf_counter()
    model.learn(min(PLANNED_STEPS, max_steps), callback=Watch())
    result: dict[str, Any] = attempt.result("sb3", seed, model.num_timesteps)
    return result


def cleanrl(seed: int, max_steps: int, attempt_class: Any) -> dict[str, Any]:
    import gymnasium as gym
    import numpy as np
    import torch
    from torch import nn

    def layer(inputs: int, outputs: int, gain: float = 2**0.5) -> nn.Linear:
        made = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(made.weight, gain)
        nn.init.zeros_(made.bias)
        return made

    torch.manual_seed(seed)
    actor = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 2, 0.01))
    critic = nn.Sequential(layer(4, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0))
    parameters = [*actor.parameters(), *critic.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=RATE, eps=1e-5)
    mode = gym.vector.AutoresetMode.SAME_STEP
    envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * ENVS, autoreset_mode=mode)
    attempt = attempt_class(lambda obs: actor(torch.as_tensor(obs)).argmax(-1).numpy())
    attempt.start = time.perf_counter()
    obs, running = torch.as_tensor(envs.reset(seed=seed)[0]), np.zeros(ENVS)
    updates, steps = PLANNED_STEPS // (ENVS * HORIZON), 0
    for update in range(updates):
        left = 1.0 - update / updates
        optimiser.param_groups[0]["lr"], clip = left * RATE, left * CLIP
        kept: dict[str, list[Any]] = {name: [] for name in ("obs", "action", "log_prob", "value", "reward", "done")}
        for _ in range(HORIZON):
            with torch.no_grad():
                choice = torch.distributions.Categorical(logits=actor(obs))
                action, value = choice.sample(), critic(obs).squeeze(-1)  # type: ignore[no-untyped-call]
            after, reward, terminated, truncated, _ = envs.step(action.numpy())
            done = terminated | truncated
            row = (obs, action, choice.log_prob(action), value, torch.as_tensor(reward, dtype=torch.float32))  # type: ignore[no-untyped-call]
            for name, part in zip(kept, (*row, torch.as_tensor(done, dtype=torch.float32)), strict=True):
                kept[name].append(part)
            running += reward
            attempt.returns += running[done].tolist()
            running[done] = 0.0
            obs, steps = torch.as_tensor(after), steps + ENVS
        data = {name: torch.stack(parts) for name, parts in kept.items()}
        with torch.no_grad():
            after_value, trace, advantages = critic(obs).squeeze(-1), torch.zeros(ENVS), []
            for t in reversed(range(HORIZON)):
                goes_on = 1.0 - data["done"][t]
                surprise = data["reward"][t] + DISCOUNT * goes_on * after_value - data["value"][t]
                trace = surprise + DISCOUNT * LAMBDA * goes_on * trace
                advantages.append(trace)
                after_value = data["value"][t]
        data["advantage"] = torch.stack(advantages[::-1])
        flat = {name: part.flatten(0, 1) for name, part in data.items()}
        returns = flat["advantage"] + flat["value"]
        advantage = (flat["advantage"] - flat["advantage"].mean()) / (flat["advantage"].std() + 1e-8)
        for _ in range(PASSES):
            choice = torch.distributions.Categorical(logits=actor(flat["obs"]))
            ratio = (choice.log_prob(flat["action"]) - flat["log_prob"]).exp()  # type: ignore[no-untyped-call]
            policy_loss = -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
            value_loss = 0.5 * (critic(flat["obs"]).squeeze(-1) - returns).square().mean()
            optimiser.zero_grad()
            (policy_loss + 0.5 * value_loss).backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimiser.step()
        with torch.no_grad():
            if attempt.check(steps) or steps >= max_steps:
                break
    result: dict[str, Any] = attempt.result("cleanrl", seed, steps)
    return result


RUNS: dict[str, Run] = {"sb3": sb3, "cleanrl": cleanrl}
