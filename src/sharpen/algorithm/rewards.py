"""What came of rollouts: counts and rewards, per split.

A rollout that failed by its agent's fault counts with its reward, or 0. One that was lost to infrastructure (its
worker was last heard of in the middle of it) or was cancelled says nothing about the agent: it is counted, shown, and
left out of the mean. So is one that succeeded without a reward.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..store import LightningStore
from ..types import AttemptedRollout, Rollout

if TYPE_CHECKING:
    from rich.table import Table


class Tally(msgspec.Struct):
    """Counts and rewards of one split. Its size does not grow with the number of rollouts."""

    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    cancelled: int = 0
    rewarded: int = 0
    total: float = 0.0
    low: float | None = None
    high: float | None = None

    @property
    def count(self) -> int:
        return self.succeeded + self.failed + self.lost + self.cancelled

    @property
    def mean(self) -> float | None:
        return self.total / self.rewarded if self.rewarded else None

    def numbers(self) -> dict[str, float]:
        """By name. Without any reward there is no mean, and no least and greatest one."""
        found: dict[str, float] = {name: getattr(self, name) for name in ("succeeded", "failed", "lost", "cancelled")}
        found["rollouts"] = self.count
        if self.low is not None and self.high is not None:
            found |= {"reward_mean": self.total / self.rewarded, "reward_min": self.low, "reward_max": self.high}
        return found

    def add(self, rollout: Rollout) -> None:
        if rollout.status == "cancelled":
            self.cancelled += 1
        elif is_lost(rollout):
            self.lost += 1
        elif rollout.status == "failed":
            self.failed += 1
            self._add_reward(rollout.reward or 0.0)
        else:
            self.succeeded += 1
            if rollout.reward is not None:
                self._add_reward(rollout.reward)

    def _add_reward(self, reward: float) -> None:
        self.rewarded += 1
        self.total += reward
        self.low = reward if self.low is None else min(self.low, reward)
        self.high = reward if self.high is None else max(self.high, reward)


class Rewards(msgspec.Struct):
    """A tally of all rollouts and one of every split."""

    all: Tally = msgspec.field(default_factory=Tally)
    by_mode: dict[str, Tally] = {}

    def add(self, rollout: Rollout) -> None:
        """Count a finished rollout; a failed one is told apart by its last attempt (`with_last_attempt`)."""
        self.all.add(rollout)
        if rollout.mode is not None:
            self.by_mode.setdefault(rollout.mode, Tally()).add(rollout)

    def metrics(self) -> dict[str, Any]:
        """Over the whole run so far, by name: those of one mode are `run/train/…` and `run/val/…`. `train/…` and
        `val/…` are what an algorithm reports of one iteration."""
        found: dict[str, Any] = {"rollouts": self.all.count}
        found |= {name: getattr(self.all, name) for name in ("succeeded", "failed", "lost", "cancelled")}
        found |= {"run/reward_mean": self.all.mean, "reward_mean": self.all.mean}
        for mode, tally in self.by_mode.items():
            found |= {f"run/{mode}/rollouts": tally.count, f"run/{mode}/reward_mean": tally.mean}
        return found

    def table(self, title: str) -> "Table":
        from rich.table import Table

        table = Table(title=title, title_justify="left")
        for column in ("mode", "count", "succeeded", "failed", "lost", "mean reward", "min", "max"):
            table.add_column(column, justify="left" if column == "mode" else "right", no_wrap=True)
        rows = list(self.by_mode.items())
        if len(rows) != 1 or self.all.count != rows[0][1].count:
            rows.append(("all", self.all))
        for name, tally in rows:
            counts = (tally.count, tally.succeeded, tally.failed, tally.lost)
            table.add_row(name, *map(str, counts), *map(_number, (tally.mean, tally.low, tally.high)))
        if self.all.cancelled:
            table.caption = f"{self.all.cancelled} cancelled"
        return table


def with_old_names(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """`run/train/…` and `run/val/…` also under their names of 0.1, `train/…` and `val/…`: all of them, or none where
    an iteration or a validation was reported, so that in one result `train/…` and `val/…` cover the same."""
    if any(name.startswith(("train/", "val/")) for name in metrics):
        return dict(metrics)
    over_the_run = {name.removeprefix("run/"): value for name, value in metrics.items() if name.startswith("run/")}
    return over_the_run | dict(metrics)


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"


async def with_last_attempt(store: LightningStore, rollout: Rollout) -> Rollout:
    """A failed rollout together with its last attempt, which knows why; any other as it is."""
    if rollout.status != "failed" or isinstance(rollout, AttemptedRollout):
        return rollout
    attempt = await store.get_latest_attempt(rollout.rollout_id)
    return rollout if attempt is None else AttemptedRollout(**msgspec.structs.asdict(rollout), attempt=attempt)


def is_lost(rollout: Rollout) -> bool:
    """Whether it failed because its last worker was not heard of any more."""
    if rollout.status != "failed" or not isinstance(rollout, AttemptedRollout):
        return False
    return rollout.attempt.status == "unresponsive"


def has_error(rollout: Rollout) -> bool:
    """Whether it failed with an error of its agent, which is in its last attempt."""
    if not isinstance(rollout, AttemptedRollout) or rollout.status != "failed":
        return False
    return "error" in (rollout.attempt.metadata or {})


def why_failed(rollout: Rollout) -> str | None:
    """The reason of a failed rollout, in one line."""
    if not isinstance(rollout, AttemptedRollout) or rollout.status != "failed":
        return None
    if rollout.attempt.status == "unresponsive":
        return f"worker {rollout.attempt.worker_id} stopped responding"
    about = rollout.attempt.metadata or {}
    if "error" not in about:
        return f"its last attempt ended with status {rollout.attempt.status}"
    lines = str(about["error"]).splitlines()
    return f"{about.get('error_type', 'error')}: {lines[0] if lines else ''}"
