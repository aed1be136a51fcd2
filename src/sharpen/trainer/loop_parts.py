"""Callbacks and loggers from their specs. One that takes a folder and was given none writes to that of the run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..callbacks import Callback, Checkpoint
from ..components import build_component
from ..loggers import ConsoleLogger, Logger, LogLevel
from ..runs.screen import screen
from .spec_names import check_name


def spec_list(specs: Any, expected_type: type, spec_name: str) -> list[Any]:
    """The specs of one or several parts. What can be no spec at all is refused here, not in the middle of a run."""
    if specs is None:
        return []
    several = list(specs) if isinstance(specs, Sequence) and not isinstance(specs, str) else [specs]
    for spec in several:
        if isinstance(spec, str | Mapping):
            check_name(spec, expected_type, spec_name)
        elif not callable(spec):
            build_component(spec, expected_type=expected_type, spec_name=spec_name)
    return several


def make_callbacks(specs: Sequence[Any], run_dir: Path | None) -> list[Callback]:
    return [_make_callback(spec, run_dir) for spec in specs]


def _make_callback(spec: Any, run_dir: Path | None) -> Callback:
    asked: list[Path] = []

    def folder() -> Path:
        assert run_dir is not None
        asked.append(run_dir)
        return run_dir

    offered = {} if run_dir is None else {"dirpath": folder}
    callback = build_component(spec, expected_type=Callback, spec_name="callbacks", optional_defaults=offered)
    if asked and isinstance(callback, Checkpoint):
        callback.dirpath = asked[0] / "checkpoints"
    return callback


def make_loggers(specs: Sequence[Any], run_dir: Path | None) -> list[Logger]:
    offered = {} if run_dir is None else {"dirpath": run_dir}
    loggers = [
        build_component(spec, expected_type=Logger, spec_name="loggers", optional_defaults=offered) for spec in specs
    ]
    for logger in loggers:
        if not hasattr(logger, "loglevel"):  # one of the user's own, which does not call our constructor
            logger.loglevel = LogLevel.PERIODIC
        if isinstance(logger, ConsoleLogger):
            logger.share(screen())  # which has the progress line of the run at its end
    return loggers
