"""PPO: acting, one update by hand, learning a toy, and going on from a saved state."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from safetensors.torch import save_file

from sharpen.callbacks import load_state, save_state
from sharpen.errors import ConfigError
from sharpen.rl import MLP, PPO, EpisodeBatch
from tests.errors import raises

from .toys import SIGN_OBS, TWO, UNIT, near_reward, play, same, sign_reward


def made(action_space: spaces.Space[Any] = TWO, **settings: Any) -> PPO:
    torch.manual_seed(1)
    return PPO(MLP(SIGN_OBS, (16,)), SIGN_OBS, action_space, **{"lr": 1e-2, "seed": 2, **settings})


def three_steps() -> EpisodeBatch:
    """One episode that terminates after two steps, one that is cut after one."""
    obs = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], np.float32)
    return EpisodeBatch(
        obs_T=obs,
        action_T=np.array([0, 1, 1]),
        reward_T=np.array([1.0, 2.0, 3.0]),
        terminated_T=np.array([False, True, False]),
        truncated_T=np.array([False, False, True]),
        last_obs_E=obs[:2],
        lengths_E=np.array([2, 1]),
        extras={},
    )


@pytest.mark.parametrize("space", [TWO, spaces.Discrete(3, start=5), UNIT, spaces.Box(0.0, np.inf, (), np.float32)])
def test_actions_are_in_the_space(space: spaces.Space[Any]) -> None:
    policy, rng = made(space), np.random.default_rng(0)
    obs = rng.uniform(-1, 1, (32, 2)).astype(np.float32)
    for deterministic in (False, True):
        actions = policy.act(obs, rng=rng, deterministic=deterministic).action_N
        assert all(space.contains(each) for each in actions), (space, actions)


def test_numpy_and_torch_give_the_same_numbers() -> None:
    policy, obs = made(), np.random.default_rng(0).normal(size=(7, 2)).astype(np.float32)
    assert policy._numpy_actor is not None
    with torch.no_grad():
        wanted = policy.module.actor(torch.from_numpy(obs)).numpy()
    np.testing.assert_allclose(policy._numpy_actor(obs), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_acts_with_its_own_weights(copied: Any) -> None:
    policy = copied(made())
    with torch.no_grad():
        policy.module.actor.out.bias.copy_(torch.tensor([0.0, 100.0]))
    obs = np.zeros((3, 2), np.float32)
    assert policy.act(obs, rng=np.random.default_rng(0), deterministic=False).action_N.tolist() == [1, 1, 1]


def test_sampled_actions_follow_the_probabilities() -> None:
    policy = made(spaces.Discrete(3))
    with torch.no_grad():
        policy.module.actor.out.weight.zero_()
        policy.module.actor.out.bias.copy_(torch.tensor([0.2, 0.5, 0.3]).log())
    obs = np.zeros((20_000, 2), np.float32)
    actions = policy.act(obs, rng=np.random.default_rng(0), deterministic=False).action_N
    assert np.bincount(actions) / 20_000 == pytest.approx([0.2, 0.5, 0.3], abs=0.012)


def test_evaluation_is_certain_unless_told_otherwise() -> None:
    obs = np.zeros((200, 2), np.float32)
    certain = made().act(obs, rng=np.random.default_rng(0), deterministic=True).action_N
    assert len(set(certain.tolist())) == 1
    drawn = made(deterministic_eval=False).act(obs, rng=np.random.default_rng(0), deterministic=True).action_N
    assert set(drawn.tolist()) == {0, 1}


def test_an_episode_that_was_cut_counts_the_value_after_it() -> None:
    policy = made(reward_normalization=False, discount_factor=0.9, gae_lambda=1.0)
    batch = three_steps()
    with torch.no_grad():
        after_cut = policy.module.value(torch.from_numpy(batch.last_obs_E[1:])).item()
    samples, _ = policy._samples(batch)
    assert samples.returns.tolist() == pytest.approx([1 + 0.9 * 2, 2.0, 3 + 0.9 * after_cut], rel=1e-5)
    assert (samples.advantage + samples.value).tolist() == pytest.approx(samples.returns.tolist(), rel=1e-5)


def test_reward_normalisation_divides_returns_by_their_running_deviation() -> None:
    policy = made(discount_factor=1.0, gae_lambda=1.0)
    batch = three_steps()
    first, _ = policy._samples(batch)  # nothing was seen before: in units of 1
    assert first.returns.tolist()[:2] == pytest.approx([3.0, 2.0], rel=1e-5)
    assert policy._returns is not None
    deviation = policy._returns.std
    assert deviation == pytest.approx(np.std(first.returns.numpy()), rel=1e-4)
    again, _ = policy._samples(batch)
    assert again.returns.tolist()[:2] == pytest.approx([3.0 / deviation, 2.0 / deviation], rel=1e-5)


def test_one_update_is_the_stated_loss() -> None:
    policy = made(reward_normalization=False, ent_coef=0.1, vf_coef=0.7, value_clip=False)
    samples, _ = policy._samples(three_steps())
    said, value = policy.module(samples.obs)
    probability = torch.softmax(said, -1)
    advantage = (samples.advantage - samples.advantage.mean()) / (samples.advantage.std() + 1e-8)
    entropy = -(probability * probability.log()).sum(-1).mean()
    wanted = -advantage.mean() + 0.7 * (value - samples.returns).square().mean() - 0.1 * entropy  # all ratios are 1
    metrics = policy.learn(three_steps(), repeat=1)
    assert metrics["loss"] == pytest.approx(wanted.item(), abs=1e-5)
    assert metrics["loss/ent"] == pytest.approx(entropy.item(), abs=1e-5)


@pytest.mark.parametrize(("size", "sizes"), [(10, [10]), (4, [4, 6]), (5, [5, 5]), (3, [3, 3, 4]), (64, [10])])
def test_minibatches_hold_every_step_once(size: int, sizes: list[int]) -> None:
    policy = made()
    batch = play(policy, np.random.default_rng(0), sign_reward, episodes=5, length=2)
    samples, _ = policy._samples(batch)
    parts = list(policy._minibatches(samples, size))
    assert [len(part) for part in parts] == sizes
    assert sorted(torch.cat(parts).tolist()) == list(range(10))


def learned(policy: PPO, reward: Any, *, iterations: int) -> float:
    rng = np.random.default_rng(3)
    for _ in range(iterations):
        policy.learn(play(policy, rng, reward), repeat=4, batch_size=32)
    return float(play(policy, rng, reward, episodes=64, deterministic=True).reward_T.mean())


def test_it_learns_discrete_actions() -> None:
    assert learned(made(discount_factor=0.5), sign_reward, iterations=25) > 0.9


def test_it_learns_continuous_actions() -> None:
    before = learned(made(UNIT, discount_factor=0.0), near_reward, iterations=0)
    after = learned(made(UNIT, discount_factor=0.0), near_reward, iterations=40)
    assert before < -0.25
    assert after > -0.05


@pytest.mark.parametrize(("space", "reward"), [(TWO, sign_reward), (UNIT, near_reward)])
def test_it_goes_on_from_a_saved_state_to_the_same_numbers(
    space: spaces.Space[Any], reward: Any, tmp_path: Path
) -> None:
    def schedule(optimiser: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.1, total_iters=4)

    policy, rng = made(space, scheduler=schedule), np.random.default_rng(4)
    for _ in range(2):
        policy.learn(play(policy, rng, reward), repeat=2, batch_size=20)
    save_state(tmp_path / "state", policy.state_dict())
    other, rng_of_other = made(space, scheduler=schedule, seed=99), copy.deepcopy(rng)
    other.load_state_dict(load_state(tmp_path / "state"))
    for _ in range(2):
        wanted = policy.learn(play(policy, rng, reward), repeat=2, batch_size=20)
        assert other.learn(play(other, rng_of_other, reward), repeat=2, batch_size=20) == wanted
    assert same(policy.state_dict(), other.state_dict())


def test_a_state_is_not_changed_by_later_updates() -> None:
    policy, rng = made(), np.random.default_rng(0)
    policy.learn(play(policy, rng, sign_reward))
    state = policy.state_dict()
    kept = copy.deepcopy(state)
    policy.learn(play(policy, rng, sign_reward))
    assert same(state, kept)


def test_weights_come_from_a_checkpoint_or_from_safetensors(tmp_path: Path) -> None:
    policy = made()
    obs = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    with torch.no_grad():
        policy.module.actor.out.weight.mul_(1000)
    wanted = policy.act(obs, rng=None, deterministic=True).action_N.tolist()
    save_state(tmp_path / "run.pth", {"vessel": {"policy": policy.state_dict()}, "current_iter": 3})
    save_state(tmp_path / "policy.pth", policy.state_dict())
    save_file(policy.state_dict()["weights"], tmp_path / "plain.safetensors")
    for name in ("run.pth", "policy.pth", "plain.safetensors"):
        other = made(weight_file=tmp_path / name)
        assert other.act(obs, rng=None, deterministic=True).action_N.tolist() == wanted


def test_a_weight_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    torch.save(made().module.state_dict(), tmp_path / "pickled.pth")
    with raises(ConfigError, "pickled.pth"):
        made(weight_file=tmp_path / "pickled.pth")
    with pytest.raises(ConfigError):
        made(weight_file=tmp_path / "nowhere")
    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    with raises(ConfigError, "actor"):
        made(weight_file=tmp_path / "other")
    save_state(tmp_path / "empty", {"current_iter": 3})
    with pytest.raises(ConfigError):
        made(weight_file=tmp_path / "empty")


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError):
        made(spaces.MultiBinary(3))
    with raises(ConfigError, "max_batch_size", 0):
        made(max_batch_size=0)
    with raises(ConfigError, "output_dim"):
        PPO(torch.nn.Linear(2, 3), SIGN_OBS, TWO, 1e-3)
    with raises(ConfigError, "repeat", 0):
        made().learn(three_steps(), repeat=0)
    with raises(ConfigError, "PPO.learn", "epochs", "batch_size"):
        made().learn(three_steps(), epochs=3)


def test_dict_observations_and_networks_of_ones_own() -> None:
    space = spaces.Dict({"a": SIGN_OBS, "b": spaces.Discrete(3)})
    policy = PPO(MLP(space, (8,)), space, TWO, 1e-2, seed=0)
    obs = {"a": np.zeros((4, 2), np.float32), "b": np.array([0, 1, 2, 0])}
    batch = EpisodeBatch(
        obs_T=obs,
        action_T=policy.act(obs, rng=np.random.default_rng(0), deterministic=False).action_N,
        reward_T=np.ones(4),
        terminated_T=np.array([False, True, False, False]),
        truncated_T=np.array([False, False, False, True]),
        last_obs_E={"a": np.zeros((2, 2), np.float32), "b": np.array([1, 1])},
        lengths_E=np.array([2, 2]),
        extras={},
    )
    before = policy.state_dict()["weights"]
    assert np.isfinite(policy.learn(batch, repeat=2, batch_size=2)["loss"])
    assert not same(before, policy.state_dict()["weights"])


def test_learning_leaves_the_number_of_threads_as_it_was() -> None:
    policy, before = made(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        policy.learn(play(policy, np.random.default_rng(0), sign_reward), repeat=1)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
