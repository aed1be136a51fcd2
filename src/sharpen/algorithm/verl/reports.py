"""What came of a step or a validation: as numbers, and in a line."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import ConfigError
from ...stats import mean_interval, wilson_interval
from .collected import CollectedRollout

Metrics = dict[str, float]


def validation_metrics(rollouts: Sequence[CollectedRollout], labels: Sequence[str | None] = ()) -> Metrics:
    """What came of a validation. A rollout that was lost says nothing about the policy. `labels`, one for each
    rollout, are names of groups, whose means are reported besides, each with its interval."""
    found: Metrics = {}
    for label in dict.fromkeys(filter(None, labels)):
        group = _all_together([each for each, own in zip(rollouts, labels, strict=True) if own == label])
        names = {"reward_mean": label, "reward_low": f"{label}_low", "reward_high": f"{label}_high"}
        found |= {new: group[name] for name, new in names.items() if name in group}
    return found | _all_together(rollouts)


def _all_together(rollouts: Sequence[CollectedRollout]) -> Metrics:
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
    if metrics.get("truncated"):
        shown.append(f"cut {metrics['truncated']:.0f} of {metrics['rollouts']:.0f}")
    return ", ".join(shown)


_TOLD = (
    ("flat_groups", "flat groups"),
    ("response_length_mean", "tokens"),
    ("entropy", "entropy"),
    ("kl", "KL"),
    ("grad_norm", "gradient"),
    ("seconds/step", "seconds"),
)


def group_labels(tasks: Sequence[Any], key: str | None) -> list[str | None]:
    """The value of a field in each task, as a name for metrics; None where a task lacks it."""
    if key is None:
        return []
    values = [task.get(key) if isinstance(task, Mapping) else getattr(task, key, None) for task in tasks]
    if tasks and all(value is None for value in values):
        raise ConfigError(
            f"trainer.val_group_key (validate_by) is {key!r}, but no validation task has a field of that name"
        )
    taken = _all_together([]).keys() | {"rewarded", "reward_mean", "reward_std", "reward_low", "reward_high", "seconds"}
    names = [None if value is None else str(value) for value in values]
    labels: dict[str | None, str | None] = {None: None}
    for name in sorted({name for name in names if name is not None}):
        label = name
        while not taken.isdisjoint(metrics := (label, f"{label}_low", f"{label}_high")):
            label = f"{key}_{label}"
        labels[name] = label
        taken |= set(metrics)
    return [labels[name] for name in names]


def reward_in_words(metrics: Metrics) -> str:
    """The mean reward, where there is one."""
    return f"{metrics['reward_mean']:.3f}" if "reward_mean" in metrics else "-"
