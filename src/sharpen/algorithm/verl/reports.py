"""What people are told of a run: a line for each step, warnings about trends, and a summary at the end.

The summary is kept with the checkpoints. All numbers are computed here from rollouts and from the metrics of steps; no
torch.
"""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, SharpenError
from ...runs.screen import show
from ...stats import mean_interval, wilson_interval
from .preflight import Spelling, advice_for_flat
from .training_data import CollectedRollout

if TYPE_CHECKING:
    from rich.table import Table

log = logging.getLogger(__name__)

Metrics = dict[str, float]
CURVES = (
    "train/reward_mean",
    "val/reward_mean",
    "train/entropy",
    "train/update_nats",
    "train/grad_norm",
    "train/response_length_mean",
    "train/flat_groups",
    "train/seconds/step",
)
MOST_ROWS = 12
_OF_A_STEP = (
    *("reward_mean", "reward_min", "reward_max", "flat_groups", "entropy", "seconds/step"),
    *("updates", "update_nats", "rollouts", "truncated", "response_length_mean"),
)


class Summary:
    """Kept with the checkpoints, so that a resumed run tells of all of itself."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.validations: list[dict[str, float]] = []
        self.checks: list[str] = []
        """What the preflight found, other than that all is well."""
        self.selection = Selection()

    @classmethod
    def of(cls, state: Mapping[str, Any] | None) -> "Summary":
        found = cls()
        for name in ("steps", "validations", "checks"):
            setattr(found, name, list((state or {}).get(name, [])))
        found.selection = Selection((state or {}).get("selection"))
        return found

    def state(self) -> dict[str, Any]:
        return {"steps": list(self.steps), "validations": list(self.validations), "checks": list(self.checks)} | {
            "selection": self.selection.state()
        }

    def add_step(self, step: int, metrics: Metrics) -> None:
        self.steps.append({"step": step} | {name: metrics[name] for name in _OF_A_STEP if name in metrics})

    def add_validation(self, step: int, metrics: Metrics) -> None:
        self.validations.append({"step": step} | dict(metrics))

    def show(self, run_dir: Path | None) -> None:
        """To the screen, and as a picture into the folder of the run where there is one and matplotlib."""
        if self.steps or self.validations:
            show(self.table())
            log.info("%s", self.selection.describe())
        if run_dir is not None and self.steps:
            self._draw(run_dir)

    def table(self) -> "Table":
        from rich.table import Table

        table = Table(title="training", title_justify="left")
        for column in ("step", "reward", "flat groups", "entropy", "validation reward", "95% interval"):
            table.add_column(column, justify="right", no_wrap=True)
        validations = {int(each["step"]): each for each in self.validations}
        steps = {int(each["step"]): each for each in self.steps}
        for step in _spread(sorted(steps | validations), validations):
            row, val = steps.get(step, {}), validations.get(step, {})
            low, high = val.get("reward_low"), val.get("reward_high")
            interval = "" if low is None or high is None else f"{low:.3f} to {high:.3f}"
            cells = [_cell(row, name) for name in ("reward_mean", "flat_groups", "entropy")]
            table.add_row(str(step), *cells, _cell(val, "reward_mean"), interval)
        return table

    def _draw(self, run_dir: Path) -> None:
        from ...loggers.plot import plot, read_curves

        try:
            known = read_curves(run_dir)
            picture = plot(run_dir, metrics=[name for name in CURVES if name in known] or None)
        except SharpenError as error:  # matplotlib is an extra, and without reports there are no curves
            log.info("no curves were drawn: %s", error)
        else:
            log.info("curves: %s", picture)


def _cell(row: Metrics, name: str) -> str:
    return f"{row[name]:.3f}" if name in row else ""


def _spread(steps: list[int], always: Mapping[int, Any]) -> list[int]:
    """Not more rows than a screen takes: the first, the last, those with a validation, and some between."""
    if len(steps) <= MOST_ROWS:
        return steps
    stride = -(-len(steps) // MOST_ROWS)
    return [step for place, step in enumerate(steps) if place % stride == 0 or step in always or step == steps[-1]]


# -- which rollouts are trained -----------------------------------------------------------------------


KINDS = ("sampled", "compared", "trained")
MEASURES = ("length", "reward")


class Selection:
    """Counts, sums and squares of the lengths and rewards of all rollouts of a run."""

    def __init__(self, sums: Mapping[str, Sequence[float]] | None = None) -> None:
        names = [f"{kind}/{measure}" for kind in KINDS for measure in MEASURES]
        self._sums: dict[str, list[float]] = {name: list((sums or {}).get(name, (0.0, 0.0, 0.0))) for name in names}

    def state(self) -> dict[str, Any]:
        return {name: list(each) for name, each in self._sums.items()}

    def add(self, rollouts: Sequence[CollectedRollout], trained: Set[str]) -> None:
        """`trained` are the ids of those that an update was made from. A rollout that is compared has a reward, and
        something that can be trained."""
        for rollout in rollouts:
            is_compared = rollout.counts and any(sample.num_trained for sample in rollout.samples)
            is_of_kind = (True, is_compared, rollout.rollout_id in trained)
            for kind in compress(KINDS, is_of_kind):
                self._add(f"{kind}/length", float(sum(rollout.response_lengths)))
                if rollout.reward is not None:
                    self._add(f"{kind}/reward", rollout.reward)

    def _add(self, name: str, value: float) -> None:
        sums = self._sums[name]
        sums[0] += 1
        sums[1] += value
        sums[2] += value * value

    def metrics(self) -> dict[str, float]:
        """The means so far."""
        return {f"{name}_mean": sums[1] / sums[0] for name, sums in self._sums.items() if sums[0]}

    def describe(self) -> str:
        """One line for the end of a run."""
        return "; ".join(f"{kind}: {self._of(kind)}" for kind in KINDS)

    def _of(self, kind: str) -> str:
        count = int(self._sums[f"{kind}/length"][0])
        parts = [f"{measure} {_mean(self._sums[f'{kind}/{measure}'])}" for measure in MEASURES]
        return f"{count} rollouts, mean {', '.join(parts)}"


def _mean(sums: Sequence[float]) -> str:
    """With its standard error."""
    count, total, squares = sums
    if not count:
        return "-"
    mean = total / count
    spread = math.sqrt(max(0.0, squares / count - mean * mean) / count)
    return f"{mean:.4g} ± {spread:.2g}"


# -- metrics in words ---------------------------------------------------------------------------------


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


def describe_metrics(metrics: Metrics) -> str:
    """A step in one line."""
    shown = [f"reward {describe_reward(metrics)}"]
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


def describe_reward(metrics: Metrics) -> str:
    """The mean reward, where there is one."""
    return f"{metrics['reward_mean']:.3f}" if "reward_mean" in metrics else "-"


# -- trends that a person should know of --------------------------------------------------------------


Steps = Sequence[Mapping[str, float]]

LARGE_NATS = 0.5  # by which one update may move the log-probability of a sampled token on average
WINDOW = 3  # steps at the beginning and at the end that are compared


def step_warnings(steps: Steps, *, spell: Spelling = str) -> dict[str, str]:
    """What is wrong after the newest step, by its kind."""
    found = {}
    nats = steps[-1].get("update_nats", 0.0) if steps else 0.0
    rate = spell("actor_rollout_ref.actor.optim.lr")
    if nats > LARGE_NATS:
        found["update"] = (
            f"the update of step {steps[-1]['step']:.0f} moved the log-probability of sampled tokens by {nats:.2g} "
            f"nats on average, up to 0.3 is usual: lower {rate} if the reward falls or train/update_nats stays "
            "above 0.5"
        )
    if len(steps) >= 2 * WINDOW and _rises(steps):
        found |= _runaways(steps, spell)
    return found


def limit_warning(rollouts: Sequence[CollectedRollout], *, limit: int, spell: Spelling = str) -> str | None:
    """How many rollouts of a step ran to the limit of tokens, for which all others wait, and what to set."""
    cut = [each for each in rollouts if each.truncated and not each.num_too_long and not each.is_lost]
    if not cut:
        return None
    option = spell("data.max_response_length")
    longest = max((length for each in cut for length in each.response_lengths), default=0)
    ended = [length for each in rollouts if not each.truncated for length in each.response_lengths]
    told = f"{len(cut)} of {len(rollouts)} rollouts reached the token limit"
    if longest < limit:
        return f"{told}, the agent's max_tokens ({longest}): raise it if correct answers are cut off"
    if len(cut) > len(rollouts) / 2:
        return f"{told}, {option} ({limit}): raise it, or prompt for shorter answers"
    others = f"; the longest complete answer has {max(ended)}" if ended else ""
    advice = (
        "A step waits for its longest answer: lower it if correct answers are shorter, raise it if they are cut off"
    )
    return f"{told}, {option} ({limit}){others}. {advice}"


def final_warning(steps: Steps, *, spell: Spelling = str) -> str | None:
    """Why no weight of the model has changed, where that is so."""
    if not steps or any(step.get("updates", 1.0) > 0 for step in steps):
        return None
    told = f"no weight of the model changed in {len(steps)} steps: "
    rewarded = [step for step in steps if "reward_min" in step and "reward_max" in step]
    if not rewarded:
        return f"{told}no rollout had a usable reward; see run.log in the run folder"
    low, high = min(step["reward_min"] for step in rewarded), max(step["reward_max"] for step in rewarded)
    seen = f"always {low:g}" if low == high else f"between {low:g} and {high:g}"
    advice = advice_for_flat([low, high], more=spell("actor_rollout_ref.rollout.n"))
    return f"{told}all rollouts of a group had the same reward ({seen}), so there was nothing to learn from: {advice}"


def _rises(steps: Steps) -> bool:
    before, now = _ends(steps, "reward_mean")
    return before is not None and now is not None and now > before


def _runaways(steps: Steps, spell: Spelling) -> dict[str, str]:
    found = {}
    read = "The reward may favour this: read some answers (sharpen rollouts show), and penalise it in the reward"
    limit, rate = spell("data.max_response_length"), spell("actor_rollout_ref.actor.optim.lr")
    length, now = _ends(steps, "response_length_mean")
    if length and now and now > 2 * length and now > length + 16:
        found["length"] = f"answers grew from {length:.0f} to {now:.0f} tokens while the reward rose. {read}"
    shares = [{"share": step["truncated"] / step["rollouts"]} for step in steps if step.get("rollouts")]
    cut, now = _ends(shares, "share")
    if cut is not None and now is not None and now > cut + 0.2:
        found["truncated"] = (
            f"{now:.0%} of the rollouts reach the token limit, up from {cut:.0%} at the start, while the reward "
            f"rose. {read}, or raise {limit}"
        )
    entropy, now = _ends(steps, "entropy")
    if entropy is not None and now is not None and now > 2 * entropy and now > entropy + 0.5:
        found["entropy"] = (
            f"the entropy grew from {entropy:.2g} to {now:.2g} nats per token while the reward rose: answers become "
            f"random. Lower {rate} or {spell('actor_rollout_ref.actor.entropy_coeff')}"
        )
    return found


def _ends(steps: Steps, name: str) -> tuple[float | None, float | None]:
    """The mean of the first and of the last few steps that have this metric."""
    values = [step[name] for step in steps if name in step]
    if len(values) < 2 * WINDOW:
        return None, None
    return sum(values[:WINDOW]) / WINDOW, sum(values[-WINDOW:]) / WINDOW
