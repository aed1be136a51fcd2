"""PPO: proximal policy optimisation for discrete and continuous actions, from top to bottom.

    collect episodes -> values -> advantages -> `repeat` passes over shuffled minibatches

All episodes of a collect were played with the weights that `learn` starts from. The old policy's log-probabilities and
values are therefore computed in `learn`, in a few large batches, and acting costs one pass through the actor alone.

Axis letters: T is every step of a collect, episode after episode; E the episodes; B a minibatch; A the actions;
D the dimensions of a continuous action.
"""

import inspect
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ...checks import check_ints, check_names
from ...errors import ConfigError
from ..policy import Actions, EpisodeBatch
from ..trees import Array, rows
from .networks import ActionBox, Head, NumpyMLP, as_tensors, load_weights, sample_categorical
from .updates import (
    LEARN_OPTIONS,
    MakeScheduler,
    check_losses,
    gradient_step,
    limit_threads,
    load_optimiser_state,
    load_rng_state,
    load_scheduler_state,
    new_rng,
    optimiser_state,
    rng_state,
    scheduler_state,
    weights_state,
)


class PPO:
    """Proximal policy optimisation, with Qlib's parameters.

    `max_batch_size` limits every pass through the network, and is the minibatch size unless `learn` is given a smaller
    `batch_size`. Actor and critic share `network` unless there is a `critic_network`: pass one if returns are large,
    because the critic's errors would disturb the features of the actor. `scheduler` makes a learning-rate schedule,
    which advances after each collect.

    `deterministic_eval` takes the most likely action in validation, test and backtest; False samples there too.

    If episodes are truncated, keep `discount_factor` below 1: the value of what follows is unbounded otherwise.
    """

    def __init__(
        self,
        network: nn.Module,
        obs_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr: float,
        weight_decay: float = 0.0,
        discount_factor: float = 0.99,
        max_grad_norm: float = 100.0,
        reward_normalization: bool = True,
        eps_clip: float = 0.3,
        value_clip: bool = True,
        vf_coef: float = 1.0,
        gae_lambda: float = 0.95,
        max_batch_size: int = 256,
        deterministic_eval: bool = True,
        weight_file: str | Path | None = None,
        *,
        ent_coef: float = 0.01,
        advantage_normalization: bool = True,
        critic_network: nn.Module | None = None,
        scheduler: MakeScheduler | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(action_space, spaces.Discrete | spaces.Box):
            raise ConfigError(f"PPO supports Discrete and Box action spaces, not {action_space}")
        check_ints(max_batch_size=max_batch_size)
        self.obs_space, self.action_space = obs_space, action_space
        self._box = ActionBox(action_space) if isinstance(action_space, spaces.Box) else None
        self._first_action = int(action_space.start) if isinstance(action_space, spaces.Discrete) else 0
        outputs = self._box.size if self._box else int(action_space.n)  # type: ignore[union-attr]
        self.module = ActorCritic(network, critic_network, outputs, continuous=self._box is not None)
        if weight_file is not None:
            load_weights(self.module, weight_file)
        self.optimiser = torch.optim.Adam(self.module.parameters(), lr=lr, weight_decay=weight_decay, fused=True)
        self.scheduler = scheduler(self.optimiser) if scheduler else None
        self.discount_factor, self.gae_lambda = discount_factor, gae_lambda
        self.max_grad_norm, self.max_batch_size = max_grad_norm, max_batch_size
        self.eps_clip, self.value_clip = eps_clip, value_clip
        self.vf_coef, self.ent_coef = vf_coef, ent_coef
        self.advantage_normalization = advantage_normalization
        self.deterministic_eval = deterministic_eval
        self._returns = RunningMoments() if reward_normalization else None
        self._rng = new_rng(seed)
        self._numpy_actor = NumpyMLP.of(self.module.actor)

    # Acting

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        """Choose an action for each observation: sampled, unless `deterministic` and `deterministic_eval`."""
        draws = rng if rng is not None else self._rng
        is_greedy = deterministic and self.deterministic_eval
        output_N_A = self._actor_outputs(obs_N)
        if self._box is not None and self.module.log_std is not None:
            raw_N_D = output_N_A
            if not is_greedy:
                std_D = np.exp(self.module.log_std.numpy(force=True))
                raw_N_D = (output_N_A + std_D * draws.standard_normal(output_N_A.shape)).astype(np.float32)
            return Actions(self._box.to_action(raw_N_D), {"raw_action": raw_N_D})
        chosen_N = output_N_A.argmax(-1) if is_greedy else sample_categorical(output_N_A, draws.random(len(output_N_A)))
        return Actions(chosen_N + self._first_action, {})

    def _actor_outputs(self, obs_N: Any) -> Array:
        if self._numpy_actor is not None:
            return self._numpy_actor(obs_N)
        with limit_threads(self.module), torch.inference_mode():
            return self.module.actor(as_tensors(obs_N, self._device)).numpy(force=True)  # type: ignore[no-any-return]

    @property
    def _device(self) -> torch.device:
        return self.module.actor.out.weight.device

    # Learning

    def learn(
        self, batch: EpisodeBatch, *, repeat: int = 10, batch_size: int | None = None, **unknown: Any
    ) -> dict[str, float]:
        """Make `repeat` passes over one collect, in shuffled minibatches of `batch_size` steps."""
        check_names(unknown, LEARN_OPTIONS, owner="PPO.learn")
        check_ints(repeat=repeat, batch_size=batch_size)
        size = min(batch_size or self.max_batch_size, self.max_batch_size)
        with limit_threads(self.module):
            samples, metrics = self._samples(batch)
            parts = [
                self._step(samples.take(index_B)) for _ in range(repeat) for index_B in self._minibatches(samples, size)
            ]
        if self.scheduler is not None:
            self.scheduler.step()
        names = ("loss", "loss/clip", "loss/vf", "loss/ent")
        metrics |= dict(zip(names, torch.stack(parts).mean(0).tolist(), strict=True))
        return check_losses("PPO", metrics, batch)

    def _minibatches(self, samples: "Samples", size: int) -> Iterator[Tensor]:
        """Yield every step once, in a new order; a remainder smaller than `size` joins the last minibatch."""
        order = torch.from_numpy(self._rng.permutation(len(samples.action)))
        starts = list(range(0, max(len(order) - size, 0) + 1, size))
        for start in starts:
            yield order[start:] if start == starts[-1] else order[start : start + size]

    def _samples(self, batch: EpisodeBatch) -> tuple["Samples", dict[str, float]]:
        """Return every step of a collect with what the loss needs, and the metrics of the critic."""
        raw_T = batch.action_T - self._first_action if self._box is None else batch.extras["raw_action"]
        obs_T, action_T = as_tensors(batch.obs_T, self._device), as_tensors(raw_T, self._device)
        log_prob_T, value_T = self._old_policy(obs_T, action_T)
        advantage_T, return_T, metrics = self._advantages(batch, value_T.numpy(force=True))
        numbers = [torch.as_tensor(x, dtype=torch.float32, device=self._device) for x in (advantage_T, return_T)]
        return Samples(obs_T, action_T, log_prob_T, value_T, *numbers), metrics

    @torch.no_grad()
    def _old_policy(self, obs_T: Any, action_T: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability and the value of each step under the weights that played it."""
        log_probs, values = [], []
        for start in range(0, len(action_T), self.max_batch_size):
            part = slice(start, start + self.max_batch_size)
            output, value = self.module(rows(obs_T, part))
            log_probs.append(self.module.log_prob_and_entropy(output, action_T[part])[0])
            values.append(value)
        return torch.cat(log_probs), torch.cat(values)

    def _advantages(self, batch: EpisodeBatch, value_T: Array) -> tuple[Array, Array, dict[str, float]]:
        """Return the advantages, the targets of the critic, and the critic's metrics.

        With reward normalisation the critic predicts in units of the returns' running standard deviation.
        """
        scale = self._returns.std if self._returns is not None else 1.0
        scaled_value_T = value_T.astype(np.float64) * scale
        next_value_T = next_values(scaled_value_T, self._last_values(batch) * scale, batch.lengths_E)
        advantage_T = gae(
            batch.reward_T,
            scaled_value_T,
            next_value_T,
            batch.is_last_T,
            discount=self.discount_factor,
            gae_lambda=self.gae_lambda,
        )
        return_T = advantage_T + scaled_value_T
        if self._returns is not None:
            self._returns.update(return_T)
        return advantage_T, return_T / scale, {"explained_variance": explained_variance(scaled_value_T, return_T)}

    def _last_values(self, batch: EpisodeBatch) -> Array:
        """Return the value after each episode's end: 0, unless the episode was truncated."""
        value_E = np.zeros(batch.n_episodes)
        cut = np.flatnonzero(~batch.terminated_T[batch.last_E])
        if len(cut):
            with torch.no_grad():
                value_E[cut] = self.module.value(as_tensors(rows(batch.last_obs_E, cut), self._device)).numpy(
                    force=True
                )
        return value_E

    def _step(self, part: "Samples") -> Tensor:
        """Make one gradient step on one minibatch and return its metrics."""
        output_B_A, value_B = self.module(part.obs)
        log_prob_B, entropy_B = self.module.log_prob_and_entropy(output_B_A, part.action)
        advantage_B = normalised(part.advantage) if self.advantage_normalization else part.advantage
        clip = clipped_surrogate(log_prob_B, part.log_prob, advantage_B, eps_clip=self.eps_clip)
        if self.value_clip:
            vf = clipped_value_loss(value_B, part.value, part.returns, eps_clip=self.eps_clip)
        else:
            vf = (part.returns - value_B).square().mean()
        entropy = entropy_B.mean()
        loss = clip + self.vf_coef * vf
        if self.ent_coef:  # a bonus of 0 would still be differentiated
            loss = loss - self.ent_coef * entropy
        gradient_step(self.optimiser, loss, max_grad_norm=self.max_grad_norm)
        return torch.stack([loss.detach(), clip.detach(), vf.detach(), entropy.detach()])

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return weights, optimiser, schedule, normaliser and generator: everything needed to resume."""
        return {
            "weights": weights_state(self.module),
            "optimiser": optimiser_state(self.optimiser),
            "scheduler": scheduler_state(self.scheduler),
            "returns": self._returns.state_dict() if self._returns is not None else {},
            "rng": rng_state(self._rng),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.module.load_state_dict(state_dict["weights"])
        load_optimiser_state(self.optimiser, state_dict["optimiser"])
        load_scheduler_state(self.scheduler, state_dict["scheduler"])
        if self._returns is not None:
            self._returns.load_state_dict(state_dict["returns"])
        load_rng_state(self._rng, state_dict["rng"])


class QlibPPO(PPO):
    """PPO with Qlib's defaults: nothing is discounted, which suits episodes that end by themselves.

    `sharpen.rl.order_execution` exports it as `PPO`, which is what code from Qlib expects.
    """

    __signature__ = inspect.signature(PPO).replace(
        parameters=[
            each.replace(default=1.0) if each.name in ("discount_factor", "gae_lambda") else each
            for each in inspect.signature(PPO).parameters.values()
        ]
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        given = self.__signature__.bind(*args, **options)
        given.apply_defaults()
        super().__init__(**given.arguments)


class ActorCritic(nn.Module):
    """Actor and critic, which share the network if there is only one."""

    def __init__(self, network: nn.Module, critic_network: nn.Module | None, outputs: int, *, continuous: bool) -> None:
        super().__init__()
        self.actor = Head(network, outputs, gain=0.01)
        self.critic = Head(critic_network or network, 1, gain=1.0)
        self.log_std = nn.Parameter(torch.zeros(outputs)) if continuous else None

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """Return the actor's outputs and the value of each observation."""
        features = self.actor.network(obs)
        shared = self.critic.network is self.actor.network
        value_B = self.critic.out(features) if shared else self.critic(obs)
        return self.actor.out(features), value_B.squeeze(-1)

    def value(self, obs: Any) -> Tensor:
        return self.critic(obs).squeeze(-1)  # type: ignore[no-any-return]

    def log_prob_and_entropy(self, output_B_A: Tensor, action_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probability of each action, and the entropy of its distribution."""
        if self.log_std is None:
            return categorical(output_B_A, action_B)
        return gaussian(output_B_A, self.log_std, action_B)


class Samples(NamedTuple):
    """What the loss needs to know of each step."""

    obs: Any
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor

    def take(self, index_B: Any) -> "Samples":
        return Samples(rows(self.obs, index_B), *(part[index_B] for part in self[1:]))


class RunningMoments:
    """Mean and variance over all batches, merged exactly; before the first batch they are 0 and 1."""

    def __init__(self) -> None:
        self.mean = 0.0
        self.variance = 1.0
        self.count = 0

    @property
    def std(self) -> float:
        return float(np.sqrt(self.variance + np.finfo(np.float32).eps))

    def update(self, value_T: Array) -> None:
        """Count the values of one batch."""
        fresh = len(value_T)
        if fresh == 0:
            return
        total = self.count + fresh
        gap = float(np.mean(value_T)) - self.mean
        squares = float(np.var(value_T)) * fresh + self.variance * self.count + gap**2 * self.count * fresh / total
        self.mean += gap * fresh / total
        self.variance = squares / total
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "variance": self.variance, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.variance, self.count = float(state["mean"]), float(state["variance"]), int(state["count"])


# -- advantages of whole episodes, in NumPy ----------------------------------------------------------


def next_values(value_T: Array, last_value_E: Array, length_E: Array) -> Array:
    """Return the value after each step: that of the next step, or `last_value_E` after an episode's last step.

    `last_value_E` is 0 where an episode terminated, and the value of its last observation where it was truncated.
    """
    next_value_T = np.empty_like(value_T)
    next_value_T[:-1] = value_T[1:]
    next_value_T[np.cumsum(length_E) - 1] = last_value_E
    return next_value_T


def gae(
    reward_T: Array, value_T: Array, next_value_T: Array, last_step_T: Array, *, discount: float, gae_lambda: float
) -> Array:
    """Return generalised advantage estimates; nothing flows back over the end of an episode."""
    delta_T = (reward_T + discount * next_value_T - value_T).tolist()
    decay_T = np.where(last_step_T, 0.0, discount * gae_lambda).tolist()
    # Plain floats: a loop over a NumPy array costs five times as much.
    advantage = 0.0
    for step in range(len(delta_T) - 1, -1, -1):
        advantage = delta_T[step] + decay_T[step] * advantage
        delta_T[step] = advantage
    return np.asarray(delta_T, dtype=np.float64)


def explained_variance(value_T: Array, return_T: Array) -> float:
    """Return 1 for a perfect critic, 0 for a constant one, and less than 0 for one that is worse than that."""
    spread = float(np.var(return_T))
    return 0.0 if spread == 0 else 1.0 - float(np.var(return_T - value_T)) / spread


# -- log-probabilities and losses, in torch ----------------------------------------------------------

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def categorical(logits_B_A: Tensor, action_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each action, and the entropy of each distribution."""
    log_prob_B_A = torch.log_softmax(logits_B_A, dim=-1)
    log_prob_B = log_prob_B_A.gather(-1, action_B.unsqueeze(-1)).squeeze(-1)
    return log_prob_B, -(log_prob_B_A.exp() * log_prob_B_A).sum(-1)


def gaussian(mean_B_D: Tensor, log_std_D: Tensor, action_B_D: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-density of each action under independent normals, and the entropy of each distribution."""
    z_B_D = (action_B_D - mean_B_D) * torch.exp(-log_std_D)
    log_std_B_D = log_std_D.expand_as(mean_B_D)
    log_prob_B = (-0.5 * z_B_D.square() - log_std_B_D - HALF_LOG_2PI).sum(-1)
    return log_prob_B, (log_std_B_D + 0.5 + HALF_LOG_2PI).sum(-1)


def clipped_surrogate(log_prob_B: Tensor, old_log_prob_B: Tensor, advantage_B: Tensor, *, eps_clip: float) -> Tensor:
    """Return the policy loss: the more pessimistic of the plain and the clipped ratio."""
    ratio_B = (log_prob_B - old_log_prob_B).exp()
    clipped_B = ratio_B.clamp(1.0 - eps_clip, 1.0 + eps_clip)
    return -torch.min(ratio_B * advantage_B, clipped_B * advantage_B).mean()


def clipped_value_loss(value_B: Tensor, old_value_B: Tensor, return_B: Tensor, *, eps_clip: float) -> Tensor:
    """Return the larger of the plain error and that of a value which stays within `eps_clip` of the old one."""
    near_B = old_value_B + (value_B - old_value_B).clamp(-eps_clip, eps_clip)
    return torch.max((return_B - value_B).square(), (return_B - near_B).square()).mean()


def normalised(advantage_B: Tensor) -> Tensor:
    """Return advantages of mean 0 and standard deviation 1; a single or constant one becomes 0."""
    if len(advantage_B) < 2:
        return torch.zeros_like(advantage_B)
    return (advantage_B - advantage_B.mean()) / (advantage_B.std() + 1e-8)
