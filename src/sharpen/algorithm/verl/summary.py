"""What a run came to: the rewards of its steps and validations, as a table and as curves."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import SharpenError
from ...runs.screen import show
from .selection import Selection

if TYPE_CHECKING:
    from rich.table import Table

log = logging.getLogger(__name__)

Metrics = Mapping[str, float]
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
            log.info("%s", self.selection.in_words())
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
