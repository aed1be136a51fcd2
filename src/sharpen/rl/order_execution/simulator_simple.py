"""`SingleAssetOrderExecutionSimple`: one order during one day, at the prices of a file."""

import datetime as dt
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ...checks import check_number
from ...errors import ConfigError, InvalidInputError
from ...loggers import LogLevel
from ..simulator import Simulator
from ..trees import Array
from .data import IntradayBacktestData, open_stock
from .order import Order, OrderDir
from .state import NUMBERS, History, SAOEMetrics, SAOEState, price_advantage, with_order

__all__ = ["SingleAssetOrderExecutionSimple"]  # what this path has in Qlib

EPS = 1e-6


class SingleAssetOrderExecutionSimple(Simulator[Order, SAOEState, float]):
    """Trades an order in steps of `ticks_per_step` ticks.

    The amount of a step is spread evenly over its ticks, limited to `vol_threshold` times the market's volume. The
    last step trades everything that is left, as far as that limit allows. Steps begin at multiples of
    `ticks_per_step` of the day, so a window that begins in between has a short first step.

    `data_granularity` is the number of ticks between two rows of the file, `ticks_per_step` counts ticks.
    `feature_columns_today` and `feature_columns_yesterday` are columns that the data must have.
    """

    def __init__(
        self,
        order: Order,
        data_dir: str | Path,
        feature_columns_today: Sequence[str] = (),
        feature_columns_yesterday: Sequence[str] = (),
        data_granularity: int = 1,
        ticks_per_step: int = 30,
        vol_threshold: float | None = None,
    ) -> None:
        super().__init__(initial=order)
        if data_granularity < 1 or ticks_per_step < 1 or ticks_per_step % data_granularity:
            raise ConfigError(
                f"ticks_per_step is {ticks_per_step}: use a multiple of data_granularity, {data_granularity}"
            )
        check_number("vol_threshold", vol_threshold, above=0, optional=True)
        self.order, self.vol_threshold = order, vol_threshold
        self.ticks_per_step = ticks_per_step // data_granularity
        self.backtest_data = self._load(Path(data_dir), [*feature_columns_today, *feature_columns_yesterday])
        self.ticks_index = self.backtest_data.get_time_index()
        self._start, self._stop = np.searchsorted(self.ticks_index, _times(order)).tolist()
        if self._start >= self._stop:
            raise InvalidInputError(f"{order.stock_id} has no tick between {order.start_time} and {order.end_time}")
        self.ticks_for_order = self.ticks_index[self._start : self._stop]
        self._price = np.asarray(self.backtest_data.get_deal_price(), np.float64)
        self._volume = np.asarray(self.backtest_data.get_volume(), np.float64)
        self.twap_price = float(self._price[self._start : self._stop].mean())
        self.position, self.cur_step = float(order.amount), 0
        self.metrics: SAOEMetrics | None = None
        self._tick = self._start
        self._exec = {name: np.zeros(self._stop - self._start) for name in NUMBERS}
        steps = -(-self._stop // self.ticks_per_step) - self._start // self.ticks_per_step
        self._steps = {name: np.zeros(steps) for name in NUMBERS}
        self._step_starts = np.zeros(steps, self.ticks_index.dtype)

    def _load(self, data_dir: Path, columns: list[str]) -> IntradayBacktestData:
        ticks = open_stock(data_dir / "backtest", self.order.stock_id).day(self.order.date)
        for name in columns:
            _ = ticks[name]  # raises an error that names a missing column
        return IntradayBacktestData(ticks)

    @property
    def cur_time(self) -> dt.datetime:
        """The time at which the next step begins."""
        if self._tick >= self._stop:
            return self.order.end_time
        time: dt.datetime = self.ticks_index[self._tick].astype("M8[s]").item()
        return time

    @property
    def history_exec(self) -> History:
        filled = self._tick - self._start
        return History(self.order, self.ticks_for_order[:filled], {k: v[:filled] for k, v in self._exec.items()})

    @property
    def history_steps(self) -> History:
        filled = self.cur_step
        return History(self.order, self._step_starts[:filled], {k: v[:filled] for k, v in self._steps.items()})

    def get_state(self) -> SAOEState:
        return SAOEState(
            order=self.order,
            cur_time=self.cur_time,
            cur_step=self.cur_step,
            position=self.position,
            history_exec=self.history_exec,
            history_steps=self.history_steps,
            metrics=self.metrics,
            backtest_data=self.backtest_data,
            ticks_per_step=self.ticks_per_step,
            ticks_index=self.ticks_index,
            ticks_for_order=self.ticks_for_order,
        )

    def done(self) -> bool:
        return self.position < EPS or self._tick >= self._stop

    def step(self, amount: float) -> None:
        """Trade `amount` in this step, or as much of it as the market's volume allows."""
        if self.done():
            raise InvalidInputError(f"the order for {self.order.stock_id} on {self.order.date} is already done")
        amount, end = float(amount), self._next_tick()
        ticks = slice(self._tick, end)
        deal_T = self._split(amount, ticks)
        left = self.position - float(deal_T.sum())
        if left < -EPS or not (deal_T >= -EPS).all():
            raise InvalidInputError(f"an amount of {amount} cannot be traded with a position of {self.position}")
        self._record_ticks(deal_T, ticks)
        self.position = 0.0 if abs(left) < EPS else left
        self._step_starts[self.cur_step] = self.ticks_index[self._tick]
        for name, value in self._summary(amount, deal_T, ticks).items():
            self._steps[name][self.cur_step] = value
        self._tick, self.cur_step = end, self.cur_step + 1
        if self.done():
            self._finish()

    def _next_tick(self) -> int:
        """Return the tick after the last one of this step."""
        after: int = (self._tick // self.ticks_per_step + 1) * self.ticks_per_step
        return min(after, int(self._stop))

    def _split(self, amount: float, ticks: slice) -> Array:
        count = ticks.stop - ticks.start
        limit_T = np.inf if self.vol_threshold is None else self.vol_threshold * self._volume[ticks]
        deal_T = np.minimum(np.full(count, amount / count), limit_T)
        if ticks.stop >= self._stop:  # the last tick trades whatever is left
            deal_T[-1] += self.position - deal_T.sum()
            deal_T = np.minimum(deal_T, limit_T)
        return deal_T

    def _record_ticks(self, deal_T: Array, ticks: slice) -> None:
        price_T = self._price[ticks]
        values = {
            "market_volume": self._volume[ticks],
            "market_price": price_T,
            "amount": deal_T,
            "inner_amount": deal_T,
            "deal_amount": deal_T,
            "trade_price": price_T,
            "trade_value": price_T * deal_T,
            "position": self.position - np.cumsum(deal_T),
            "ffr": deal_T / self.order.amount,
            "pa": price_advantage(price_T, self.twap_price, self.order.direction),
        }
        where = slice(ticks.start - self._start, ticks.stop - self._start)
        for name, column in self._exec.items():
            column[where] = values[name]

    def _summary(self, amount: float, deal_T: Array, ticks: slice) -> dict[str, float]:
        """Return the metrics of a period; `amount` is what the policy asked for."""
        price_T, dealt = self._price[ticks], float(deal_T.sum())
        value = float((price_T * deal_T).sum())
        trade_price = value / dealt if dealt > EPS * self.order.amount else 0.0
        return {
            "market_volume": float(self._volume[ticks].sum()),
            "market_price": float(price_T.mean()),
            "amount": amount,
            "inner_amount": dealt,
            "deal_amount": dealt,
            "trade_price": trade_price,
            "trade_value": value,
            "position": self.position,
            "ffr": dealt / self.order.amount,
            "pa": float(price_advantage(trade_price, self.twap_price, self.order.direction)),
        }

    def _finish(self) -> None:
        """Compute and log the metrics of the whole order."""
        wanted = float(self._steps["amount"][: self.cur_step].sum())
        dealt_T = self._exec["deal_amount"][: self._tick - self._start]
        numbers: Any = self._summary(wanted, dealt_T, slice(self._start, self._tick))
        order = self.order
        self.metrics = with_order(order, self.ticks_index[0], numbers)
        if self.env is None:
            return
        for name, value in numbers.items():
            self.env.logger.add_scalar(name, value)
        self.env.logger.add_string("stock_id", order.stock_id)
        self.env.logger.add_string("datetime", str(self.ticks_index[0]))
        self.env.logger.add_scalar("direction", int(order.direction))
        self.env.logger.add_any("history_steps", self.history_steps, loglevel=LogLevel.DEBUG)
        self.env.logger.add_any("history_exec", self.history_exec, loglevel=LogLevel.DEBUG)


def _times(order: Order) -> Array:
    return np.array([order.start_time.replace(tzinfo=None), order.end_time.replace(tzinfo=None)], dtype="M8[us]")


def oracle_advantage(simulator: SingleAssetOrderExecutionSimple) -> float:
    """Return the largest price advantage that any sequence of amounts can reach in a new simulator, in basis points.

    It is what somebody who knows the whole day could get. Within a step amounts are spread evenly, and what is left
    over is traded at the last tick, so the best price is the average of the best step, or that of the last tick. A
    limit on volume can only make it worse.
    """
    start, stop, size = simulator._start, simulator._stop, simulator.ticks_per_step
    cuts = [start, *range((start // size + 1) * size, stop, size), stop]
    price_T = simulator._price
    prices = [float(price_T[a:b].mean()) for a, b in pairwise(cuts)] + [float(price_T[stop - 1])]
    best = np.max(prices) if simulator.order.direction == OrderDir.SELL else np.min(prices)
    return float(price_advantage(best, simulator.twap_price, simulator.order.direction))
