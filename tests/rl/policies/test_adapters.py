"""Policies of others behind the protocol: a plain module, tianshou 0.4's shape, and Stable-Baselines3."""

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from sharpen.errors import ConfigError
from sharpen.rl import ModulePolicy, Policy, SB3Policy, Tianshou04Policy
from tests.rl.internals import Batch, EpisodeBuffer

from .toys import SIGN_OBS, TWO, UNIT, near_reward, play, same, sign_reward


class Reinforce(nn.Module):
    """A policy as one writes it for tianshou 0.4: forward, process_fn, learn, and the base's update."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.optim = torch.optim.Adam(self.parameters(), lr=0.05)

    def forward(self, batch: Any, state: Any = None, **_: Any) -> Any:
        logits = self.net(torch.as_tensor(batch.obs))
        act = torch.distributions.Categorical(logits=logits).sample() if self.training else logits.argmax(-1)
        return Batch(act=act, state=state, logits=logits)

    def process_fn(self, batch: Any, buffer: Any, indices: Any) -> Any:
        batch.returns = np.asarray(batch.rew, np.float32).copy()
        for index in indices[::-1]:
            after = buffer.next(np.array([index]))[0]
            if after != index:
                batch.returns[index] += 0.5 * batch.returns[after]
        return batch

    def learn(self, batch: Any, batch_size: int, repeat: int) -> dict[str, Any]:
        losses = []
        for _ in range(repeat):
            for part in batch.split(batch_size, merge_last=True):
                log_prob = torch.log_softmax(self(part).logits, -1)[np.arange(len(part)), part.act]
                loss = -(log_prob * torch.as_tensor(part.returns - batch.returns.mean())).mean()
                self.optim.zero_grad()
                loss.backward()
                self.optim.step()
                losses.append(loss.item())
        return {"loss": losses}

    def update(self, sample_size: int, buffer: Any, **kwargs: Any) -> dict[str, Any]:
        batch, indices = buffer.sample(sample_size)
        return self.learn(self.process_fn(batch, buffer, indices), **kwargs)


def tianshou() -> Tianshou04Policy:
    torch.manual_seed(0)
    return Tianshou04Policy(Reinforce())


def test_a_tianshou_policy_learns() -> None:
    policy, rng = tianshou(), np.random.default_rng(0)
    np.random.seed(0)
    for _ in range(25):
        metrics = policy.learn(play(policy, rng, sign_reward), batch_size=32, repeat=2)
    assert set(metrics) == {"loss"}
    assert play(policy, rng, sign_reward, episodes=64, deterministic=True).reward_T.mean() > 0.9


def test_a_tianshou_policy_draws_from_the_given_stream() -> None:
    policy, obs = tianshou(), np.zeros((50, 2), np.float32)
    first, again, other = (
        policy.act(obs, rng=np.random.default_rng(seed), deterministic=False).action_N.tolist() for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_a_tianshou_policy_goes_on_from_its_state() -> None:
    policy, rng = tianshou(), np.random.default_rng(0)
    np.random.seed(0)
    policy.learn(play(policy, rng, sign_reward), batch_size=64, repeat=1)
    other = tianshou()
    other.load_state_dict(copy.deepcopy(policy.state_dict()))
    batch = play(policy, rng, sign_reward)
    for each in (policy, other):
        np.random.seed(1)
        each.learn(batch, batch_size=64, repeat=2)
    assert same(policy.state_dict(), other.state_dict())


def test_the_state_of_a_tianshou_policy_has_its_schedule_normaliser_and_counters() -> None:
    def make() -> Any:
        policy = tianshou()
        policy.policy.lr_scheduler = torch.optim.lr_scheduler.StepLR(policy.policy.optim, 1)
        policy.policy.ret_rms, policy.policy._iter = SimpleNamespace(mean=0.0, var=1.0, count=0), 0
        return policy

    policy, other = make(), make()
    policy.policy.optim.step()
    policy.policy.lr_scheduler.step()
    policy.policy.ret_rms, policy.policy._iter = SimpleNamespace(mean=np.float64(2.0), var=3.0, count=4), 5
    other.load_state_dict(copy.deepcopy(policy.state_dict()))
    assert vars(other.policy.ret_rms) == {"mean": 2.0, "var": 3.0, "count": 4}
    assert other.policy._iter == 5
    assert other.policy.optim.param_groups[0]["lr"] == pytest.approx(0.005)
    assert other.policy.lr_scheduler.last_epoch == 1


def test_the_buffer_knows_where_episodes_begin_and_end() -> None:
    buffer = EpisodeBuffer(play(tianshou(), np.random.default_rng(0), sign_reward, episodes=2, length=3))
    steps = np.arange(6)
    assert buffer.next(steps).tolist() == [1, 2, 2, 4, 5, 5]
    assert buffer.prev(steps).tolist() == [0, 0, 1, 3, 3, 4]
    assert buffer.done.tolist() == [False, False, True] * 2
    assert buffer.unfinished_index().tolist() == []
    assert (buffer.terminated | buffer.truncated).tolist() == buffer.done.tolist()
    assert len(buffer.rew) == len(buffer) == 6
    assert not hasattr(buffer, "update_weight")  # tianshou asks for it, to know a buffer with priorities
    assert len(buffer.sample(4)[0]) == 4
    batch, _ = buffer.sample(0)
    assert np.array_equal(batch.obs_next[:2], batch["obs"][1:3])


def test_a_batch_splits_into_all_its_rows() -> None:
    batch = Batch(obs={"a": np.arange(10)}, info=None)
    assert [part.obs.a.tolist() for part in batch.split(4, shuffle=False)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    merged = [part.obs.a.tolist() for part in batch.split(4, shuffle=True, merge_last=True)]
    assert [len(part) for part in merged] == [4, 6]
    assert sorted(row for part in merged for row in part) == list(range(10))


def test_a_plain_module_acts() -> None:
    module = nn.Linear(2, 2)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.0, 0.0], [100.0, 0.0]]))
        module.bias.zero_()
    policy, rng = ModulePolicy(module, TWO), np.random.default_rng(0)
    assert play(policy, rng, sign_reward, deterministic=True).reward_T.mean() == 1.0
    assert play(policy, rng, sign_reward).reward_T.mean() > 0.9
    assert policy.learn(play(policy, rng, sign_reward)) == {}


def test_a_module_is_in_eval_mode_where_it_must_be_certain() -> None:
    policy = ModulePolicy(nn.Sequential(nn.Linear(2, 50), nn.Dropout(0.9), nn.Linear(50, 1)), UNIT)
    obs = np.ones((40, 2), np.float32)
    assert len(set(policy.act(obs, deterministic=True).action_N[:, 0].tolist())) == 1
    assert len(set(policy.act(obs).action_N[:, 0].tolist())) > 1


def test_the_actions_of_a_module_stay_in_the_box() -> None:
    policy = ModulePolicy(nn.Linear(2, 1), UNIT)
    actions = policy.act(1e3 * np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)).action_N
    assert all(UNIT.contains(each) for each in actions)
    with pytest.raises(ConfigError):
        ModulePolicy(nn.Linear(2, 1), spaces.MultiBinary(2))


def test_a_module_may_bring_its_own_rule() -> None:
    seen = []
    policy = ModulePolicy(
        nn.Linear(2, 2), TWO, learn=lambda module, batch, rate: seen.append(rate) or {"n": len(batch)}
    )
    assert policy.learn(play(policy, np.random.default_rng(0), sign_reward), rate=3) == {"n": 64}
    assert seen == [3]


class FakeSB3:
    """What a Stable-Baselines3 off-policy model shows of itself."""

    def __init__(self) -> None:
        self.policy = nn.Linear(2, 2)
        self.policy.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.1)  # type: ignore[assignment]
        self.replay_buffer: Any = self
        self.batch_size = 16
        self.added: list[Any] = []
        self.trained: list[tuple[int, int]] = []

    def predict(self, obs: Any, deterministic: bool = False) -> tuple[Any, None]:
        logits = self.policy(torch.as_tensor(obs))
        drawn = logits.argmax(-1) if deterministic else torch.distributions.Categorical(logits=logits).sample()
        return drawn.numpy(), None

    def add(self, *transition: Any) -> None:
        self.added.append(transition)

    def train(self, gradient_steps: int, batch_size: int) -> None:
        self.trained.append((gradient_steps, batch_size))


def test_an_sb3_model_is_fed_transitions_that_tell_cut_from_terminated() -> None:
    model = FakeSB3()
    policy = SB3Policy(model)
    batch = play(policy, np.random.default_rng(0), sign_reward, episodes=2, length=2)
    assert policy.learn(batch) == {}
    assert model.trained == [(4, 16)]
    done = [bool(each[4][0]) for each in model.added]
    cut = [each[5][0]["TimeLimit.truncated"] for each in model.added]
    assert done == [False, True, False, True]
    assert cut == [False, False, False, True]
    assert np.array_equal(model.added[0][1][0], model.added[1][0][0])


def test_an_sb3_model_without_a_replay_buffer_only_acts() -> None:
    model = FakeSB3()
    model.replay_buffer = None
    policy = SB3Policy(model)
    with pytest.raises(ConfigError):
        policy.learn(play(policy, np.random.default_rng(0), sign_reward))
    with pytest.raises(ConfigError):
        SB3Policy(object())


def sb3_model(name: str, action_space: spaces.Space[Any], **settings: Any) -> Any:
    sb3 = pytest.importorskip("stable_baselines3", reason="pip install stable-baselines3")
    import gymnasium as gym

    class Toy(gym.Env[Any, Any]):
        observation_space = SIGN_OBS

        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            return np.zeros(2, np.float32), {}

    env = Toy()
    env.action_space = action_space
    given = {"learning_rate": 1e-2, "gamma": 0.5, "seed": 0, "device": "cpu", "buffer_size": 2000} | settings
    return getattr(sb3, name)("MlpPolicy", env, **given)


def test_a_real_sb3_dqn_is_trained_and_its_schedules_and_target_move_on() -> None:
    model = sb3_model("DQN", TWO, learning_starts=100, target_update_interval=64, exploration_fraction=0.5)
    policy, rng = SB3Policy(model, total_steps=64 * 8), np.random.default_rng(0)
    assert model.exploration_rate == 1.0
    assert policy.learn(play(policy, rng, sign_reward), repeat=60) == {}  # learning has not started
    before = copy.deepcopy(model.q_net_target.state_dict())
    for _ in range(7):
        metrics = policy.learn(play(policy, rng, sign_reward), repeat=40)
    assert {"loss", "n_updates"} <= set(metrics)
    assert model.exploration_rate == pytest.approx(0.05)
    assert not same(before, model.q_net_target.state_dict())
    assert play(policy, rng, sign_reward, episodes=64, deterministic=True).reward_T.mean() > 0.9


def test_a_real_sb3_sac_is_trained_in_a_box_of_any_size() -> None:
    model = sb3_model("SAC", UNIT, learning_starts=0, batch_size=64, policy_kwargs={"net_arch": [16]})
    policy, rng = SB3Policy(model), np.random.default_rng(0)
    for _ in range(6):
        policy.learn(play(policy, rng, near_reward), repeat=50)
    assert np.abs(model.replay_buffer.actions).max() <= 1.0  # as its own loop keeps them
    assert play(policy, rng, near_reward, episodes=64, deterministic=True).reward_T.mean() > -0.1
    other = SB3Policy(sb3_model("SAC", UNIT, policy_kwargs={"net_arch": [16]}))
    other.load_state_dict(copy.deepcopy(policy.state_dict()))
    assert same(other.state_dict(), policy.state_dict())


def test_exploring_sb3_models_draw_from_the_given_stream() -> None:
    policy, obs = SB3Policy(sb3_model("DQN", spaces.Discrete(50))), np.zeros((20, 2), np.float32)
    first, again, other = (
        policy.act(obs, rng=np.random.default_rng(seed), deterministic=False).action_N.tolist() for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.tianshou
def test_a_real_tianshou_policy_is_trained_and_goes_on_from_its_state() -> None:
    import gym  # which tianshou 0.4 brings
    from tianshou.policy import PPOPolicy

    class Net(nn.Module):
        def __init__(self, outputs: int) -> None:
            super().__init__()
            self.layer = nn.Linear(2, outputs)

        def forward(self, obs: Any, state: Any = None, info: Any = None) -> Any:
            out = self.layer(torch.as_tensor(obs))
            return (out.softmax(-1), state) if out.shape[-1] > 1 else out.squeeze(-1)

    def make() -> Tianshou04Policy:
        torch.manual_seed(0)
        actor, critic = Net(2), Net(1)
        optimiser = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=0.05)
        settings = {"reward_normalization": True, "deterministic_eval": True, "discount_factor": 0.5}
        settings["action_space"] = gym.spaces.Discrete(2)
        return Tianshou04Policy(PPOPolicy(actor, critic, optimiser, torch.distributions.Categorical, **settings))

    policy, rng = make(), np.random.default_rng(0)
    np.random.seed(0)
    for _ in range(12):
        policy.learn(play(policy, rng, sign_reward), batch_size=32, repeat=4)
    assert play(policy, rng, sign_reward, episodes=64, deterministic=True).reward_T.mean() > 0.9
    other = make()
    other.load_state_dict(copy.deepcopy(policy.state_dict()))
    batch = play(policy, rng, sign_reward)
    for each in (policy, other):
        np.random.seed(1)
        each.learn(batch, batch_size=32, repeat=2)
    assert same(policy.state_dict(), other.state_dict())


@pytest.mark.parametrize("policy", [tianshou(), ModulePolicy(nn.Linear(2, 2), TWO), SB3Policy(FakeSB3())])
def test_every_adapter_is_a_policy(policy: Any) -> None:
    assert isinstance(policy, Policy)
    state = copy.deepcopy(policy.state_dict())
    policy.load_state_dict(state)
    assert same(policy.state_dict(), state)
