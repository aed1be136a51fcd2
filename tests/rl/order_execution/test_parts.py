"""Interpreters, rewards, networks and data files of order execution."""

import copy
import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.rl.order_execution import (
    PPO,
    AllOne,
    CategoricalActionInterpreter,
    CurrentStepStateInterpreter,
    FileProcessedDataProvider,
    FullHistoryStateInterpreter,
    PAPenaltyReward,
    PPOReward,
    Recurrent,
    SingleAssetOrderExecutionSimple as Simulator,
    TwapRelativeActionInterpreter,
    load_orders,
)
from tests.errors import raises
from tests.rl.internals import Ticks, open_stock, save_orders, stack, write_stock

from .conftest import at, order


def full_history(line: Path) -> FullHistoryStateInterpreter:
    return FullHistoryStateInterpreter(3, 6, 2, FileProcessedDataProvider(line, ["$a", "$b"]))


def test_the_full_history_shows_the_past_and_hides_the_future(line: Path) -> None:
    simulator, interpreter = Simulator(order(), line, ticks_per_step=2), full_history(line)
    first = interpreter(simulator.get_state())
    assert not first["data_processed"].any()
    assert first["position_history"].tolist() == [30, 0, 0]
    simulator.step(12.0)
    obs = interpreter(simulator.get_state())
    assert obs["data_processed"].tolist() == [[1, -1], [2, -2], [0, 0], [0, 0], [0, 0], [0, 0]]
    assert (obs["cur_tick"], obs["cur_step"], obs["num_step"]) == (2, 1, 3)
    assert (obs["acquiring"], obs["target"], obs["position"]) == (0, 30.0, 18.0)
    assert obs["position_history"].tolist() == [30, 18, 0]
    simulator.step(0.0)
    simulator.step(18.0)
    last = interpreter(simulator.get_state())  # after the end there is one more observation
    assert (last["cur_tick"], last["cur_step"]) == (5, 2)
    assert last["data_processed"][-1].tolist() == [6, -6]


def test_yesterday_is_the_trading_day_before(tmp_path: Path) -> None:
    (tmp_path / "feature").mkdir()
    index = np.array(["2024-03-01T10:00", "2024-03-04T10:00"], dtype="M8[s]")
    write_stock(tmp_path / "feature" / "X.npz", Ticks(index, {"$a": np.array([7.0, 8.0])}))
    provider = FileProcessedDataProvider(tmp_path, ["$a"])
    monday = provider.get_data("X", dt.date(2024, 3, 4), 1, index[1:])
    assert (monday.today.tolist(), monday.yesterday.tolist()) == ([[8.0]], [[7.0]])
    friday = provider.get_data("X", dt.date(2024, 3, 1), 1, index[:1])
    assert friday.yesterday.tolist() == [[0.0]]
    with raises(InvalidInputError, 2, 1):
        provider.get_data("X", dt.date(2024, 3, 1), 2, index[:1])
    with raises(InvalidInputError, 1, 2):
        provider.get_data("X", dt.date(2024, 3, 1), 1, index)


def test_a_provider_may_be_a_component_spec(line: Path) -> None:
    path = "sharpen.rl.order_execution.data.FileProcessedDataProvider"
    spec = {"type": path, "data_dir": str(line), "feature_columns_today": ["$a", "$b"]}
    interpreter = FullHistoryStateInterpreter(3, 6, 2, spec)
    assert interpreter(Simulator(order(), line, ticks_per_step=2).get_state())["position"] == 30.0


def test_the_current_step(line: Path) -> None:
    simulator, interpreter = Simulator(order(direction=1), line, ticks_per_step=2), CurrentStepStateInterpreter(3)
    simulator.step(12.0)
    obs = interpreter(simulator.get_state())
    assert {name: float(value) for name, value in obs.items()} == {
        "acquiring": 1,
        "cur_step": 1,
        "num_step": 3,
        "target": 30,
        "position": 18,
    }
    simulator.step(6.0)
    with raises(InvalidInputError, 2, "max_step", 1):
        CurrentStepStateInterpreter(1)(simulator.get_state())


