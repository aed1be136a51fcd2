"""How sure a measured share or mean is: confidence intervals, with nothing but the standard library.

`wilson_interval` is for a share of successes, `mean_interval` for the mean of numbers. Both take their observations as
independent: several answers to one question tell less than as many questions.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

from .errors import ConfigError, InvalidInputError

_ROUNDING = 1e-15
_MOST_TERMS = 10_000
_TINY = 1e-300


def wilson_interval(successes: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of Wilson for a share. It stays within 0 and 1, and has a width also where all or none succeeded."""
    check_confidence(confidence)
    if count < 1:
        raise InvalidInputError(f"count is {count}: an interval needs at least one observation")
    if not 0 <= successes <= count:
        raise InvalidInputError(f"successes is {successes}, but count is {count}: give 0 to {count}")
    z2 = normal_quantile((1 + confidence) / 2) ** 2
    middle = successes + z2 / 2
    spread = math.sqrt(z2 * (successes * (count - successes) / count + z2 / 4))
    # At the ends the bound is exact, which rounding would miss by a hair.
    low = 0.0 if successes == 0 else (middle - spread) / (count + z2)
    high = 1.0 if successes == count else (middle + spread) / (count + z2)
    return low, high


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The t interval for the mean. One value says nothing about its spread: then it reaches from -inf to inf."""
    check_confidence(confidence)
    if not values:
        raise InvalidInputError("there are no values: an interval needs at least one, and two to be of use")
    if not all(map(math.isfinite, values)):
        bad = next(value for value in values if not math.isfinite(value))
        raise InvalidInputError(f"one of the values is {bad}: a mean needs finite numbers")
    if len(values) == 1:
        return -math.inf, math.inf
    count = len(values)
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = t_quantile((1 + confidence) / 2, count - 1) * math.sqrt(variance / count)
    return mean - half, mean + half


def check_confidence(confidence: float) -> None:
    if not isinstance(confidence, int | float) or not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence!r}: use a share between 0 and 1, such as 0.95")


# -- distributions -----------------------------------------------------------------------------------


def normal_quantile(share: float) -> float:
    """The value below which this share of the standard normal distribution lies."""
    return NormalDist().inv_cdf(share)


def t_quantile(share: float, freedom: int) -> float:
    """The value below which this share of Student's t distribution lies, found by halving."""
    if share < 0.5:
        return -t_quantile(1 - share, freedom)
    low, high = 0.0, 1.0
    while _t_share(high, freedom) < share:
        low, high = high, high * 2
    while high - low > 4e-16 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _t_share(middle, freedom) < share else (low, middle)
    return (low + high) / 2


def _t_share(t: float, freedom: int) -> float:
    """The share of the t distribution below `t`, for t >= 0."""
    return 1 - _beta_share(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


def _beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    # The continued fraction is quick on one side of the middle only; the other side is its mirror image.
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _beta_fraction(x, a, b))


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, from its front by the method of Lentz."""
    value, above, below = 1.0, 1.0, 0.0
    for term in range(1, _MOST_TERMS):
        m = term // 2
        if term % 2:
            factor = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            factor = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1 / ((1 + factor * below) or _TINY)
        above = (1 + factor / above) or _TINY
        value *= above * below
        if abs(above * below - 1) < _ROUNDING:
            break
    return value
