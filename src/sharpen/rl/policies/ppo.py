"""PPO: proximal policy optimisation for discrete and continuous actions, from top to bottom.

    collect episodes -> values -> advantages -> `repeat` passes over shuffled minibatches

A collect's episodes were all played with the weights that `learn` finds. So the old policy's log-probabilities and
values are computed there in a few large batches, and acting costs one pass through the actor alone.
"""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ...checks import check_ints, check_names
from ...errors import ConfigError
from ..episodes import EpisodeBatch
from ..policy import Actions
from ..trees import Array, rows
from . import distributions, losses
from .advantages import explained_variance, gae, next_values
from .exported import Exported
from .networks import Head, as_tensors
from .normaliser import RunningMoments
from .optimiser import (
    LEARN_OPTIONS,
    MakeScheduler,
    descend,
    fitting_threads,
    load_optimiser_state,
    load_scheduler_state,
    optimiser_state,
    scheduler_state,
    weights_state,
)
from .sampling import ActionBox, load_rng_state, new_rng, rng_state, sample_categorical
from .spoilt import refuse_spoilt
from .weights import load_weights


class ActorCritic(nn.Module):
    """Actor and critic; with one network they share it."""

    def __init__(self, network: nn.Module, critic_network: nn.Module | None, outputs: int, *, continuous: bool) -> None:
        super().__init__()
        self.actor = Head(network, outputs, gain=0.01)
        self.critic = Head(critic_network or network, 1, gain=1.0)
        self.log_std = nn.Parameter(torch.zeros(outputs)) if continuous else None

    def forward(self, obs: Any) -> tuple[Tensor, Tensor]:
        """What the actor says, and the value."""
        features = self.actor.network(obs)
        shared = self.critic.network is self.actor.network
        value_B = self.critic.out(features) if shared else self.critic(obs)
        return self.actor.out(features), value_B.squeeze(-1)

    def value(self, obs: Any) -> Tensor:
        return self.critic(obs).squeeze(-1)  # type: ignore[no-any-return]

    def judge(self, said_B_A: Tensor, action_B: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability of each action, and the entropy."""
        if self.log_std is None:
            return distributions.categorical(said_B_A, action_B)
        return distributions.gaussian(said_B_A, self.log_std, action_B)


class Samples(NamedTuple):
    """What a minibatch needs of each step."""

    obs: Any
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor

    def take(self, index_B: Any) -> "Samples":
        return Samples(rows(self.obs, index_B), *(part[index_B] for part in self[1:]))


class PPO:
    """Proximal policy optimisation, with Qlib's parameters.

    `max_batch_size` bounds every pass through the network; a minibatch has `batch_size` steps (of `learn`), or as many.
    `network` serves actor and critic, unless there is a `critic_network`: give one where returns are large, since the
    critic's errors then disturb the features of the actor. `scheduler` makes a learning-rate schedule, which moves on
    after each collect.

    `deterministic_eval` takes the most likely action in validation, test and backtest; False samples there too.

    Where episodes are truncated, keep `discount_factor` below 1: the value of what follows has no bound otherwise.
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
            raise ConfigError(f"PPO acts in Discrete and Box spaces, but the action space is {action_space}")
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
        self._fast_actor = Exported.of(self.module.actor)

    # Acting

    def act(self, obs_N: Any, *, rng: np.random.Generator | None = None, deterministic: bool = False) -> Actions:
        """Choose an action for each observation; sampled, unless `deterministic` and `deterministic_eval`."""
        draws = rng if rng is not None else self._rng
        certain = deterministic and self.deterministic_eval
        said_N_A = self._said(obs_N)
        if self._box is not None and self.module.log_std is not None:
            raw_N_D = said_N_A
            if not certain:
                std_D = np.exp(self.module.log_std.numpy(force=True))
                raw_N_D = (said_N_A + std_D * draws.standard_normal(said_N_A.shape)).astype(np.float32)
            return Actions(self._box.to_action(raw_N_D), {"raw_action": raw_N_D})
        chosen_N = said_N_A.argmax(-1) if certain else sample_categorical(said_N_A, draws.random(len(said_N_A)))
        return Actions(chosen_N + self._first_action, {})

    def _said(self, obs_N: Any) -> Array:
        if self._fast_actor is not None:
            return self._fast_actor(obs_N)
        with fitting_threads(self.module), torch.inference_mode():
            return self.module.actor(as_tensors(obs_N, self._device)).numpy(force=True)  # type: ignore[no-any-return]

    @property
    def _device(self) -> torch.device:
        return self.module.actor.out.weight.device

    # Learning

    def learn(
        self, batch: EpisodeBatch, *, repeat: int = 10, batch_size: int | None = None, **unknown: Any
    ) -> dict[str, float]:
        """Improve on one collect: `repeat` passes over it, in shuffled minibatches of `batch_size` steps."""
        check_names(unknown, LEARN_OPTIONS, owner="PPO.learn")
        check_ints(repeat=repeat, batch_size=batch_size)
        size = min(batch_size or self.max_batch_size, self.max_batch_size)
        with fitting_threads(self.module):
            samples, metrics = self._samples(batch)
            parts = [
                self._step(samples.take(index_B)) for _ in range(repeat) for index_B in self._minibatches(samples, size)
            ]
        if self.scheduler is not None:
            self.scheduler.step()
        names = ("loss", "loss/clip", "loss/vf", "loss/ent")
        metrics |= dict(zip(names, torch.stack(parts).mean(0).tolist(), strict=True))
        return refuse_spoilt("PPO", metrics, batch)

    def _minibatches(self, samples: Samples, size: int) -> Iterator[Tensor]:
        """Every step once, in a new order; a small rest joins the last minibatch."""
        order = torch.from_numpy(self._rng.permutation(len(samples.action)))
        starts = list(range(0, max(len(order) - size, 0) + 1, size))
        for start in starts:
            yield order[start:] if start == starts[-1] else order[start : start + size]

    def _samples(self, batch: EpisodeBatch) -> tuple[Samples, dict[str, float]]:
        """Old log-probabilities and values, advantages and returns, of every step of a collect."""
        raw_T = batch.action_T - self._first_action if self._box is None else batch.extras["raw_action"]
        obs_T, action_T = as_tensors(batch.obs_T, self._device), as_tensors(raw_T, self._device)
        log_prob_T, value_T = self._old(obs_T, action_T)
        advantage_T, return_T, metrics = self._advantages(batch, value_T.numpy(force=True))
        numbers = [torch.as_tensor(x, dtype=torch.float32, device=self._device) for x in (advantage_T, return_T)]
        return Samples(obs_T, action_T, log_prob_T, value_T, *numbers), metrics

    @torch.no_grad()
    def _old(self, obs_T: Any, action_T: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probability and value of each step under the weights that played it."""
        log_probs, values = [], []
        for start in range(0, len(action_T), self.max_batch_size):
            part = slice(start, start + self.max_batch_size)
            said, value = self.module(rows(obs_T, part))
            log_probs.append(self.module.judge(said, action_T[part])[0])
            values.append(value)
        return torch.cat(log_probs), torch.cat(values)

    def _advantages(self, batch: EpisodeBatch, value_T: Array) -> tuple[Array, Array, dict[str, float]]:
        """Advantages, and what the critic should have said.

        With reward normalisation the critic speaks in units of the returns' running standard deviation.
        """
        scale = self._returns.std if self._returns is not None else 1.0
        worth_T = value_T.astype(np.float64) * scale
        after_T = next_values(worth_T, self._last_values(batch) * scale, batch.lengths_E)
        advantage_T = gae(
            batch.reward_T, worth_T, after_T, batch.is_last_T, discount=self.discount_factor, gae_lambda=self.gae_lambda
        )
        return_T = advantage_T + worth_T
        if self._returns is not None:
            self._returns.update(return_T)
        return advantage_T, return_T / scale, {"explained_variance": explained_variance(worth_T, return_T)}

    def _last_values(self, batch: EpisodeBatch) -> Array:
        """The value after each episode's end: none, unless the episode was cut short."""
        value_E = np.zeros(batch.n_episodes)
        cut = np.flatnonzero(~batch.terminated_T[batch.last_E])
        if len(cut):
            with torch.no_grad():
                value_E[cut] = self.module.value(as_tensors(rows(batch.last_obs_E, cut), self._device)).numpy(
                    force=True
                )
        return value_E

    def _step(self, part: Samples) -> Tensor:
        """One gradient step on one minibatch; its metrics."""
        said, value_B = self.module(part.obs)
        log_prob_B, entropy_B = self.module.judge(said, part.action)
        advantage_B = losses.normalised(part.advantage) if self.advantage_normalization else part.advantage
        clip = losses.clipped_surrogate(log_prob_B, part.log_prob, advantage_B, eps_clip=self.eps_clip)
        if self.value_clip:
            vf = losses.clipped_value_loss(value_B, part.value, part.returns, eps_clip=self.eps_clip)
        else:
            vf = losses.value_loss(value_B, part.returns)
        entropy = entropy_B.mean()
        loss = clip + self.vf_coef * vf
        if self.ent_coef:  # a bonus of 0 would still be differentiated
            loss = loss - self.ent_coef * entropy
        descend(self.optimiser, loss, max_grad_norm=self.max_grad_norm)
        return torch.stack([loss.detach(), clip.detach(), vf.detach(), entropy.detach()])

    # State

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser, schedule, normaliser and random numbers: `learn` goes on as if never stopped."""
        return {
            "weights": weights_state(self.module),
            "optimiser": optimiser_state(self.optimiser),
            "scheduler": scheduler_state(self.scheduler),
            "returns": self._returns.state_dict() if self._returns is not None else {},
            "rng": rng_state(self._rng),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.module.load_state_dict(state_dict["weights"])
        load_optimiser_state(self.optimiser, state_dict["optimiser"])
        load_scheduler_state(self.scheduler, state_dict["scheduler"])
        if self._returns is not None:
            self._returns.load_state_dict(state_dict["returns"])
        load_rng_state(self._rng, state_dict["rng"])


class QlibPPO(PPO):
    """PPO with Qlib's defaults: nothing is discounted, which suits episodes that end by themselves.

    It is `PPO` in `sharpen.rl.order_execution`, as code that moves from Qlib expects.
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
