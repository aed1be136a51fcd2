"""Recording of simulator and fine-tuning runs in the same way as runs of agents: a run folder with `config.json`,
`run.log`, `metrics.jsonl` and `result.json`."""

import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..._version import __version__
from ...errors import ConfigError
from ...logging import also_to_file, is_set_up, setup_logging
from ...runs import RunFolder
from ...runs.folder import EARLIER, MOMENT, FullDisk, naming_full_disk
from ...secrets import hiding
from ...trainer.status import RunEnd, RunResult
from .kept_config import keep_config

if TYPE_CHECKING:
    from .train_config import TrainConfig


class RecordedRun:
    """One run in its folder, new or resumed. `work` returns the metrics and may add to `warnings`."""

    def __init__(self, config: "TrainConfig", *, default_name: str, resume: Path | None) -> None:
        self.config, self.is_resumed = config, resume is not None
        self._earlier_seconds = 0.0
        self.warnings: list[str] = []
        if resume is None:
            name = config.values.get("name") or default_name
            self.folder = RunFolder.create(str(name), run_dir=config.values.get("run_dir"))
        else:
            self.folder = RunFolder.open(resume)
            self._check_same()

    def _check_same(self) -> None:
        kind = self.folder.read_config().get("kind", "agents")
        if kind != self.config.kind:
            self.folder.release()
            raise ConfigError(
                f"the run in {str(self.folder.path)!r} has kind {kind!r}, not {self.config.kind!r}: use the "
                "configuration that it was started with"
            )

    def execute(self, describe: Mapping[str, Any], work: Callable[[Path], Mapping[str, float]]) -> RunResult:
        """Do the work and record how it ended; errors are raised after that."""
        began = time.monotonic()
        if not is_set_up():
            setup_logging()
        metrics: dict[str, float] = {}
        try:
            with hiding(self.config.references.secrets), also_to_file(self.folder.log_path):
                self._write_config(describe)
                keep_config(self.config, self.folder.path)
                try:
                    with naming_full_disk(self.folder.path):
                        metrics = dict(work(self.folder.path))
                except BaseException as error:
                    self._conclude(_end_of(error), self._last_metrics(), began, error)
                    raise
                return self._conclude("succeeded", metrics, began, None)
        finally:
            self.folder.release()

    def _write_config(self, describe: Mapping[str, Any]) -> None:
        written = {
            "kind": self.config.kind,
            "started": time.strftime(MOMENT),
            "name": self.config.values.get("name"),
            **describe,
            "versions": {"sharpen": __version__},
        }
        if self.is_resumed:
            written = self.folder.resumed_config(written)
            self._earlier_seconds = written[EARLIER]
        self.folder.write_config(self.config.hidden(msgspec.to_builtins(written, enc_hook=str)))

    def _last_metrics(self) -> dict[str, Any]:
        found = self.folder.last_metrics(lambda line: "step" in line and not line.keys() & {"config", "text", "status"})
        return {name: value for name, value in found.items() if name not in ("step", "time")}

    def _conclude(
        self, status: RunEnd, metrics: Mapping[str, Any], began: float, error: BaseException | None
    ) -> RunResult:
        told = None if error is None else self.config.hide("".join(traceback.format_exception(error)).strip())
        result = RunResult(
            status=status,
            metrics=dict(metrics),
            run_dir=self.folder.path,
            seconds=self._earlier_seconds + time.monotonic() - began,
            error=told,
            warnings=list(self.warnings),
        )
        with FullDisk("result.json").tolerated(self.folder.path):
            self.folder.write_result(result.record())
        return result


def _end_of(error: BaseException) -> RunEnd:
    return "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed"
