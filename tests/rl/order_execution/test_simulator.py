"""The simulator against prices worked out by hand."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from sharpen.errors import ConfigError, InvalidInputError
from sharpen.rl.order_execution import (
    Order,
    SingleAssetOrderExecutionSimple as Simulator,
    oracle_advantage,
    price_advantage,
)
from tests.errors import raises

from .conftest import at, order


def test_the_first_step_trades_evenly_over_its_ticks(line: Path) -> None:
    simulator = Simulator(order(), line, ticks_per_step=2)
    assert simulator.twap_price == 35.0
    assert simulator.get_state().cur_time == at("09:30:00")
    assert len(simulator.get_state().history_exec) == 0
    simulator.step(12.0)
    state = simulator.get_state()
    assert (state.position, state.cur_step, state.cur_time) == (18.0, 1, at("09:32:00"))
    assert state.history_exec["deal_amount"].tolist() == [6.0, 6.0]
    assert state.history_exec["position"].tolist() == [24.0, 18.0]
    assert state.history_exec["trade_value"].tolist() == [60.0, 120.0]
    step = state.history_steps.row(-1)
    assert (step["market_price"], step["market_volume"], step["trade_price"]) == (15.0, 200.0, 15.0)
    assert step["ffr"] == pytest.approx(0.4)
    assert step["pa"] == pytest.approx((15 / 35 - 1) * 10_000)
    assert step["datetime"] == np.datetime64(at("09:30:00"))
    assert state.metrics is None
    assert not simulator.done()


def test_the_metrics_of_a_whole_order(line: Path) -> None:
    simulator = Simulator(order(direction=1), line, ticks_per_step=2)
    for amount in (12.0, 0.0, 18.0):
        simulator.step(amount)
    metrics = simulator.get_state().metrics
    assert simulator.done()
    assert metrics is not None
    paid = (6 * 10 + 6 * 20 + 9 * 50 + 9 * 60) / 30
    assert metrics["trade_price"] == pytest.approx(paid)
    assert metrics["pa"] == pytest.approx((1 - paid / 35) * 10_000)
    assert (metrics["ffr"], metrics["position"], metrics["amount"]) == (1.0, 0.0, 30.0)
    assert (metrics["stock_id"], metrics["direction"]) == ("X", 1)
    assert simulator.history_steps["pa"].tolist()[1] == 0.0  # nothing was traded, so there is no price to compare


def test_what_is_left_is_traded_at_the_last_tick(line: Path) -> None:
    simulator = Simulator(order(), line, ticks_per_step=3)
    simulator.step(6.0)
    simulator.step(3.0)
    assert simulator.history_exec["deal_amount"].tolist() == [2, 2, 2, 1, 1, 22]
    assert simulator.metrics is not None
    assert simulator.metrics["ffr"] == 1.0


def test_the_volume_of_the_market_bounds_every_tick(line: Path) -> None:
    simulator = Simulator(order(amount=300.0), line, ticks_per_step=3, vol_threshold=0.2)
    simulator.step(300.0)
    assert simulator.history_exec["deal_amount"].tolist() == [20.0] * 3
    simulator.step(0.0)
    assert simulator.history_exec["deal_amount"].tolist() == [20.0] * 3 + [0.0, 0.0, 20.0]
    assert simulator.done()
    assert simulator.metrics is not None
    assert simulator.metrics["ffr"] == pytest.approx(80 / 300)


def test_an_order_that_is_filled_early_is_done(line: Path) -> None:
    simulator = Simulator(order(amount=1.0), line, ticks_per_step=2)
    simulator.step(1.0)
    assert simulator.done()
    with pytest.raises(InvalidInputError):
        simulator.step(0.0)


@pytest.mark.parametrize("amount", [2.0, -1.0, float("nan")])
def test_an_impossible_amount_is_refused_and_changes_nothing(line: Path, amount: float) -> None:
    simulator = Simulator(order(amount=1.0), line, ticks_per_step=2)
    with raises(InvalidInputError, 1.0):
        simulator.step(amount)
    assert (simulator.position, simulator.cur_step, len(simulator.history_exec)) == (1.0, 0, 0)


def test_steps_begin_at_multiples_of_the_day(line: Path) -> None:
    simulator = Simulator(order(start="09:31:00", end="09:35:00"), line, ticks_per_step=3)
    assert [str(each)[-8:] for each in simulator.ticks_for_order] == ["09:31:00", "09:32:00", "09:33:00", "09:34:00"]
    simulator.step(10.0)
    assert simulator.cur_time == at("09:33:00")
    simulator.step(20.0)
    assert simulator.history_exec["deal_amount"].tolist() == [5, 5, 10, 10]
    assert simulator.done()
    assert simulator.cur_time == at("09:35:00")


def test_rows_may_stand_for_several_ticks(line: Path) -> None:
    simulator = Simulator(order(), line, data_granularity=5, ticks_per_step=10)
    simulator.step(15.0)
    assert len(simulator.history_exec) == 2


def test_a_state_is_not_changed_by_later_steps(line: Path) -> None:
    simulator = Simulator(order(), line, ticks_per_step=2)
    simulator.step(3.0)
    state = simulator.get_state()
    simulator.step(4.0)
    assert state.history_exec["deal_amount"].tolist() == [1.5, 1.5]
    assert (state.position, len(state.history_steps)) == (27.0, 1)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.integers(0, 1))
def test_nobody_beats_the_oracle(line: Path, shares: list[float], direction: int) -> None:
    simulator = Simulator(order(direction=direction), line, ticks_per_step=2)
    best = oracle_advantage(simulator)
    for share in shares:
        if not simulator.done():
            simulator.step(share * simulator.position)
    assert simulator.metrics is not None
    assert simulator.metrics["pa"] <= best + 1e-6


def test_the_oracle_is_reached_by_trading_at_the_best_step(line: Path) -> None:
    simulator = Simulator(order(direction=1), line, ticks_per_step=2)
    best = oracle_advantage(simulator)
    simulator.step(30.0)
    assert simulator.metrics is not None
    assert simulator.metrics["pa"] == pytest.approx(best)
    assert best == pytest.approx((1 - 15 / 35) * 10_000)


def test_price_advantage() -> None:
    assert price_advantage(101.0, 100.0, 0) == pytest.approx(100.0)
    assert price_advantage(101.0, 100.0, 1) == pytest.approx(-100.0)
    assert price_advantage(0.0, 100.0, 0) == 0.0
    assert price_advantage(5.0, 0.0, 0) == 0.0
    assert price_advantage(np.array([99.0, np.nan]), 100.0, 1).tolist() == pytest.approx([100.0, 0.0])


def test_bad_input_is_named(line: Path) -> None:
    with raises(InvalidInputError, "2024-03-05", 1, "2024-03-04"):
        Simulator(Order("X", 1.0, 0, at("00:00:00") + dt.timedelta(1), at("23:00:00") + dt.timedelta(1)), line)
    with raises(InvalidInputError, "Y.npz", "Y.csv"):
        Simulator(Order("Y", 1.0, 0, at("00:00:00"), at("23:00:00")), line)
    with pytest.raises(InvalidInputError):
        Simulator(order(start="08:00:00", end="09:00:00"), line)
    with raises(InvalidInputError, "$c", "$close0", "$volume0"):
        Simulator(order(), line, ["$c"])
    with raises(ConfigError, "ticks_per_step", 3):
        Simulator(order(), line, data_granularity=2, ticks_per_step=3)
    with raises(ConfigError, "vol_threshold", 0):
        Simulator(order(), line, vol_threshold=0.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"amount": 0.0}, "amount"), ({"direction": 2}, "direction"), ({"end": "00:00:00"}, "00:00:00")],
)
def test_an_impossible_order_is_refused(change: dict[str, Any], named: str) -> None:
    with raises(InvalidInputError, named):
        order(**change)
