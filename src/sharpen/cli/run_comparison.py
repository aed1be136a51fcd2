"""`sharpen runs compare`: the tables of a comparison."""

from typing import TYPE_CHECKING

from ..archive.comparison import ComparedRun, Comparison, Difference, Estimate
from ..dashboard.formats import duration
from .columns import Column
from .output import Output

if TYPE_CHECKING:
    from rich.text import Text

_LONG = 60


def draw_comparison(out: Output, comparison: Comparison) -> None:
    """Rewards with intervals, paired differences, main metrics, and settings that differ."""
    _draw_runs(out, comparison)
    for mode in comparison.modes:
        _draw_scores(out, comparison, mode)
    _draw_differences(out, comparison)
    _draw_metrics(out, comparison)
    _draw_settings(out, comparison)


def _draw_runs(out: Output, comparison: Comparison) -> None:
    rows = [[_letter(n), run.name, run.state, run.algorithm, _took(run)] for n, run in enumerate(comparison.runs)]
    out.table(("", "run", "state", Column("algorithm", least=10, spare=2), Column("duration", spare=1)), rows)
    for run in comparison.runs:
        if run.problem is not None:
            out.note(f"{run.name}: {run.problem}")
        if run.is_partial:
            out.note(f"{run.name}: only the newest rollouts were compared")


def _draw_scores(out: Output, comparison: Comparison, mode: str) -> None:
    rows = []
    for number, run in enumerate(comparison.runs):
        score = run.score(mode)
        if score is not None:
            tasks, count = score.final.tasks, score.final.rollouts
            best = None if score.versions == 1 else _interval(score.best)
            rows.append([_letter(number), run.name, _interval(score.final), tasks, count, best, score.versions])
    # The letters identify the runs, so their names are dropped first.
    names = (
        ("", 0),
        ("run", 4),
        ("last [95 %]", 0),
        ("tasks", 1),
        ("rollouts", 2),
        ("best [95 %]", 0),
        ("versions", 3),
    )
    columns = [Column(name, spare=spare) for name, spare in names]
    out.line()
    out.table(columns, rows, title=f"reward, {mode}")


def _draw_differences(out: Output, comparison: Comparison) -> None:
    letters = {run.name: _letter(number) for number, run in enumerate(comparison.runs)}
    out.line()
    if not comparison.differences:
        out.line("no paired differences: the runs have no tasks with rewards in common")
        return
    rows = [_difference(each, letters) for each in comparison.differences]
    title = "paired differences on common tasks"
    out.table(("difference", "mode", "mean [95 %]", "tasks", ""), rows, title=title)


def _difference(each: Difference, letters: dict[str, str]) -> list[object]:
    names = f"{letters[each.second]} - {letters[each.first]}"
    return [names, each.mode, _range(each.mean, each.low, each.high, sign="+"), each.tasks, _verdict(each, letters)]


def _verdict(each: Difference, letters: dict[str, str]) -> "Text":
    from rich.text import Text

    if each.low == each.high == 0:
        return Text("same")
    if not each.is_clear:
        return Text("not clear")
    better = letters[each.second if each.mean > 0 else each.first]
    return Text(f"{better} is better", style="green")


def _draw_metrics(out: Output, comparison: Comparison) -> None:
    names = comparison.metric_names
    if not names:
        return
    rows = [[name, *(_metric(run, name) for run in comparison.runs)] for name in names]
    out.line()
    out.table(("metric (best)", *_letters(comparison)), rows)


def _metric(run: ComparedRun, name: str) -> str | None:
    found = run.metrics.get(name)
    if found is None:
        return None
    best = "" if found.best is None else f" ({_number(found.best)})"
    return f"{_number(found.final)}{best}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e12 else f"{value:.4g}"


def _draw_settings(out: Output, comparison: Comparison) -> None:
    out.line()
    if not comparison.settings:
        out.line("no recorded settings differ")
        return
    rows = [[each.name, *map(_short, each.values)] for each in comparison.settings]
    out.table(("setting", *_letters(comparison)), rows)


def _letters(comparison: Comparison) -> list[str]:
    return [_letter(number) for number in range(len(comparison.runs))]


def _letter(number: int) -> str:
    """A, B, …, Z, then numbers."""
    return chr(ord("A") + number) if number < 26 else str(number + 1)


def _took(run: ComparedRun) -> str | None:
    return None if run.seconds is None else duration(run.seconds)


def _interval(estimate: Estimate) -> str:
    return _range(estimate.mean, estimate.low, estimate.high)


def _range(mean: float, low: float | None, high: float | None, *, sign: str = "") -> str:
    number = f"{mean:{sign}.3f}"
    return f"{number} [?]" if low is None or high is None else f"{number} [{low:{sign}.3f}, {high:{sign}.3f}]"


def _short(value: str | None) -> str | None:
    return value if value is None or len(value) <= _LONG else f"{value[: _LONG - 1]}…"
