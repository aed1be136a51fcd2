"""The replay buffer: a ring, sampled uniformly, saved with its cursor."""

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from sharpen.callbacks import load_state, save_state
from sharpen.errors import ConfigError
from sharpen.rl import EpisodeBatch, ReplayBuffer
from tests.errors import raises
from tests.rl.internals import transitions


def numbered(start: int, count: int) -> dict[str, Any]:
    number = np.arange(start, start + count)
    return {
        "obs": {"a": number[:, None].astype(np.float32)},
        "action": number,
        "reward": number.astype(np.float32),
        "discount": np.ones(count, np.float32),
        "next_obs": {"a": number[:, None].astype(np.float32) + 1},
    }


def test_transitions_bootstrap_over_a_cut_and_not_over_a_terminal_step() -> None:
    obs = np.arange(4, dtype=np.float32)[:, None]
    batch = EpisodeBatch(
        obs_T=obs,
        action_T=np.zeros(4, np.int64),
        reward_T=np.array([1.0, 2.0, 4.0, 8.0]),
        terminated_T=np.array([False, True, False, False]),
        truncated_T=np.array([False, False, False, True]),
        last_obs_E=np.array([[10.0], [20.0]], np.float32),
        lengths_E=np.array([2, 2]),
        extras={},
    )
    one = transitions(batch, discount=0.5)
    assert one["reward"].tolist() == [1, 2, 4, 8]
    assert one["discount"].tolist() == [0.5, 0.0, 0.5, 0.5]
    assert one["next_obs"][:, 0].tolist() == [1, 10, 3, 20]
    two = transitions(batch, discount=0.5, steps=2)
    assert two["reward"].tolist() == [2, 2, 8, 8]
    assert two["discount"].tolist() == [0.0, 0.0, 0.25, 0.5]
    assert two["next_obs"][:, 0].tolist() == [10, 10, 20, 20]


@settings(deadline=None)  # a busy machine is no failure
@given(st.integers(1, 12), st.lists(st.integers(1, 20), min_size=1, max_size=6), st.data())
def test_it_holds_the_last_ones_also_after_a_restart(capacity: int, sizes: list[int], data: st.DataObject) -> None:
    buffer, start = ReplayBuffer(capacity), 0
    for size in sizes:
        buffer.add(numbered(start, size))
        start += size
        if data.draw(st.booleans()):
            again = ReplayBuffer(capacity)
            again.load_state_dict(buffer.state_dict())
            buffer = again
    assert len(buffer) == min(start, capacity)
    drawn = buffer.sample(np.random.default_rng(0), 400)
    assert set(drawn["action"].tolist()) == set(range(max(0, start - capacity), start))
    assert (drawn["next_obs"]["a"] == drawn["obs"]["a"] + 1).all()


def test_a_saved_buffer_draws_the_same(tmp_path: Path) -> None:
    buffer = ReplayBuffer(8)
    buffer.add(numbered(0, 11))
    save_state(tmp_path / "buffer", buffer.state_dict())
    again = ReplayBuffer(8)
    again.load_state_dict(load_state(tmp_path / "buffer"))
    for each in (buffer, again):
        each.add(numbered(11, 3))
    left, right = (each.sample(np.random.default_rng(5), 20)["action"].tolist() for each in (buffer, again))
    assert left == right


def test_a_buffer_of_another_size_is_refused() -> None:
    with raises(ConfigError, 8, 9):
        ReplayBuffer(9).load_state_dict(ReplayBuffer(8).state_dict())
    with raises(ConfigError, 0):
        ReplayBuffer(0)
