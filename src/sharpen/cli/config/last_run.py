"""Which run somebody means by `last` who wants to go on with it or to measure it.

It is the newest that the same configuration file made. Going on with a run whose values were others is possible, but
never silent.
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
"""The name of runs that measure: they are never the last one."""
UNFINISHED = "unfinished"
"""The last run of a file if it has not come to its end, else a new one: for whoever starts a role again and again."""
_SHOWN = 8


def find_run(text: str, config: "TrainConfig") -> "RunEntry":
    """The run that a person means: its name, a part of it, a path, or `last`, which is of this configuration file or,
    where that has made none, of its kind."""
    if text != "last":
        return RunCatalog().find(text)
    found = _of_kind(config.kind)
    return _worthiest([each for each in found if _is_of_file(each, config)] or found)


def find_trained(text: str) -> "RunEntry":
    """The same without a configuration: `last` is the newest that did more than measure."""
    catalog = RunCatalog()
    newest = catalog.find(text)
    if text != "last":
        return newest
    found = [entry for entry in catalog.entries() if not _is_evaluation(entry)]
    if not found:
        raise UnknownIdError(f"no run in {str(catalog.root)!r} has trained: the last one, {newest.name}, measured only")
    return _worthiest(found)


def resumed_run(text: str | None, config: "TrainConfig", say: Callable[[str], None]) -> Path | None:
    """The folder of the run to go on with, where one is named; what is other than in its configuration is said."""
    if text is None:
        return None
    if text == UNFINISHED and not _has_unfinished(config):
        return None
    entry = _last_of_file(config) if text in ("last", UNFINISHED) else RunCatalog().find(text)
    if not os.access(entry.path, os.W_OK):
        raise RunError(f"the run {entry.name!r} cannot go on: its folder {str(entry.path)!r} cannot be written to")
    origin = origin_of_run(entry.path)
    if origin not in (None, origin_of(config)):
        say(f"{entry.name} was made by {str(origin)!r}, not by {str(config.path)!r}")
    changed = differences(entry.path, config)
    if changed:
        more = f", and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        say(f"{entry.name} goes on with other values than it had: {', '.join(changed[:_SHOWN])}{more}")
    return entry.path


def _has_unfinished(config: "TrainConfig") -> bool:
    """Whether the last run of this very file was killed, interrupted or failed."""
    ours = [each for each in RunCatalog().entries() if _is_training(each, config.kind) and _is_of_file(each, config)]
    return bool(ours) and _worthiest(ours).state != "succeeded"


def _last_of_file(config: "TrainConfig") -> "RunEntry":
    found = _of_kind(config.kind)
    # A run of a program has no file: it may be meant, and an algorithm that is not its own is refused later.
    fitting = [each for each in found if origin_of_run(each.path) in (None, origin_of(config))]
    if fitting:
        return _worthiest(fitting)
    raise UnknownIdError(
        f"no run was made by {config.path.name!r}: the last one, {found[0].name}, was made by "
        f"{str(origin_of_run(found[0].path))!r}; give its name to go on with it all the same"
    )


def _of_kind(kind: "Kind") -> "list[RunEntry]":
    """Those that trained, the newest first."""
    catalog = RunCatalog()
    found = [entry for entry in catalog.entries() if _is_training(entry, kind)]
    if not found:
        raise UnknownIdError(
            f"there is no run of the kind {kind!r} in {str(catalog.root)!r}: give its name or its path"
        )
    return found


def _worthiest(found: "list[RunEntry]") -> "RunEntry":
    """The newest; one that failed before anything happened only if there is no other."""
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
