"""What came of a step or a validation: as numbers, and in a line."""

import math
from collections import Counter
from collections.abc import Sequence

from ...stats import mean_interval, wilson_interval
from .collected import CollectedRollout

Metrics = dict[str, float]


def validation_metrics(rollouts: Sequence[CollectedRollout]) -> Metrics:
    """What came of a validation. A rollout that was lost says nothing about the policy."""
    counted = [each for each in rollouts if not each.is_lost]
    rewards = [each.reward for each in counted if each.reward is not None]
    found: Metrics = {
        "rollouts": float(len(rollouts)),
        "failed": float(sum(each.is_failed for each in counted)),
        "lost": float(len(rollouts) - len(counted)),
        "truncated": float(sum(each.truncated for each in counted)),
    }
    if rewards:
        mean = math.fsum(rewards) / len(rewards)
        found |= {"reward_mean": mean, "rewarded": float(len(rewards))}
        found["reward_std"] = math.sqrt(math.fsum((each - mean) ** 2 for each in rewards) / max(1, len(rewards) - 1))
        low, high = _interval(counted)
        found |= {"reward_low": low, "reward_high": high} if math.isfinite(low) else {}
    return found


def _interval(rollouts: Sequence[CollectedRollout]) -> tuple[float, float]:
    """Of 95 %: that of a share where every reward is 0 or 1, else that of a mean. Several answers to one task are one
    observation, their mean."""
    by_task: dict[str, list[float]] = {}
    for each in rollouts:
        if each.reward is not None:
            by_task.setdefault(each.group, []).append(each.reward)
    means = [math.fsum(rewards) / len(rewards) for rewards in by_task.values()]
    if set(means) <= {0.0, 1.0} and all(len(rewards) == 1 for rewards in by_task.values()):
        return wilson_interval(round(sum(means)), len(means))
    return mean_interval(means)


def staleness(rollouts: Sequence[CollectedRollout], version: int) -> float:
    """How many versions old the sampled tokens are on average."""
    counts: Counter[str | None] = Counter()
    for rollout in rollouts:
        for sample in rollout.samples:
            counts.update(sample.weights_versions)
    known = {int(each): count for each, count in counts.items() if each is not None and each.isdecimal()}
    return sum(max(0, version - each) * count for each, count in known.items()) / (sum(known.values()) or 1)


def in_words(metrics: Metrics) -> str:
    """A step in one line."""
    shown = [f"reward {reward_in_words(metrics)}"]
    shown += [f"{label} {metrics[name]:.3g}" for name, label in _TOLD if name in metrics]
    return ", ".join(shown)


_TOLD = (
    ("flat_groups", "flat groups"),
    ("response_length_mean", "tokens"),
    ("entropy", "entropy"),
    ("kl", "KL"),
    ("grad_norm", "gradient"),
    ("seconds/step", "seconds"),
)


def reward_in_words(metrics: Metrics) -> str:
    """The mean reward, where there is one."""
    return f"{metrics['reward_mean']:.3f}" if "reward_mean" in metrics else "-"
