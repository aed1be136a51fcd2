"""Which run `last` and `unfinished` mean when a run is resumed or evaluated.

It is the newest that was started with the same configuration file. Resuming a run with other values is possible, but
the differences are printed.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...archive.catalog import RunCatalog
from ...errors import RunError, UnknownIdError
from .kept_config import differences, origin_of, origin_of_run

if TYPE_CHECKING:
    from ...archive.catalog import RunEntry
    from .train_config import Kind, TrainConfig

EVALUATION = "eval"
"""The name of evaluation runs, which `last` never means."""
UNFINISHED = "unfinished"
"""The latest run of a file if it did not finish, otherwise a new one: for supervisors that restart a role."""
_SHOWN = 8


def find_run(text: str, config: "TrainConfig") -> "RunEntry":
    """Return the run with a name, a unique part of it, or a path; `last` is the newest of this configuration file or,
    if it has none, of its kind."""
    if text != "last":
        return RunCatalog().find(text)
    found = _of_kind(config.kind)
    return _worthiest([each for each in found if _is_of_file(each, config)] or found)


def find_trained(text: str) -> "RunEntry":
    """Return a run without a configuration: `last` is the newest that is not an evaluation."""
    catalog = RunCatalog()
    newest = catalog.find(text)
    if text != "last":
        return newest
    found = [entry for entry in catalog.entries() if not _is_evaluation(entry)]
    if not found:
        raise UnknownIdError(
            f"no training run in {str(catalog.root)!r}: the latest run, {newest.name}, is an evaluation"
        )
    return _worthiest(found)


def resumed_run(text: str | None, config: "TrainConfig", say: Callable[[str], None]) -> Path | None:
    """Return the folder of the run to resume, if one is named, and print how its configuration differs."""
    if text is None:
        return None
    if text == UNFINISHED and not _has_unfinished(config):
        return None
    entry = _last_of_file(config) if text in ("last", UNFINISHED) else RunCatalog().find(text)
    if not os.access(entry.path, os.W_OK):
        raise RunError(f"cannot resume run {entry.name!r}: its folder {str(entry.path)!r} is not writable")
    origin = origin_of_run(entry.path)
    if origin not in (None, origin_of(config)):
        say(f"{entry.name} was started with {str(origin)!r}, not with {str(config.path)!r}")
    changed = differences(entry.path, config)
    if changed:
        more = f", and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        say(f"resuming {entry.name} with changed values: {', '.join(changed[:_SHOWN])}{more}")
    return entry.path


def _has_unfinished(config: "TrainConfig") -> bool:
    """Whether the latest run of this file was killed, interrupted or failed."""
    ours = [each for each in RunCatalog().entries() if _is_training(each, config.kind) and _is_of_file(each, config)]
    return bool(ours) and _worthiest(ours).state != "succeeded"


def _last_of_file(config: "TrainConfig") -> "RunEntry":
    found = _of_kind(config.kind)
    # A run that a Python program started has no file: it may be meant, and another algorithm is refused later.
    fitting = [each for each in found if origin_of_run(each.path) in (None, origin_of(config))]
    if fitting:
        return _worthiest(fitting)
    raise UnknownIdError(
        f"no run was started with {config.path.name!r}: the latest run, {found[0].name}, was started with "
        f"{str(origin_of_run(found[0].path))!r}; to resume it anyway, pass its name"
    )


def _of_kind(kind: "Kind") -> "list[RunEntry]":
    """Return the training runs of a kind, newest first."""
    catalog = RunCatalog()
    found = [entry for entry in catalog.entries() if _is_training(entry, kind)]
    if not found:
        raise UnknownIdError(f"no run of kind {kind!r} in {str(catalog.root)!r}: pass the name or path of a run")
    return found


def _worthiest(found: "list[RunEntry]") -> "RunEntry":
    """Return the newest; one that failed before it did anything only if there is no other."""
    return next((entry for entry in found if not _came_to_nothing(entry)), found[0])


def _is_of_file(entry: "RunEntry", config: "TrainConfig") -> bool:
    return origin_of_run(entry.path) == origin_of(config)


def _is_training(entry: "RunEntry", kind: "Kind") -> bool:
    return entry.kind == kind and not _is_evaluation(entry)


def _is_evaluation(entry: "RunEntry") -> bool:
    return entry.config().get("name") == EVALUATION


def _came_to_nothing(entry: "RunEntry") -> bool:
    has_checkpoint = any((entry.path / "checkpoints").glob("*"))
    return entry.state == "failed" and not entry.metrics.get("rollouts") and not has_checkpoint
