"""What a command prints when a run ends: rewards, where the files are, and what to do next."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from .exit_codes import FAILED, INTERRUPTED, OK, is_interrupt
from .output import Output

if TYPE_CHECKING:
    from ..archive.lookup import CommonFailure
    from ..trainer import RunResult
    from .config import TrainConfig
    from .config.recording_trainer import RecordingTrainer

_MANY = 0.5  # from this share of failed rollouts on, the failures are reported first


class ResultPage:
    """The result of a configuration's run; `command` is the one that started it and that resumes it."""

    def __init__(self, command: str, config: "TrainConfig", given: Path, out: Output) -> None:
        self._command, self._config, self._given, self._out = command, config, given, out
        self._has_failures = False

    def show(self, result: "RunResult") -> int:
        """Print the result as text or JSON, and return the exit code."""
        scores = [] if result.run_dir is None else run_scores(result.run_dir)
        if self._out.is_json:
            record = {**result.record(), "run_dir": result.run_dir}
            failures = None if result.run_dir is None else why_failed(result.run_dir, result.metrics)
            self._out.value({**record, "kind": self._config.kind, "scores": scores, "failures": failures})
        else:
            self._draw(result, scores)
        return {"succeeded": OK, "interrupted": INTERRUPTED}.get(result.status, FAILED)

    @contextmanager
    def reporting_interrupts(self) -> Iterator[None]:
        """With `--json`, print how far a run got before a signal ended it, and where it is saved."""
        try:
            yield
        except (KeyboardInterrupt, SystemExit) as error:
            if self._out.is_json and is_interrupt(error):
                self._out.value({"status": "interrupted", **self._record(), "kind": self._config.kind})
            raise

    def _record(self) -> dict[str, Any]:
        folder = self._config.kept_in
        if folder is None:
            return {"run_dir": None}
        from ..archive.run_files import RunFiles

        return {**RunFiles(folder).result(), "run_dir": folder}

    @contextmanager
    def reporting_failure(self, trainer: "RecordingTrainer") -> Iterator[None]:
        """Print where a failed run is saved and how to resume it."""
        try:
            yield
        except BaseException:
            ended = trainer.result
            if ended is not None and ended.run_dir is not None:
                self._out.note(f"The run is saved in {ended.run_dir}. To resume it: {self._resume(ended.run_dir)}")
            raise

    def _draw(self, result: "RunResult", scores: list[dict[str, Any]]) -> None:
        out, took = self._out, f"after {result.seconds:.1f} s"
        out.line(f"{'The run' if result.run_dir is None else _name(result.run_dir)}: {result.status} {took}")
        draw_failures(out, result.run_dir, result.metrics, has_scores=bool(scores))
        for warning in result.warnings:
            out.line(f"  warning: {warning}")
        for score in scores:
            out.line(f"  {_title(score['mode'])}: {_estimate(score)}")
        for name, value in _main_metrics(result.metrics, bool(scores)):
            out.line(f"  {name}: {value:.4g}")
        self._has_failures = bool(result.metrics.get("failed"))
        if result.run_dir is not None:
            self._draw_places(result.run_dir, is_interrupted=result.status == "interrupted")

    def _draw_places(self, folder: Path, *, is_interrupted: bool) -> None:
        out, name = self._out, quote(_name(folder))
        best = next((path for path in sorted(folder.glob("**/prompts/best_prompt.txt"))), None)
        out.line(f"  run folder: {folder}")
        if best is not None:
            out.line(f"  best prompt: {best}")
        out.line("Next:")
        if is_interrupted:
            out.line(f"  {self._resume(folder)}")
        out.line(f"  sharpen runs show {name}")
        if self._config.kind == "agents" and _has_store(folder):
            out.line(f"  sharpen rollouts list --run {name}")
            if self._has_failures:
                out.line(f"  sharpen rollouts list --run {name} --status failed")
        out.line(f"  sharpen eval {quote(str(self._given))} --run {name}")
        out.line("  sharpen dashboard")

    def _resume(self, folder: Path) -> str:
        return f"sharpen {self._command} {quote(str(self._given))} --resume {quote(_name(folder))}"


def run_scores(run_dir: Path) -> list[dict[str, Any]]:
    """Return the reward of each split with its interval: the algorithm's own report of its best candidate, otherwise
    computed from the rollouts in the store."""
    import asyncio

    import msgspec

    from ..archive.catalog import RunEntry
    from ..archive.comparison import compare, reported_estimate

    entry = RunEntry.of(run_dir)
    told = reported_estimate(entry)
    if told is not None:
        return [{"mode": "val", **msgspec.structs.asdict(told)}]
    if not entry.has_store:
        return []
    (found,) = asyncio.run(compare([entry])).runs
    return [{"mode": each.mode, **msgspec.structs.asdict(each.final)} for each in found.scores]


def why_failed(run_dir: Path, metrics: Mapping[str, Any]) -> "CommonFailure | None":
    """Return the most common reason, if rollouts failed."""
    import asyncio

    from ..archive.catalog import RunEntry
    from ..archive.lookup import common_failure

    return asyncio.run(common_failure(RunEntry.of(run_dir))) if metrics.get("failed") else None


def draw_failures(out: Output, run_dir: Path | None, metrics: Mapping[str, Any], *, has_scores: bool) -> None:
    """Print what must not be overlooked: many rollouts failed, or none has a reward."""
    count, failed = metrics.get("rollouts") or 0, metrics.get("failed") or 0
    if count and failed >= count * _MANY:
        found = None if run_dir is None else why_failed(run_dir, metrics)
        how_many = ("the only rollout" if count == 1 else f"all {count:.0f} rollouts") if failed == count else None
        how_many = how_many or f"{failed:.0f} of {count:.0f} rollouts"
        reason = "" if found is None else f", most often with: {found.reason}" if failed > 1 else f": {found.reason}"
        out.line(f"  {how_many} failed{reason}")
        if found is not None and run_dir is not None:
            out.line(f"    sharpen rollouts show {found.rollout_id} --run {quote(_name(run_dir))}")
    elif count and not has_scores and metrics.get("succeeded") and run_dir is not None and _has_store(run_dir):
        out.line("  no rollout has a reward: return one from the agent, or call emit_reward")


def _has_store(run_dir: Path) -> bool:
    """Whether the rollouts are in the run folder, not on a store server."""
    from ..archive.catalog import RunEntry

    return RunEntry.of(run_dir).has_store


def _name(run_dir: Path) -> str:
    """Return what commands take as RUN: the name of a run in the runs folder, otherwise its path."""
    from ..runs import runs_root

    return run_dir.name if run_dir.parent == runs_root().absolute() else str(run_dir)


def _title(mode: str) -> str:
    return {"val": "validation reward", "train": "training reward", "test": "test reward"}.get(mode, "reward")


def _estimate(score: dict[str, Any]) -> str:
    interval = "" if score["low"] is None else f" (95 %: {score['low']:.4g} to {score['high']:.4g})"
    return f"{score['mean']:.4g}{interval} on {score['tasks']} tasks, {score['rollouts']} rollouts"


def _main_metrics(metrics: dict[str, Any], has_scores: bool) -> list[tuple[str, float]]:
    from ..archive.curves import main_metrics

    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    shown = [name for name in main_metrics(numbers) if not (has_scores and "reward" in name)]
    return [(name, float(numbers[name])) for name in shown[:8]]
