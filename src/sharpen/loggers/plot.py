"""`plot`: draws the curves of one or several runs to a file. It works without a display."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ..checks import check_names, needs_extra
from ..errors import ConfigError
from ..files import read_csv, read_json_lines

RunPath: TypeAlias = str | os.PathLike[str]
FILES = ("metrics.jsonl", "metrics.csv", "train_result.csv", "validation_result.csv", "result.csv")
# The x value of a row, best first; a row without any of them is placed by its number.
PLACES = ("step", "iter", "seconds")
NO_METRICS = (*PLACES, "time", "")
SUFFIXES = (".png", ".svg", ".pdf")


class Curve(NamedTuple):
    """The points of one metric, and the name of the x axis."""

    axis: str
    xs: list[float]
    ys: list[float]


Curves: TypeAlias = dict[str, Curve]


def plot(
    runs: RunPath | Sequence[RunPath],
    *,
    out: RunPath | None = None,
    metrics: Sequence[str] | None = None,
) -> Path:
    """Draw one panel per metric with one curve per run, and return the path of the picture.

    A run is a folder with `metrics.jsonl`, `metrics.csv` or the tables of `MetricsWriter`, or such a file itself. The
    picture is `curves.png` in the first run's folder, or `out`, whose suffix (.png, .svg, .pdf) selects the format.
    """
    paths = [Path(runs)] if isinstance(runs, str | os.PathLike) else [Path(run) for run in runs]
    if not paths:
        raise ConfigError("there is nothing to plot: pass the folder of a run, or several")
    target = Path(out) if out is not None else (paths[0] if paths[0].is_dir() else paths[0].parent) / "curves.png"
    if target.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"out is {str(out)!r}: its suffix must be one of {', '.join(SUFFIXES)}")
    curves = {label: read_curves(path) for label, path in _labelled(paths).items()}
    return _draw(curves, _chosen(curves, metrics), target)


def read_curves(path: RunPath) -> Curves:
    """Return all metrics in the files of a run. Values that are not finite numbers are left out."""
    run, curves = Path(path), Curves()
    for file in _files_of(run):
        # The table of validations repeats the metrics of training: the first file that has one counts.
        curves = _curves_in(file) | curves
    if not curves:
        raise ConfigError(f"there are no metrics to plot in {str(run)!r} yet")
    return curves


def _curves_in(file: Path) -> Curves:
    curves = Curves()
    for number, row in enumerate(_rows(file)):
        axis = next((name for name in PLACES if name in row), "row")
        place = _number(row.get(axis, number))
        for name, value in row.items():
            if name not in NO_METRICS and math.isfinite(_number(value)) and math.isfinite(place):
                curve = curves.setdefault(name, Curve(axis, [], []))
                if _rank(axis) < _rank(curve.axis):  # steps are better than the seconds of a run's progress
                    curve = curves[name] = Curve(axis, [], [])
                elif axis != curve.axis:
                    continue
                curve.xs.append(place)
                curve.ys.append(_number(value))
    return curves


def _rank(axis: str) -> int:
    return PLACES.index(axis) if axis in PLACES else len(PLACES)


def _files_of(run: Path) -> list[Path]:
    if run.is_file():
        return [run]
    found = [run / name for name in FILES if (run / name).is_file()]
    if not found:
        raise ConfigError(f"there is nothing to plot in {str(run)!r}: it has none of {', '.join(FILES)}")
    # A folder that keeps the same metrics in two formats has each curve once.
    return found[:1] if found[0].name.startswith("metrics.") else found


def _rows(file: Path) -> Iterator[Mapping[str, Any]]:
    if file.suffix == ".jsonl":
        yield from read_json_lines(file)
    else:
        columns, rows = read_csv(file)
        yield from (dict(zip(columns, row, strict=True)) for row in rows)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return math.nan
    try:
        return float(value)
    except ValueError:
        return math.nan


def _labelled(paths: Sequence[Path]) -> dict[str, Path]:
    """Return the runs by the shortest names that distinguish them."""
    absolute = [path.absolute() for path in paths]
    for depth in range(1, max(len(path.parts) for path in absolute) + 1):
        labels = ["/".join(path.parts[-depth:]) for path in absolute]
        if len(set(labels)) == len(labels):
            return dict(zip(labels, paths, strict=True))
    raise ConfigError(f"the same run was passed twice: {', '.join(map(str, paths))}")


def _chosen(curves: Mapping[str, Curves], metrics: Sequence[str] | None) -> list[str]:
    known = list(dict.fromkeys(name for run in curves.values() for name in run))
    if metrics is None:
        return known
    check_names(metrics, known, owner="the run", noun="metric")
    return list(metrics)


def _draw(curves: Mapping[str, Curves], metrics: Sequence[str], target: Path) -> Path:
    with needs_extra("matplotlib", extra="plot", feature="plot"):
        from matplotlib.figure import Figure
    columns = min(len(metrics), 3)
    rows = math.ceil(len(metrics) / columns)
    figure = Figure(figsize=(4.5 * columns, 3.0 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for place, panel in enumerate(panels.flat):
        if place < len(metrics):
            _draw_panel(panel, metrics[place], curves.items())
        else:
            panel.set_axis_off()
    if len(curves) > 1:
        figure.legend(*_legend(panels.flat), loc="outside lower center")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=120)
    return target


def _draw_panel(panel: Any, metric: str, runs: Iterable[tuple[str, Curves]]) -> None:
    for number, (label, curves) in enumerate(runs):
        if metric in curves:
            axis, xs, ys = curves[metric]
            panel.plot(xs, ys, label=label, color=f"C{number}", marker="." if len(xs) < 20 else None)
            panel.set_xlabel(axis, fontsize=8)
    panel.set_title(metric, fontsize=10)
    panel.grid(visible=True, alpha=0.3)


def _legend(panels: Iterable[Any]) -> tuple[list[Any], list[str]]:
    """One entry per run, although not every run has every metric."""
    found: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    return list(found.values()), list(found)
