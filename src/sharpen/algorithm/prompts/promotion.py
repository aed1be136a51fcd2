"""Whether a candidate becomes the best: on evidence, not on a lucky batch."""

import math
from collections.abc import Sequence
from typing import Literal

from ...stats import mean_interval

Promotion = Literal["interval", "mean"]
ONE_SIDED = 0.9


def is_better(differences: Sequence[float], promotion: Promotion) -> bool:
    """Whether rewards are better by these differences, one for each task that both have met.

    With `interval` when the one-sided interval of 90 % of their mean is above 0, with `mean` when the mean is.
    """
    if not differences:
        return False
    if promotion == "mean":
        return math.fsum(differences) > 0
    # One-sided: what a two-sided interval leaves out below is half of what it leaves out.
    return mean_interval(differences, confidence=2 * ONE_SIDED - 1)[0] > 0
