"""DQN and SAC: exploration, one update by hand, learning a toy, and going on from a saved state."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from sharpen.callbacks import load_state, save_state
from sharpen.errors import ConfigError
from sharpen.rl import DQN, MLP, SAC
from tests.errors import raises

from .toys import SIGN_OBS, TWO, UNIT, near_reward, play, same, sign_reward


def dqn(**settings: Any) -> DQN:
    torch.manual_seed(1)
    defaults = {"lr": 1e-2, "seed": 2, "target_update_freq": 5, "learning_starts": 32, "exploration_steps": 400}
    return DQN(MLP(SIGN_OBS, (16,)), SIGN_OBS, TWO, **{**defaults, "batch_size": 32, "buffer_size": 500, **settings})


def sac(**settings: Any) -> SAC:
    torch.manual_seed(1)
    network = MLP(SIGN_OBS, (16,), activation="relu")
    defaults = {"lr": 1e-2, "seed": 2, "learning_starts": 32, "batch_size": 32, "buffer_size": 500}
    return SAC(network, SIGN_OBS, UNIT, **{**defaults, "critic_hidden_sizes": (16, 16), **settings})


def test_exploration_falls_with_the_steps_learned_from() -> None:
    policy, rng = dqn(eps_start=1.0, eps_end=0.2, exploration_steps=128), np.random.default_rng(0)
    assert policy.epsilon == 1.0
    policy.learn(play(policy, rng, sign_reward))  # 64 steps
    assert policy.epsilon == pytest.approx(0.6)
    for _ in range(3):
        policy.learn(play(policy, rng, sign_reward))
    assert policy.epsilon == pytest.approx(0.2)


def test_epsilon_is_the_share_of_random_actions() -> None:
    policy = dqn(eps_start=0.3, eps_end=0.3)
    obs = np.zeros((20_000, 2), np.float32)
    best = policy.act(obs[:1], rng=None, deterministic=True).action_N[0]
    chosen = policy.act(obs, rng=np.random.default_rng(0), deterministic=False).action_N
    assert (chosen != best).mean() == pytest.approx(0.15, abs=0.01)


def test_nothing_is_learned_before_learning_starts() -> None:
    for policy, reward in ((dqn(learning_starts=100), sign_reward), (sac(learning_starts=100), near_reward)):
        before = policy.state_dict()["weights"]
        assert "loss" not in policy.learn(play(policy, np.random.default_rng(0), reward))
        assert same(before, policy.state_dict()["weights"])


def test_gradient_steps_follow_the_steps_collected() -> None:
    policy, rng = dqn(updates_per_step=0.02, learning_starts=1), np.random.default_rng(0)
    for _ in range(4):  # 64 steps each: 1.28 gradient steps, and the rest is owed
        policy.learn(play(policy, rng, sign_reward))
    assert policy.updates == 5
    policy.learn(play(policy, rng, sign_reward), repeat=7)
    assert policy.updates == 12


def test_the_target_follows_every_few_gradient_steps() -> None:
    policy, rng = dqn(target_update_freq=4, learning_starts=1), np.random.default_rng(0)
    first = policy.state_dict()["target"]
    policy.learn(play(policy, rng, sign_reward), repeat=3)
    assert same(policy.state_dict()["target"], first)
    policy.learn(play(policy, rng, sign_reward), repeat=1)
    assert same(policy.state_dict()["target"], policy.state_dict()["weights"])


def test_dqn_learns() -> None:
    policy, rng = dqn(discount_factor=0.5, updates_per_step=1.0), np.random.default_rng(3)
    for _ in range(8):
        policy.learn(play(policy, rng, sign_reward))
    assert play(policy, rng, sign_reward, episodes=64, deterministic=True).reward_T.mean() > 0.9


def test_sac_learns_and_its_entropy_goes_to_the_target() -> None:
    policy, rng = sac(discount_factor=0.0), np.random.default_rng(3)
    for _ in range(12):
        metrics = policy.learn(play(policy, rng, near_reward))
    assert play(policy, rng, near_reward, episodes=64, deterministic=True).reward_T.mean() > -0.05
    assert metrics["entropy"] == pytest.approx(-1.0, abs=0.8)


def test_sac_moves_its_targets_slowly() -> None:
    policy, rng = sac(tau=0.25, learning_starts=1), np.random.default_rng(0)
    old = policy.state_dict()["target"]
    policy.learn(play(policy, rng, near_reward), repeat=1)
    new, online = policy.state_dict()["target"], policy.state_dict()["weights"]
    for name, value in new.items():
        torch.testing.assert_close(value, 0.75 * old[name] + 0.25 * online[f"critic.{name}"])


def test_a_fixed_temperature_stays() -> None:
    policy, rng = sac(alpha=0.2, learning_starts=1), np.random.default_rng(0)
    assert policy.learn(play(policy, rng, near_reward), repeat=3)["alpha"] == pytest.approx(0.2)
    assert policy.learn(play(policy, rng, near_reward), repeat=1)["alpha"] == pytest.approx(0.2)


def test_sac_acts_at_random_before_learning_starts_and_within_the_box_always() -> None:
    policy, rng = sac(learning_starts=10), np.random.default_rng(0)
    obs = np.zeros((4_000, 2), np.float32)
    actions = policy.act(obs, rng=rng, deterministic=False).action_N
    assert np.abs(np.quantile(actions, [0.0, 0.25, 0.5, 0.75, 1.0]) - [-2, -1, 0, 1, 2]).max() < 0.15
    policy.learn(play(policy, rng, near_reward))
    for deterministic in (False, True):
        assert all(UNIT.contains(each) for each in policy.act(obs[:50], rng=rng, deterministic=deterministic).action_N)


@pytest.mark.parametrize(("make", "reward"), [(dqn, sign_reward), (sac, near_reward)])
def test_they_go_on_from_a_saved_state_to_the_same_numbers(make: Any, reward: Any, tmp_path: Path) -> None:
    policy, rng = make(), np.random.default_rng(4)
    for _ in range(9):  # the buffer of 500 has begun to forget
        policy.learn(play(policy, rng, reward), repeat=3)
    save_state(tmp_path / "state", policy.state_dict())
    other, rng_of_other = make(seed=99), copy.deepcopy(rng)
    other.load_state_dict(load_state(tmp_path / "state"))
    for _ in range(2):
        wanted = policy.learn(play(policy, rng, reward))
        assert other.learn(play(other, rng_of_other, reward)) == wanted
    assert same(policy.state_dict(), other.state_dict())


def test_settings_that_cannot_work_are_refused() -> None:
    with raises(ConfigError, "DQN"):
        DQN(MLP(SIGN_OBS), SIGN_OBS, UNIT, 1e-3)
    with pytest.raises(ConfigError):
        SAC(MLP(SIGN_OBS), SIGN_OBS, spaces.Box(0.0, np.inf, (1,)), 1e-3)
    with pytest.raises(ConfigError):
        dqn(reward_normalization=True)
    with pytest.raises(ConfigError):
        dqn(eps_start=0.1, eps_end=0.2)