def test_categorical_actions_are_shares_of_the_order(line: Path) -> None:
    simulator = Simulator(order(), line, ticks_per_step=2)
    interpreter = CategoricalActionInterpreter(4, max_step=3)
    assert interpreter.action_space.n == 5
    assert [interpreter(simulator.get_state(), action) for action in range(5)] == [0, 7.5, 15, 22.5, 30]
    simulator.step(20.0)
    assert interpreter(simulator.get_state(), 3) == 10.0
    simulator.step(0.0)
    assert interpreter(simulator.get_state(), 0) == 10.0  # the last step takes what is left
    assert CategoricalActionInterpreter([0.0, 0.5]).action_space.n == 2
    with raises(ConfigError, 0):
        CategoricalActionInterpreter(0)


@pytest.mark.parametrize("window", [("00:00:00", "23:59:59"), ("09:31:00", "09:35:00"), ("09:31:00", "09:33:30")])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_one_means_twap_in_every_window(line: Path, window: tuple[str, str], size: int) -> None:
    simulator = Simulator(order(start=window[0], end=window[1]), line, ticks_per_step=size)
    interpreter = TwapRelativeActionInterpreter()
    while not simulator.done():
        simulator.step(interpreter(simulator.get_state(), np.float32(1.0)))
    assert simulator.metrics is not None
    assert abs(simulator.metrics["pa"]) < 2e-3
    assert len(set(np.round(simulator.history_exec["deal_amount"], 9))) == 1


def test_twap_relative_actions_are_multiples_of_an_even_split(line: Path) -> None:
    simulator, interpreter = Simulator(order(), line, ticks_per_step=2), TwapRelativeActionInterpreter()
    assert interpreter(simulator.get_state(), np.float32(1.5)) == 15.0
    assert interpreter(simulator.get_state(), np.float32(99.0)) == 30.0


def test_the_reward_is_the_advantage_less_a_penalty_for_haste(line: Path) -> None:
    simulator, reward = Simulator(order(), line, ticks_per_step=2), PAPenaltyReward(penalty=100.0, scale=0.5)
    simulator.step(12.0)
    share, pa = 0.4, (15 / 35 - 1) * 10_000
    assert reward(simulator.get_state()) == pytest.approx(0.5 * (pa * share - 100 * 2 * 0.2**2))
    simulator.step(0.0)
    assert reward(simulator.get_state()) == 0.0
    simulator.step(0.0)  # the rest goes at the last tick, and that counts
    assert reward(simulator.get_state()) == pytest.approx(0.5 * ((60 / 35 - 1) * 10_000 * 0.6 - 100 * 0.6**2))


def test_the_parts_of_the_reward_sum_to_the_advantage_of_the_order(line: Path) -> None:
    simulator, reward = Simulator(order(direction=1), line, ticks_per_step=2), PAPenaltyReward(penalty=0.0)
    total = 0.0
    for amount in (5.0, 10.0, 15.0):
        simulator.step(amount)
        total += reward(simulator.get_state())
    assert simulator.metrics is not None
    assert total == pytest.approx(simulator.metrics["pa"])


@pytest.mark.parametrize(
    ("direction", "amounts", "wanted"),
    [(0, (30.0,), -1.0), (1, (30.0,), 1.0), (0, (0.0, 0.0, 30.0), 1.0), (0, (9.0, 9.0, 12.0), 0.0)],
)
def test_the_ppo_reward_comes_at_the_end(line: Path, direction: int, amounts: tuple[float, ...], wanted: float) -> None:
    simulator, reward = Simulator(order(direction=direction), line, ticks_per_step=2), PPOReward(3, 0, 5)
    rewards = []
    for amount in amounts:
        simulator.step(amount)
        rewards.append(reward(simulator.get_state()))
    assert rewards == [0.0] * (len(amounts) - 1) + [wanted]


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru"])
def test_the_recurrent_network_acts_and_does_not_look_ahead(line: Path, kind: Any) -> None:
    import torch

    torch.manual_seed(0)
    interpreter, action = full_history(line), CategoricalActionInterpreter(4)
    network = Recurrent(interpreter.observation_space, hidden_dim=8, output_dim=4, rnn_type=kind)
    policy = PPO(network, interpreter.observation_space, action.action_space, 1e-3)
    simulator, seen = Simulator(order(), line, ticks_per_step=2), []
    while not simulator.done():
        seen.append(interpreter(simulator.get_state()))
        simulator.step(5.0 if len(seen) < 3 else simulator.position)
    batch = stack(seen)
    actions = policy.act(batch, rng=np.random.default_rng(0), deterministic=False).action_N
    assert all(action.action_space.contains(each) for each in actions)
    changed = copy.deepcopy(batch)
    for row, tick in enumerate(batch["cur_tick"]):
        changed["data_processed"][row, tick:] = 99.0
    tensors, altered = ({k: torch.as_tensor(v) for k, v in each.items()} for each in (batch, changed))
    torch.testing.assert_close(network(tensors), network(altered))
    alone = network({name: value[1:2] for name, value in tensors.items()})
    torch.testing.assert_close(alone, network(tensors)[1:2])


