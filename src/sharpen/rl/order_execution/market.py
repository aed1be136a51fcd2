"""A seeded market with known structure, written as data files.

    python -m sharpen.rl.order_execution.market FOLDER --kind mean_reverting --days 100 --seed 0

Both kinds move by the same amount from tick to tick, and days are independent.

- `martingale`: the expected next price is the price now. No rule that looks back has an expected advantage.
- `mean_reverting`: the logarithm of price over level is an AR(1) process around 0, which halves a deviation in
  `half_life_ticks`. Selling above the level and buying below it pays.
"""

import argparse
import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from ...checks import check_choice, check_ints, check_number
from ...errors import ConfigError
from ..trees import Array
from .data import Ticks, write_stock
from .order import Order, OrderDir, save_orders

Kind = Literal["mean_reverting", "martingale"]
FEATURES = ["$deviation", "$volume"]
FIRST_DAY = dt.date(2024, 1, 1)
OPENING = dt.time(9, 30)


@dataclass(frozen=True)
class Market:
    """Where the data is, and the orders for it."""

    folder: Path
    orders: list[Order]
    ticks: int


@dataclass(frozen=True)
class MarketSettings:
    """The structure of a market. `deviation` is the standard deviation of the log-price around its level."""

    kind: Kind = "mean_reverting"
    days: int = 100
    ticks: int = 240
    tick_minutes: int = 1
    level: float = 100.0
    deviation: float = 0.005
    half_life_ticks: float = 60.0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, get_args(Kind))
        check_ints(days=self.days, ticks=self.ticks, tick_minutes=self.tick_minutes)
        check_number("half_life_ticks", self.half_life_ticks, above=0)
        check_number("level", self.level, above=0)
        if self.ticks * self.tick_minutes > 14 * 60:
            raise ConfigError(f"{self.ticks} ticks of {self.tick_minutes} minutes do not fit into a day from {OPENING}")

    @property
    def memory(self) -> float:
        """The share of a deviation that is left after one tick."""
        return float(0.5 ** (1.0 / self.half_life_ticks))

    @property
    def tick_noise(self) -> float:
        """The standard deviation of the noise of one tick; the same for both kinds."""
        return float(self.deviation * np.sqrt(1.0 - self.memory**2))


def log_prices(settings: MarketSettings, rng: np.random.Generator) -> Array:
    """The logarithm of price over level: one row a day, one column a tick."""
    noise_D_T = rng.standard_normal((settings.days, settings.ticks)) * settings.tick_noise
    if settings.kind == "martingale":
        # Half of the variance is taken off, so that the price itself, not its logarithm, is the martingale.
        drift_T = 0.5 * settings.tick_noise**2 * np.arange(1, settings.ticks + 1)
        drifting: Array = np.cumsum(noise_D_T, axis=1) - drift_T
        return drifting
    path_D_T = np.empty_like(noise_D_T)
    now_D = rng.standard_normal(settings.days) * settings.deviation  # from the stationary distribution
    for tick in range(settings.ticks):
        now_D = settings.memory * now_D + noise_D_T[:, tick]
        path_D_T[:, tick] = now_D
    return path_D_T


def generate_market(
    folder: str | Path,
    settings: MarketSettings | None = None,
    *,
    stocks: int = 1,
    seed: int = 0,
    suffix: Literal[".npz", ".csv"] = ".npz",
) -> Market:
    """Write prices, features and one order per stock and day; the same seed gives the same files."""
    settings = settings or MarketSettings()
    root = Path(folder)
    for name in ("backtest", "feature", "order"):
        (root / name).mkdir(parents=True, exist_ok=True)
    orders: list[Order] = []
    for number, sequence in enumerate(np.random.SeedSequence(seed).spawn(stocks)):
        stock_id, rng = f"S{number:03d}", np.random.default_rng(sequence)
        prices, features = _stock(settings, rng)
        write_stock(root / "backtest" / f"{stock_id}{suffix}", prices)
        write_stock(root / "feature" / f"{stock_id}{suffix}", features)
        orders += _orders(stock_id, settings, rng)
    save_orders(root / "order" / "orders.csv", orders)
    return Market(root, orders, settings.ticks)


def _stock(settings: MarketSettings, rng: np.random.Generator) -> tuple[Ticks, Ticks]:
    deviation_D_T = log_prices(settings, rng)
    price_T = (settings.level * np.exp(deviation_D_T)).ravel()
    busy_T = 1.0 + np.linspace(-1.0, 1.0, settings.ticks) ** 2  # markets are busy at the open and at the close
    volume_T = (10_000.0 * busy_T * rng.lognormal(0.0, 0.3, deviation_D_T.shape)).ravel()
    index = np.concatenate([_index(settings, day) for day in range(settings.days)])
    features = {"$deviation": deviation_D_T.ravel() / settings.deviation, "$volume": volume_T / volume_T.mean() - 1.0}
    return Ticks(index, {"$close0": price_T, "$volume0": volume_T}), Ticks(index, features)


def _index(settings: MarketSettings, day: int) -> Array:
    opening = np.datetime64(dt.datetime.combine(FIRST_DAY + dt.timedelta(days=day), OPENING), "s")
    return opening + np.arange(settings.ticks) * np.timedelta64(60 * settings.tick_minutes, "s")


def _orders(stock_id: str, settings: MarketSettings, rng: np.random.Generator) -> list[Order]:
    amounts, sides = rng.integers(100, 1000, settings.days), rng.integers(0, 2, settings.days)
    days = [FIRST_DAY + dt.timedelta(days=day) for day in range(settings.days)]
    return [
        Order(
            stock_id,
            float(amount),
            OrderDir(int(side)),
            dt.datetime.combine(day, dt.time(0, 0)),
            dt.datetime.combine(day, dt.time(23, 59, 59)),
        )
        for day, amount, side in zip(days, amounts, sides, strict=True)
    ]


def main() -> None:
    """Run the command of this module."""
    parser = argparse.ArgumentParser(description="Write the data files of a seeded market.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=get_args(Kind), default="mean_reverting")
    parser.add_argument("--days", type=int, default=100)
    parser.add_argument("--stocks", type=int, default=1)
    parser.add_argument("--ticks", type=int, default=240)
    parser.add_argument("--tick-minutes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--suffix", choices=[".npz", ".csv"], default=".npz")
    given = parser.parse_args()
    settings = MarketSettings(given.kind, given.days, given.ticks, given.tick_minutes)
    market = generate_market(given.folder, settings, stocks=given.stocks, seed=given.seed, suffix=given.suffix)
    print(f"{len(market.orders)} orders for a {given.kind} market in {market.folder}")  # noqa: T201


if __name__ == "__main__":
    main()
