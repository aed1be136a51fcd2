"""What a comparison of pairs says: the median of their ratios, its interval, and whether both trained the same."""

import statistics
from collections.abc import Sequence
from typing import Any

GOAL = 1.05
SAME = 1e-4  # of a loss or a reward; what is lower is rounding

Figures = dict[str, Any]


def compared(title: str, ours: Sequence[Figures], peer: Sequence[Figures], name: str) -> Figures:
    """One line: the figures called `name`, and where there is a peer their ratio, pair by pair."""
    line: Figures = {"measure": title, "ours": _median(ours, name), "ours_all": _all(ours, name)}
    pairs = list(zip(ours, peer, strict=False))
    if not pairs:
        return line
    ratios = [mine[name] / other[name] for mine, other in pairs]
    ratio = statistics.median(ratios)
    difference = max(largest_difference(mine, other) for mine, other in pairs)
    return line | {
        "peer": _median(peer, name),
        "peer_all": _all(peer, name),
        "ratio": round(ratio, 3),
        "interval": [round(min(ratios), 3), round(max(ratios), 3)],
        "interval_is": f"least and greatest of {len(ratios)} pairs, {confidence(len(ratios)):.0%} for the median",
        "goal": GOAL,
        "reached": ratio <= GOAL,
        "largest_loss_difference": difference,
        "trained_the_same": difference <= SAME,
    }


def confidence(pairs: int) -> float:
    """How often the least and the greatest of so many draws enclose the median, whatever the distribution."""
    return 1 - 2 * 0.5**pairs


def largest_difference(ours: Figures, peer: Figures) -> float:
    """Between the losses and rewards of two runs, step by step, as a part of the greater (of 1 at least)."""
    if len(ours["reported"]) != len(peer["reported"]):
        return float("inf")
    differences = [
        abs(mine[name] - other[name]) / max(abs(mine[name]), abs(other[name]), 1.0)
        for mine, other in zip(ours["reported"], peer["reported"], strict=True)
        for name in mine.keys() & other.keys()
    ]
    return float(max(differences, default=float("inf")))


def _median(runs: Sequence[Figures], name: str) -> float:
    return round(float(statistics.median(run[name] for run in runs)), 5)


def _all(runs: Sequence[Figures], name: str) -> list[float]:
    return [round(run[name], 5) for run in runs]
