"""Rewards of order execution."""

import math

import numpy as np

from ...errors import ConfigError, InvalidInputError
from ..reward import Reward
from .order import OrderDir
from .state import SAOEState


class PAPenaltyReward(Reward[SAOEState]):
    """Price advantage, minus a penalty for trading much in a short time.

    For each step: advantage times the share traded, minus `penalty` times the sum of the squared shares of its ticks,
    all times `scale`. The share is what was traded, so what is left for the last tick counts as well.
    """

    def __init__(self, penalty: float = 100.0, scale: float = 1.0) -> None:
        self.penalty, self.scale = penalty, scale

    def reward(self, simulator_state: SAOEState) -> float:
        state, whole = simulator_state, simulator_state.order.amount
        steps, ticks = state.history_steps, state.history_exec
        first = int(np.searchsorted(ticks.index, steps.index[-1]))
        share_T = ticks["deal_amount"][first:] / whole
        advantage = float(steps["pa"][-1] * steps["deal_amount"][-1] / whole)
        penalty = -self.penalty * float((share_T**2).sum())
        if not math.isfinite(advantage + penalty):
            raise InvalidInputError(f"the reward of {state.order} at {state.cur_time} is not finite: check its prices")
        self.log("reward/pa", advantage)
        self.log("reward/penalty", penalty)
        return (advantage + penalty) * self.scale


class PPOReward(Reward[SAOEState]):
    """-1, 0 or 1 at the end: worse than TWAP, better, or better by a tenth; 0 on the way.

    From "An End-to-End Optimal Trade Execution Framework based on Proximal Policy Optimization". TWAP is the average
    price of the day's ticks from `start_time_index` to `end_time_index`.
    """

    def __init__(self, max_step: int, start_time_index: int = 0, end_time_index: int = 239) -> None:
        if max_step < 1 or not 0 <= start_time_index <= end_time_index:
            raise ConfigError(
                f"max_step is {max_step} and the ticks are {start_time_index} to {end_time_index}: "
                "use max_step >= 1 and 0 <= start_time_index <= end_time_index"
            )
        self.max_step = max_step
        self.start_time_index, self.end_time_index = start_time_index, end_time_index

    def reward(self, simulator_state: SAOEState) -> float:
        state = simulator_state
        if state.metrics is None and state.cur_step < self.max_step:
            return 0.0
        ticks = state.history_exec
        dealt = float(ticks["deal_amount"].sum())
        paid = float(ticks["trade_value"].sum()) / dealt if dealt > 0 else float(ticks["market_price"].mean())
        window = slice(self.start_time_index, self.end_time_index + 1)
        even = float(state.backtest_data.get_deal_price()[window].mean())
        better, worse = (paid, even) if state.order.direction == OrderDir.SELL else (even, paid)
        ratio = better / worse if worse != 0 else 1.0
        if ratio < 1.0:
            return -1.0
        return 0.0 if ratio < 1.1 else 1.0
