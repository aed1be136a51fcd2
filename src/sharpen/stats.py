"""How sure a measured share or mean is: confidence intervals, with nothing but the standard library.

`wilson_interval` is for a share of successes, `mean_interval` for the mean of numbers, `difference_interval` for the
difference of two means; `ended_worse` uses it to decide whether a metric declined. All treat observations as
independent: several answers to one question say less than as many questions.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, TypeAlias

from .checks import check_int, check_number
from .errors import InvalidInputError

_ROUNDING = 1e-15
_MOST_TERMS = 10_000
_TINY = 1e-300


def wilson_interval(successes: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the Wilson interval for a share. It stays within 0 and 1, and has a width if all or none succeeded."""
    check_confidence(confidence)
    check_int("count", count, at_least=1, error=InvalidInputError)
    check_int("successes", successes, at_least=0, at_most=count, error=InvalidInputError)
    z2 = normal_quantile((1 + confidence) / 2) ** 2
    middle = successes + z2 / 2
    spread = math.sqrt(z2 * (successes * (count - successes) / count + z2 / 4))
    # At the ends the bound is exact, which rounding would miss.
    low = 0.0 if successes == 0 else (middle - spread) / (count + z2)
    high = 1.0 if successes == count else (middle + spread) / (count + z2)
    return low, high


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the t interval for the mean. One value says nothing about the spread: then it is -inf to inf."""
    check_confidence(confidence)
    mean, error = _mean_and_squared_error(values)
    if math.isinf(error):
        return -math.inf, math.inf
    half = t_quantile((1 + confidence) / 2, len(values) - 1) * math.sqrt(error)
    return mean - half, mean + half


def _mean_and_squared_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the square of its standard error, which is infinite for one value."""
    if not values:
        raise InvalidInputError("there are no values: an interval needs at least one, and two to be useful")
    if not all(map(math.isfinite, values)):
        bad = next(value for value in values if not math.isfinite(value))
        raise InvalidInputError(f"one of the values is {bad}: a mean needs finite numbers")
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return mean, math.inf
    return mean, math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count


# -- comparisons -------------------------------------------------------------------------------------

Observations: TypeAlias = Sequence[float] | Mapping[Any, float]
"""Values alone, or by what was observed (a task, an episode), so that two measurements can be paired."""


def difference_interval(before: Observations, after: Observations, confidence: float = 0.95) -> tuple[float, float]:
    """Return the t interval for the mean of `after` minus the mean of `before`.

    Two mappings are compared on the keys that both have (a paired comparison), two sequences as independent samples
    (Welch's interval). With too few observations to estimate the spread it is -inf to inf.
    """
    check_confidence(confidence)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        differences = [after[key] - before[key] for key in before if key in after]
        return mean_interval(differences, confidence) if differences else (-math.inf, math.inf)
    first, second = _values(before), _values(after)
    if not first or not second:
        return -math.inf, math.inf
    (first_mean, first_error), (second_mean, second_error) = map(_mean_and_squared_error, (first, second))
    difference, error = second_mean - first_mean, first_error + second_error
    if math.isinf(error):
        return -math.inf, math.inf
    if not error:
        return difference, difference
    freedom = error**2 / (first_error**2 / (len(first) - 1) + second_error**2 / (len(second) - 1))
    half = t_quantile((1 + confidence) / 2, freedom) * math.sqrt(error)
    return difference - half, difference + half


class Decline(NamedTuple):
    """A metric that ended worse than it began. `low` and `high` are the interval of `after - before`."""

    before: float
    after: float
    low: float
    high: float
    confidence: float

    def describe(self, metric: str) -> str:
        """Return one sentence for a log or a result."""
        return (
            f"{metric} ended worse than it began: {self.before:.4g} -> {self.after:.4g} "
            f"({self.after - self.before:+.4g}, {self.confidence:.0%} interval {self.low:+.4g} to {self.high:+.4g})"
        )


def ended_worse(
    before: Observations,
    after: Observations,
    *,
    mode: Literal["max", "min"] = "max",
    confidence: float = 0.95,
) -> Decline | None:
    """Return how much worse `after` is than `before`, or None if the interval of the difference includes 0.

    Args:
        before: What was measured at the start: rewards in a sequence, or by task or episode in a mapping.
        after: What was measured at the end. Two mappings are compared on their common keys.
        mode: Whether higher ("max") or lower ("min") values are better.
        confidence: Of the interval.
    """
    low, high = difference_interval(before, after, confidence)
    if not (high < 0 if mode == "max" else low > 0):
        return None
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        common = [key for key in before if key in after]
        before, after = [before[key] for key in common], [after[key] for key in common]
    first, last = (math.fsum(values) / len(values) for values in (_values(before), _values(after)))
    return Decline(first, last, low, high, confidence)


def _values(observations: Observations) -> Sequence[float]:
    return list(observations.values()) if isinstance(observations, Mapping) else observations


def check_confidence(confidence: float) -> None:
    check_number("confidence", confidence, above=0, below=1)


# -- distributions -----------------------------------------------------------------------------------


def normal_quantile(share: float) -> float:
    """Return the value below which this share of the standard normal distribution lies."""
    return NormalDist().inv_cdf(share)


def t_quantile(share: float, freedom: float) -> float:
    """Return the value below which this share of Student's t distribution lies, found by bisection."""
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


def _t_share(t: float, freedom: float) -> float:
    """Return the share of the t distribution below `t`, for t >= 0."""
    return 1 - _beta_share(freedom / (freedom + t * t), freedom / 2, 0.5) / 2


def _beta_share(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    # The continued fraction converges fast on one side of the middle only; the other side is its mirror image.
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_share(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / (a * _beta_fraction(x, a, b))


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function, evaluated by Lentz's method."""
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
