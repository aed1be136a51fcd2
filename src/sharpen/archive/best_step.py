"""Which of the steps that a run kept was the best."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from .catalog import RunEntry
from .curves import is_loss, read_curves

_MONITORS = ("val/reward_mean", "val/reward", "val/loss")


class Reason(msgspec.Struct, frozen=True):
    """Why a step was chosen."""

    step: int | None
    metric: str | None = None
    """None: it is the newest, as no validation tells more."""
    value: float | None = None


class Choice(msgspec.Struct, frozen=True):
    """What was kept of a step."""

    path: Path
    step: int | None
    """None: the end of the run."""
    reason: Reason = Reason(None)


def choose(entry: RunEntry, choices: Sequence[Choice]) -> Choice | None:
    """The one with the best validation; of equal ones, and without validations, the newest, which stands last."""
    if not choices:
        return None
    metric, values = _validations(entry)
    newest = max(values, default=None)
    scored = [
        (values[step], each) for each in choices if (step := newest if each.step is None else each.step) in values
    ]
    if metric is None or not scored:
        return msgspec.structs.replace(choices[-1], reason=Reason(choices[-1].step))
    sign = -1.0 if is_loss(metric) else 1.0
    value, best = max(reversed(scored), key=lambda pair: sign * pair[0])
    return msgspec.structs.replace(best, reason=Reason(best.step, metric, value))


def _validations(entry: RunEntry) -> tuple[str | None, dict[int, float]]:
    curves = {} if entry.metrics_path is None else read_curves(entry.metrics_path, _MONITORS, max_points=1_000_000)
    for metric in _MONITORS:
        series = curves.get(metric)
        if series is not None and series.axis == "iteration":
            return metric, dict(zip(map(int, series.steps), series.values, strict=True))
    return None, {}


def numbered(paths: Sequence[Path], pattern: re.Pattern[str]) -> list[Choice]:
    """Those whose names hold a step, in the order of the steps."""
    found = [(int(match[1]), path) for path in paths if (match := pattern.fullmatch(path.name))]
    return [Choice(path, step) for step, path in sorted(found)]