def test_all_one_acts_in_the_space() -> None:
    space = TwapRelativeActionInterpreter().action_space
    policy = AllOne(space, space)
    actions = policy.act({"a": np.zeros((3, 2))}).action_N
    assert actions.tolist() == [1.0, 1.0, 1.0]
    assert actions.dtype == np.float32
    discrete = CategoricalActionInterpreter(4).action_space
    assert AllOne(space, discrete, fill_value=2).act(np.zeros((2, 1))).action_N.tolist() == [2, 2]


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_a_file_comes_back_as_it_was_written(tmp_path: Path, suffix: str) -> None:
    index = np.array(["2024-03-01T10:00:30", "2024-03-04T10:00:00"], dtype="M8[s]")
    write_stock(tmp_path / f"X{suffix}", Ticks(index, {"$a": np.array([1 / 3, 1e-9])}))
    read = open_stock(tmp_path, "X").day(dt.date(2024, 3, 1))
    assert read.index.tolist() == index[:1].tolist()
    assert read["$a"].tolist() == [1 / 3]


def test_a_pickle_or_a_damaged_file_is_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "X.npz", datetime=np.array([object()], dtype=object))
    (tmp_path / "Y.npz").write_bytes((tmp_path / "X.npz").read_bytes()[:100])
    for name in ("X", "Y"):
        with pytest.raises(InvalidInputError):
            open_stock(tmp_path, name)


@pytest.mark.parametrize(
    "text", ["", "datetime,$a\n", "$a\n1\n", "datetime,$a\n2024-01-01,x\n", "datetime,$a\n1,2,3\n"]
)
def test_a_table_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "X.csv").write_text(text)
    with raises(InvalidInputError, "X.csv"):
        open_stock(tmp_path, "X")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    import os

    index = np.array(["2024-03-01"], dtype="M8[s]")
    for number in (1.0, 2.0):
        write_stock(tmp_path / "X.npz", Ticks(index, {"$a": np.array([number])}))
        os.utime(tmp_path / "X.npz", ns=(0, int(number)))
        assert open_stock(tmp_path, "X").day(dt.date(2024, 3, 1))["$a"].tolist() == [number]


def test_orders_are_read_from_a_file_or_a_folder(tmp_path: Path) -> None:
    save_orders(tmp_path / "a.csv", [order(amount=2.5, direction=1)])
    (tmp_path / "b.csv").write_text("instrument,datetime,amount,order_type\nY,2024-03-05,0,0\nY,2024-03-06,7,0\n")
    orders = load_orders(tmp_path, dt.time(9, 31), dt.time(14, 58))
    assert [(each.stock_id, each.amount, int(each.direction)) for each in orders] == [("X", 2.5, 1), ("Y", 7.0, 0)]
    assert (orders[0].start_time, orders[0].end_time) == (at("09:31:00"), at("14:58:00"))
    assert load_orders(tmp_path, pd.Timestamp("9:31"), pd.Timestamp("2020-01-01 14:58")) == orders
    assert load_orders(tmp_path, dt.datetime(2020, 1, 1, 9, 31), end_time=dt.time(14, 58)) == orders
    assert len(load_orders(tmp_path / "a.csv")) == 1
    with pytest.raises(InvalidInputError):
        load_orders(tmp_path / "none")
    (tmp_path / "b.csv").write_text("instrument,datetime,amount,order_type\nY,2024-03-05,x,0\n")
    with raises(InvalidInputError, 2, "b.csv"):
        load_orders(tmp_path)
    (tmp_path / "b.csv").write_text("instrument,datetime\n")
    with raises(InvalidInputError, "amount"):
        load_orders(tmp_path)
