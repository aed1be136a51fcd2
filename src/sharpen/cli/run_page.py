"""`sharpen runs show`: one run on one screen, or as one JSON value."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..archive.best import model_choices
from ..archive.catalog import RunEntry, size_of
from ..archive.comparison import reported_estimate, summaries
from ..archive.curves import Series, main_metrics, read_curves
from ..archive.run_files import RunFiles, fields_of
from ..dashboard.formats import duration, moment
from .columns import Column
from .output import Output, one_line
from .runs import STYLES, as_json
from .sparkline import sparkline

if TYPE_CHECKING:
    from rich.text import Text

_POINTS = 200
_PARTS = ("algorithm", "store", "runner", "strategy", "tracer", "adapter", "llm_proxy")
_LISTS = ("callbacks", "loggers", "hooks")
_TASKS = {"simulator": "initial states", "fine-tuning": "rows"}
_RECORDS = ("config.json", "settings.json", "train.yaml", "result.json", "episodes.jsonl")


class RunPage:
    """The page of one run."""

    def __init__(self, entry: RunEntry) -> None:
        self.entry = entry
        self.config = entry.config()
        self.warnings: list[str] = RunFiles(entry.path).result().get("warnings") or []

    def as_json(self) -> dict[str, Any]:
        return as_json(self.entry) | {
            "config": self.config,
            "warnings": self.warnings,
            "main_metrics": summaries(self.entry),
            "curves": self._curves(),
            "files": dict(self._files()),
            "size_bytes": size_of(self.entry),
        }

    def draw(self, out: Output, *, with_traceback: bool = False) -> None:
        """Print the page."""
        out.rich(self._title())
        self._draw_pairs(out, self._facts())
        self._draw_pairs(out, self._made_of(), title="configuration")
        self._draw_metrics(out)
        self._draw_error(out, with_traceback=with_traceback)
        self._draw_pairs(out, self._files(), title="files")

    # -- parts ---------------------------------------------------------------------------------------

    def _title(self) -> "Text":
        from rich.text import Text

        state = (self.entry.state, STYLES.get(self.entry.state, ""))
        return Text.assemble((one_line(self.entry.name), "bold"), "  ", state)

    def _facts(self) -> list[tuple[str, object]]:
        entry = self.entry
        facts: list[tuple[str, object]] = [
            ("kind", entry.kind),
            ("algorithm", entry.algorithm),
            ("simulator" if entry.kind == "simulator" else "agent", entry.agent),
            ("model", entry.model),
            ("started", None if entry.started is None else moment(entry.started)),
            ("resumed", ", ".join(map(str, self.config.get("resumed") or ())) or None),
            ("duration", None if entry.seconds is None else duration(entry.seconds)),
            ("rollouts", entry.rollouts),
            ("steps", entry.steps),
            ("reward", self._reward()),
            *(("warning", one_line(each)) for each in self.warnings),
        ]
        return [pair for pair in facts if pair[1] is not None]

    def _reward(self) -> str | None:
        entry = self.entry
        if entry.reward is None:
            return None
        told = reported_estimate(entry)
        interval = "" if told is None or told.mean != entry.reward else f"; 95 %: {told.low:.4g} to {told.high:.4g}"
        return f"{entry.reward:.4g} ({entry.reward_name}{interval})"

    def _made_of(self) -> list[tuple[str, object]]:
        if "components" not in self.config:
            return [(name, value) for name, value in self.config.items() if value not in (None, {}, [])]
        components, datasets = fields_of(self.config, "components"), fields_of(self.config, "datasets")
        parts = [(name, _component(components[name])) for name in _PARTS if components.get(name)]
        noun = _TASKS.get(self.entry.kind, "tasks")
        tasks = [(f"{name} {noun}", _tasks(dataset)) for name, dataset in datasets.items() if dataset]
        lists = [(name, ", ".join(map(str, self.config[name]))) for name in _LISTS if self.config.get(name)]
        settings = fields_of(self.config, "settings").items()
        others = [(name, value) for name, value in settings if name != "kind" and value not in (None, False)]
        return [*parts, *tasks, *lists, *others]

    def _files(self) -> list[tuple[str, object]]:
        entry = self.entry
        names = () if entry.kind == "store" else _RECORDS
        found: list[tuple[str, Path | None]] = [
            ("folder", entry.path),
            ("store", entry.store_path),
            ("metrics", entry.metrics_path),
            ("log", entry.log_path),
            *((name, path) for name in names if (path := entry.path / name).is_file()),
            *((str(folder.relative_to(entry.path)), folder) for folder in entry.prompt_folders()),
            *(("model", choice.path) for choice in model_choices(entry)[-1:]),
        ]
        return [(name, path) for name, path in found if path is not None]

    def _curves(self) -> dict[str, Series]:
        path = self.entry.metrics_path
        wanted = main_metrics(self.entry.metrics)
        return {} if path is None else read_curves(path, wanted, max_points=_POINTS)

    # -- drawing -------------------------------------------------------------------------------------

    def _draw_pairs(self, out: Output, pairs: list[tuple[str, object]], *, title: str | None = None) -> None:
        if not pairs:
            return
        out.line()
        if title is not None:
            out.line(f"{title}:")
        width = max(len(name) for name, _ in pairs)
        for name, value in pairs:
            out.line(f"  {name:<{width}}  {value}")

    def _draw_metrics(self, out: Output) -> None:
        found = summaries(self.entry)
        if not found:
            return
        curves = self._curves()
        rows = [
            [name, _number(each.final), _number(each.best), _number(each.best_step), _drawn(curves, name)]
            for name, each in found.items()
        ]
        out.line()
        out.table(("metric", "last", "best", Column("at step", spare=1), Column("curve", spare=2)), rows)
        others = len(self.entry.metrics) - len(found)
        if others:
            out.line(f"{others} more metrics are in the --json output")

    def _draw_error(self, out: Output, *, with_traceback: bool) -> None:
        error, line = self.entry.error, self.entry.error_line
        if error is None or line is None:
            if self.entry.state == "killed":
                out.line(
                    f"\nthe process was killed or its machine failed before it recorded a result{self._how_to_resume()}"
                )
            return
        if self.entry.state == "interrupted" and not with_traceback:
            out.line(f"\nthe run was interrupted and shut down cleanly{self._how_to_resume()}")
            return
        out.line(f"\nerror:\n{_indented(error if with_traceback else line)}")
        if not with_traceback and error != line:
            out.line("  (use --traceback for the traceback; the log has more details)")

    def _how_to_resume(self) -> str:
        kept = self.entry.path / "train.yaml"
        if kept.is_file():
            command = shlex.join(["sharpen", "train", str(kept), "--resume", str(self.entry.path)])
            return f"; resume it with `{command}`"
        is_ours = self.entry.kind == "agents"
        return f"; resume it with Trainer(...).fit(..., resume={str(self.entry.path)!r})" if is_ours else ""


def _component(described: Any) -> str:
    if not isinstance(described, dict):
        return str(described)
    if described.get("stages"):
        return ", then ".join(map(_component, described["stages"]))
    spec = described.get("spec")
    return f"{described.get('class')}{'' if spec is None else f'  from {spec}'}"


def _tasks(dataset: Any) -> object:
    size = dataset.get("size") if isinstance(dataset, dict) else None
    return "unknown number" if size is None else size


def _number(value: float | None) -> float | int | None:
    """Return a whole number as an int, so that all its digits are shown."""
    return int(value) if value is not None and value.is_integer() and abs(value) < 1e12 else value


def _drawn(curves: dict[str, Series], name: str) -> str:
    series = curves.get(name)
    if series is None or len(series.values) < 2:
        return ""
    last = series.steps[-1]
    return f"{sparkline(series.values)}  {'to ' + duration(last) if series.axis == 'seconds' else f'to {last:g}'}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
