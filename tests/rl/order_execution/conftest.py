"""A day whose prices can be worked out by hand, and small markets."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sharpen.rl.order_execution import Market, MarketSettings, Order, generate_market
from tests.rl.internals import Ticks, write_stock

DAY = dt.datetime(2024, 3, 4)


def at(clock: str) -> dt.datetime:
    return dt.datetime.combine(DAY.date(), dt.time.fromisoformat(clock))


def order(amount: float = 30.0, direction: int = 0, start: str = "00:00:00", end: str = "23:59:59") -> Order:
    return Order("X", amount, direction, at(start), at(end))


@pytest.fixture
def line(tmp_path: Path) -> Path:
    """Six ticks from 9:30 at the prices 10, 20, …, 60, with volumes of 100."""
    index = np.datetime64(at("09:30:00"), "s") + 60 * np.arange(6).astype("m8[s]")
    for folder, columns in {
        "backtest": {"$close0": np.arange(10.0, 70.0, 10.0), "$volume0": np.full(6, 100.0)},
        "feature": {"$a": np.arange(1.0, 7.0), "$b": -np.arange(1.0, 7.0)},
    }.items():
        (tmp_path / folder).mkdir()
        write_stock(tmp_path / folder / "X.npz", Ticks(index, columns))
    return tmp_path


@pytest.fixture(scope="session")
def market(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Market]:
    def make(kind: str = "mean_reverting", *, days: int = 20, ticks: int = 24, seed: int = 0) -> Market:
        settings = MarketSettings(kind, days, ticks, tick_minutes=10, half_life_ticks=6)  # type: ignore[arg-type]
        return generate_market(tmp_path_factory.mktemp("market"), settings, seed=seed)

    return make
