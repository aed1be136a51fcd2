"""The distribution of rewards per iteration as a box plot: minimum, first quartile, median, third quartile, maximum."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from ..formats import number
from .episode_file import Episode

MOST_BOXES = 60
WIDTH, HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 220, 56, 8, 10, 24


class Box(msgspec.Struct, frozen=True):
    """The coordinates of one box, and a description of it."""

    x: float
    width: float
    low: float
    high: float
    quarter: float
    three_quarters: float
    median: float
    mean: float
    title: str


class Mark(msgspec.Struct, frozen=True):
    """A label of an axis."""

    at: float
    label: str


class RewardSpread(msgspec.Struct, frozen=True):
    boxes: list[Box]
    rows: list[Mark]
    columns: list[Mark]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT


def reward_spread(episodes: Sequence[Episode]) -> RewardSpread | None:
    """Return the box plot; None without rewards. If there are many iterations, neighbours share a box."""
    by_iteration: dict[int, list[float]] = defaultdict(list)
    for each in episodes:
        if each.reward is not None and math.isfinite(each.reward) and each.iteration is not None:
            by_iteration[each.iteration].append(each.reward)
    if not by_iteration:
        return None
    groups = _grouped(by_iteration)
    values = [value for _, _, rewards in groups for value in rewards]
    scale = _Scale(min(values), max(values))
    step = (WIDTH - _LEFT - _RIGHT) / len(groups)
    boxes = [_box(group, _LEFT + number * step, step, scale) for number, group in enumerate(groups)]
    return RewardSpread(boxes, scale.marks(), _column_marks(groups, step))


_Group = tuple[int, int, list[float]]  # first and last iteration, rewards


def _grouped(by_iteration: dict[int, list[float]]) -> list[_Group]:
    iterations = sorted(by_iteration)
    size = math.ceil(len(iterations) / MOST_BOXES)
    found = []
    for start in range(0, len(iterations), size):
        members = iterations[start : start + size]
        found.append((members[0], members[-1], [value for each in members for value in by_iteration[each]]))
    return found


class _Scale:
    """Return a function from a reward to a height in the drawing."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = (low, high) if high > low else (low - 0.5, high + 0.5)

    def y(self, value: float) -> float:
        # Halved first: the difference of two floats may be too large for a float.
        share = (value / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)

    def marks(self) -> list[Mark]:
        """Return about five round numbers, or the ends if the range is too large for that."""
        length = self.high - self.low
        if not math.isfinite(length) or length < 1e-300:
            return [Mark(self.y(value), number(value)) for value in (self.low, self.high)]
        power = 10 ** math.floor(math.log10(length / 4))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= length / 4)
        values = [place * step for place in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [Mark(self.y(value), number(round(value, 12))) for value in values]


def _box(group: _Group, x: float, step: float, scale: _Scale) -> Box:
    first, last, rewards = group
    quarters = statistics.quantiles(rewards, n=4, method="inclusive") if len(rewards) > 1 else [rewards[0]] * 3
    mean = math.fsum(value / len(rewards) for value in rewards)
    width = max(min(step * 0.6, 28.0), 1.0)
    name = f"iteration {first}" if first == last else f"iterations {first} to {last}"
    title = f"{name}: {len(rewards)} episodes, mean {number(mean)}, {number(min(rewards))} to {number(max(rewards))}"
    places = [scale.y(value) for value in (min(rewards), max(rewards), *quarters, mean)]
    low, high, quarter, median, three_quarters, at_mean = places
    return Box(
        round(x + (step - width) / 2, 1), round(width, 1), low, high, quarter, three_quarters, median, at_mean, title
    )


def _column_marks(groups: Sequence[_Group], step: float) -> list[Mark]:
    every = math.ceil(len(groups) / 12)
    return [
        Mark(round(_LEFT + (place + 0.5) * step, 1), str(groups[place][0])) for place in range(0, len(groups), every)
    ]
