"""States and metrics of single-asset order execution (SAOE)."""

import datetime as dt
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np

from ..trees import Array
from .data import IntradayBacktestData
from .order import Order, OrderDir


class SAOEMetrics(TypedDict):
    """What happened in a period: a tick, a step or the whole order."""

    stock_id: str
    datetime: Any
    """When the period began."""
    direction: int
    """0: sell, 1: buy."""
    market_volume: float
    """The volume that the whole market traded."""
    market_price: float
    """The average price of the period."""
    amount: float
    """What the policy wanted to trade."""
    inner_amount: float
    """What was attempted, which may be more on the last step."""
    deal_amount: float
    """What was traded."""
    trade_price: float
    """The average price of what was traded; 0 if nothing was."""
    trade_value: float
    """Price times amount of what was traded."""
    position: float
    """What is left to trade."""
    ffr: float
    """Fulfilment rate: the share of the order that was traded."""
    pa: float
    """Price advantage over trading the order evenly over its whole window, in basis points (1/10,000)."""


NUMBERS = tuple(name for name in SAOEMetrics.__annotations__ if name not in ("stock_id", "datetime", "direction"))


def with_order(order: Order, start: Any, numbers: Mapping[str, float]) -> SAOEMetrics:
    """Return the metrics of a period with its order and its start."""
    about: Any = {"stock_id": order.stock_id, "datetime": start, "direction": int(order.direction)}
    about.update(numbers)
    return cast(SAOEMetrics, about)


class History:
    """Metrics over time: `history["pa"]` is a column, `history.index` the times, `history.row(-1)` one period."""

    def __init__(self, order: Order, index: Array, columns: Mapping[str, Array]) -> None:
        self._order, self.index, self._columns = order, index, columns

    def __getitem__(self, name: str) -> Array:
        return self._columns[name]

    def keys(self) -> list[str]:
        return list(self._columns)

    def __len__(self) -> int:
        """The number of periods."""
        return len(self.index)

    def row(self, number: int) -> SAOEMetrics:
        numbers = {name: float(column[number]) for name, column in self._columns.items()}
        return with_order(self._order, self.index[number], numbers)

    def to_pandas(self) -> Any:
        """Return a pandas `DataFrame`; pandas must be installed."""
        pandas = import_module("pandas")
        fixed = {"stock_id": self._order.stock_id, "direction": int(self._order.direction)}
        return pandas.DataFrame({**fixed, **self._columns}, index=pandas.Index(self.index, name="datetime"))


class SAOEState(NamedTuple):
    """What interpreters and rewards see of a simulator. Later steps do not change it."""

    order: Order
    cur_time: dt.datetime
    cur_step: int
    position: float
    """What is left to trade."""
    history_exec: History
    """Metrics of every tick so far."""
    history_steps: History
    """Metrics of every step so far."""
    metrics: SAOEMetrics | None
    """Metrics of the whole order, once it is done."""
    backtest_data: IntradayBacktestData
    """All prices of the day, also those to come: an interpreter must not look ahead."""
    ticks_per_step: int
    ticks_index: Array
    """All ticks of the day."""
    ticks_for_order: Array
    """The ticks within the order's window."""


def price_advantage(exec_price: Any, baseline_price: float, direction: OrderDir | int) -> Any:
    """Return how much better than the baseline a price is, in basis points; 0 if there is no price."""
    if baseline_price == 0:
        return np.zeros_like(exec_price)[()]
    gain = exec_price / baseline_price - 1.0
    signed = gain if direction == OrderDir.SELL else -gain
    return np.where(np.asarray(exec_price) == 0, 0.0, np.nan_to_num(signed * 10_000.0, nan=0.0))[()]
