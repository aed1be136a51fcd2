"""Random tasks for a race between prompts: true qualities that are known, items with difficulties of their own.

The chance that a candidate does well on an item follows a logistic model: its skill, less the item's difficulty, and
a liking of its own for the item. So an item is hard or easy for all of them at once, and the difference of two on one
item is less noisy than each by itself. A candidate's true quality is its mean chance over all items there could be.
"""

import bisect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

ITEM_COUNTS = (32, 64, 128, 256)
_SKILLS = [step / 4 for step in range(-80, 81)]
_NORMAL_POINTS = [NormalDist().inv_cdf((point + 0.5) / 60) for point in range(60)]


@dataclass(frozen=True)
class Task:
    family: str
    is_binary: bool
    qualities: list[float]  # true ones, one per candidate
    rewards: list[list[float]]  # candidate, item


def wide(count: int, rng: random.Random) -> list[float]:
    """All the way from poor to good."""
    low = rng.uniform(0.1, 0.4)
    return [rng.uniform(low, low + 0.5) for _ in range(count)]


def narrow(count: int, rng: random.Random) -> list[float]:
    """Around one level, a few points apart: what edits of one prompt are often like."""
    level = rng.uniform(0.3, 0.7)
    return [min(0.95, max(0.05, rng.gauss(level, 0.04))) for _ in range(count)]


def one_winner(count: int, rng: random.Random) -> list[float]:
    """One is 10 to 25 points ahead of the rest."""
    level = rng.uniform(0.2, 0.6)
    rest = [rng.gauss(level, 0.02) for _ in range(count - 1)]
    return [max(rest) + rng.uniform(0.1, 0.25), *rest]


def pack(count: int, rng: random.Random) -> list[float]:
    """Near equals within 3 points, and a few that an edit has spoilt."""
    level = rng.uniform(0.3, 0.8)
    spoilt = count // 4
    near = [level + rng.uniform(-0.015, 0.015) for _ in range(count - spoilt)]
    return near + [level - rng.uniform(0.1, 0.25) for _ in range(spoilt)]


FAMILIES: dict[str, Callable[[int, random.Random], list[float]]] = {
    "spread wide": wide,
    "spread narrow": narrow,
    "one clear winner": one_winner,
    "near equals": pack,
}


def make_task(seed: int, *, num_items: int | None = None) -> Task:
    """The task of this seed: 8 to 24 candidates; families, numbers of items and kinds of reward in turn."""
    rng = random.Random(f"apo task {seed}")
    family = list(FAMILIES)[seed % len(FAMILIES)]
    is_binary = seed // len(FAMILIES) % 2 == 0
    count = num_items or ITEM_COUNTS[seed // (2 * len(FAMILIES)) % len(ITEM_COUNTS)]
    qualities = FAMILIES[family](rng.randint(8, 24), rng)
    rng.shuffle(qualities)
    # How much the items differ from each other, and how much each candidate differs from itself on them.
    hardness, liking = rng.uniform(2, 5), rng.uniform(0.3, 1)
    skills = skills_of(qualities, math.hypot(hardness, liking))
    items = [rng.gauss(0, hardness) for _ in range(count)]
    steadiness = rng.uniform(2, 8)
    rewards = [
        [_reward(skill - item + rng.gauss(0, liking), is_binary, steadiness, rng) for item in items] for skill in skills
    ]
    return Task(family, is_binary, qualities, rewards)


def _reward(logit: float, is_binary: bool, steadiness: float, rng: random.Random) -> float:
    chance = _sigmoid(logit)
    if is_binary:
        return float(rng.random() < chance)
    # In steps of 0.1, rounded at random so that its mean stays the chance.
    graded = rng.betavariate(max(1e-3, chance * steadiness), max(1e-3, (1 - chance) * steadiness))
    return math.floor(graded * 10 + rng.random()) / 10


def skills_of(qualities: list[float], spread: float) -> list[float]:
    """The skills that have these mean chances over items whose difficulties have this spread."""
    levels = [
        sum(_sigmoid(skill - spread * point) for point in _NORMAL_POINTS) / len(_NORMAL_POINTS) for skill in _SKILLS
    ]
    found = []
    for quality in qualities:
        at = bisect.bisect_left(levels, quality, 1, len(levels) - 1)
        share = (quality - levels[at - 1]) / (levels[at] - levels[at - 1])
        found.append(_SKILLS[at - 1] + share * (_SKILLS[at] - _SKILLS[at - 1]))
    return found


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
