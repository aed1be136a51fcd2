"""What came of a run, when its command ends: rewards, where everything is, and what to do next."""

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

_MANY = 0.5  # so large a part of failures is said before everything else


class ResultPage:
    """For the run of a configuration; `command` is what was called with it, and goes on with the run."""

    def __init__(self, command: str, config: "TrainConfig", given: Path, out: Output) -> None:
        self._command, self._config, self._given, self._out = command, config, given, out
        self._has_failures = False

    def show(self, result: "RunResult") -> int:
        """For people or for programs; the exit code."""
        scores = [] if result.run_dir is None else run_scores(result.run_dir)
        if self._out.is_json:
            record = {**result.record(), "run_dir": result.run_dir}
            failures = None if result.run_dir is None else why_failed(result.run_dir, result.metrics)
            self._out.value({**record, "kind": self._config.kind, "scores": scores, "failures": failures})
        else:
            self._draw(result, scores)
        return {"succeeded": OK, "interrupted": INTERRUPTED}.get(result.status, FAILED)

    @contextmanager
    def answering_interrupts(self) -> Iterator[None]:
        """A program that asked learns of a run that was ended by a signal how far it came, and where it is."""
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
    def telling_of_failure(self, trainer: "RecordingTrainer") -> Iterator[None]:
        """A run that fails says where it is kept."""
        try:
            yield
        except BaseException:
            ended = trainer.result
            if ended is not None and ended.run_dir is not None:
                self._out.note(f"The run is kept in {ended.run_dir}. To go on: {self._resume(ended.run_dir)}")
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
        out.line(f"  everything: {folder}")
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
    """The rewards of each split with their intervals: those that the algorithm reported of its best, else those of the
    rollouts in the store."""
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
    """The most common reason, where rollouts failed."""
    import asyncio

    from ..archive.catalog import RunEntry
    from ..archive.lookup import common_failure

    return asyncio.run(common_failure(RunEntry.of(run_dir))) if metrics.get("failed") else None


def draw_failures(out: Output, run_dir: Path | None, metrics: Mapping[str, Any], *, has_scores: bool) -> None:
    """First what must not be overlooked: many rollouts failed, or none of them has a reward."""
    count, failed = metrics.get("rollouts") or 0, metrics.get("failed") or 0
    if count and failed >= count * _MANY:
        found = None if run_dir is None else why_failed(run_dir, metrics)
        how_many = ("its only rollout" if count == 1 else f"all {count:.0f} rollouts") if failed == count else None
        how_many = how_many or f"{failed:.0f} of {count:.0f} rollouts"
        reason = "" if found is None else f", mostly by: {found.reason}" if failed > 1 else f": {found.reason}"
        out.line(f"  {how_many} failed{reason}")
        if found is not None and run_dir is not None:
            out.line(f"    sharpen rollouts show {found.rollout_id} --run {quote(_name(run_dir))}")
    elif count and not has_scores and metrics.get("succeeded") and run_dir is not None and _has_store(run_dir):
        out.line("  no rollout has a reward: an agent returns one, or emits it (emit_reward)")


def _has_store(run_dir: Path) -> bool:
    """Whether the rollouts lie in the folder of the run, and not behind a server."""
    from ..archive.catalog import RunEntry

    return RunEntry.of(run_dir).has_store


def _name(run_dir: Path) -> str:
    """How the commands know a run: by its name, where it lies among the others."""
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
