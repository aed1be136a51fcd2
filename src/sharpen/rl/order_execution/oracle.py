"""What nobody can beat: the price advantage of somebody who knows the whole day."""

from itertools import pairwise

import numpy as np

from .order import OrderDir
from .simulator_simple import SingleAssetOrderExecutionSimple
from .state import price_advantage


def oracle_advantage(simulator: SingleAssetOrderExecutionSimple) -> float:
    """The largest price advantage that any sequence of amounts can reach in a fresh simulator, in basis points.

    Within a step amounts are spread evenly, and what is left over is traded at the last tick: so the best price is the
    average of the best step, or that of the last tick. A bound on volume can only make it worse.
    """
    start, stop, size = simulator._start, simulator._stop, simulator.ticks_per_step
    cuts = [start, *range((start // size + 1) * size, stop, size), stop]
    price_T = simulator._price
    prices = [float(price_T[a:b].mean()) for a, b in pairwise(cuts)] + [float(price_T[stop - 1])]
    best = np.max(prices) if simulator.order.direction == OrderDir.SELL else np.min(prices)
    return float(price_advantage(best, simulator.twap_price, simulator.order.direction))
