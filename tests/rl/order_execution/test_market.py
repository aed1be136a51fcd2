"""The generated market has the structure that it claims."""

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sharpen.errors import ConfigError
from sharpen.rl import backtest, train
from sharpen.rl.order_execution import (
    PPO,
    AllOne,
    CategoricalActionInterpreter,
    FileProcessedDataProvider,
    FullHistoryStateInterpreter,
    Market,
    MarketSettings,
    PAPenaltyReward,
    Recurrent,
    SingleAssetOrderExecutionSimple,
    TwapRelativeActionInterpreter,
    generate_market,
    load_orders,
    oracle_advantage,
)
from tests.errors import raises
from tests.rl.internals import FEATURES, log_prices


def test_the_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    settings = MarketSettings(days=3, ticks=10)
    markets = [generate_market(tmp_path / str(n), settings, stocks=2, seed=seed) for n, seed in enumerate((5, 5, 6))]
    texts = [
        [path.read_bytes() for path in sorted(market.folder.rglob("*.*")) if path.suffix == ".csv"]
        for market in markets
    ]
    prices = [np.load(market.folder / "backtest" / "S001.npz")["$close0"] for market in markets]
    assert texts[0] == texts[1] != texts[2]
    assert np.array_equal(prices[0], prices[1])
    assert not np.array_equal(prices[0], prices[2])
    assert load_orders(markets[0].folder / "order") == markets[0].orders


def test_a_martingale_has_no_drift_and_no_memory() -> None:
    settings = MarketSettings("martingale", days=20_000, ticks=12, deviation=0.01, half_life_ticks=4)
    price = np.exp(log_prices(settings, np.random.default_rng(0)))
    error = price.std(axis=0) / np.sqrt(len(price))
    assert (np.abs(price.mean(axis=0) - 1.0) < 4 * error).all()
    change = np.diff(price, axis=1)
    assert abs(np.corrcoef(change[:, 3], change[:, 4])[0, 1]) < 0.03
    assert abs(np.corrcoef(price[:, 5], change[:, 5])[0, 1]) < 0.03


def test_mean_reverting_prices_forget_half_in_a_half_life() -> None:
    settings = MarketSettings(days=20_000, ticks=12, deviation=0.01, half_life_ticks=4)
    path = log_prices(settings, np.random.default_rng(0))
    assert path.std(axis=0) == pytest.approx(np.full(12, 0.01), rel=0.03)
    assert np.corrcoef(path[:, 3], path[:, 7])[0, 1] == pytest.approx(0.5, abs=0.02)


def test_settings_that_cannot_work_are_refused() -> None:
    with raises(ConfigError, "mean_reverting"):
        MarketSettings("bull")  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        MarketSettings(ticks=1000)
    with raises(ConfigError, 0):
        MarketSettings(days=0)


def test_the_command_writes_a_market(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sharpen.rl.order_execution.market", str(tmp_path / "m"), "--kind", "martingale"]
    done = subprocess.run(
        [*command, "--days", "2", "--ticks", "5", "--suffix", ".csv"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"2 orders for a martingale market in {tmp_path / 'm'}\n"
    assert len((tmp_path / "m" / "backtest" / "S000.csv").read_text().splitlines()) == 11


def parts(market: Market) -> tuple[partial[SingleAssetOrderExecutionSimple], FullHistoryStateInterpreter]:
    simulator = partial(SingleAssetOrderExecutionSimple, data_dir=market.folder, ticks_per_step=6)
    provider = FileProcessedDataProvider(market.folder, FEATURES)
    return simulator, FullHistoryStateInterpreter(4, market.ticks, len(FEATURES), provider)


@pytest.mark.parametrize("kind", ["mean_reverting", "martingale"])
@pytest.mark.parametrize("finite_env_type", ["dummy", "subproc"])
def test_twap_has_no_advantage(market: Callable[..., Market], kind: str, finite_env_type: str) -> None:
    made = market(kind)
    simulator, state = parts(made)
    action = TwapRelativeActionInterpreter()
    policy = AllOne(state.observation_space, action.action_space)
    metrics = backtest(
        simulator, state, action, made.orders, policy, [], PAPenaltyReward(), finite_env_type=finite_env_type
    )
    assert abs(metrics["pa"]) < 2e-3
    assert metrics["ffr"] == pytest.approx(1.0)
    assert all(oracle_advantage(simulator(order)) > 0 for order in made.orders)


def test_ppo_trains_on_orders(market: Callable[..., Market]) -> None:
    made = market(days=8)
    simulator, state = parts(made)
    action = CategoricalActionInterpreter(4, max_step=4)
    network = Recurrent(state.observation_space, hidden_dim=8, output_dim=8)
    policy = PPO(network, state.observation_space, action.action_space, 1e-3)
    metrics = train(
        simulator,
        state,
        action,
        made.orders,
        policy,
        PAPenaltyReward(),
        vessel_kwargs={"episode_per_iter": 16, "update_kwargs": {"batch_size": 16, "repeat": 2}},
        trainer_kwargs={"max_iters": 2, "finite_env_type": "dummy"},
    )
    assert metrics["ffr"] == pytest.approx(1.0)
    assert {"pa", "reward", "loss"} <= set(metrics)
