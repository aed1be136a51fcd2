"""Checkpoint folders: `output_dir/checkpoint-N`, each a model that loads by its path, and what is needed to go on.

A folder is written under another name, synced and renamed: one that is there is whole. A new run sets the checkpoints
of the run before aside, so that resuming never goes on from a stranger's.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from ...callbacks import save_state
from ...callbacks.base import State
from ...errors import ConfigError
from ...files import sync

log = logging.getLogger(__name__)

STATE_FILE = "training_state.safetensors"
EARLIER = "earlier"
_FOLDER = re.compile(r"checkpoint-(\d+)")
_TEMPORARY = ".checkpoint-*.tmp"


def checkpoints(output_dir: Path) -> list[Path]:
    """The checkpoints in a folder, the newest last."""
    found = [
        (int(match[1]), path) for path in output_dir.glob("checkpoint-*") if (match := _FOLDER.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found) if (path / STATE_FILE).is_file()]


def find_checkpoint(output_dir: Path, resume: bool | str | os.PathLike[str]) -> Path | None:
    """Where to go on: the newest checkpoint (True), the one that is named, or nowhere."""
    if resume is False:
        return None
    if resume is True:
        found = checkpoints(output_dir)
        if not found:
            log.info("there is no checkpoint in %s yet: training begins at the start", output_dir)
        return found[-1] if found else None
    path = Path(resume)
    if path.is_file() or (path / STATE_FILE).is_file():
        return path
    if inside := checkpoints(path):
        return inside[-1]
    raise ConfigError(
        f"resume is {str(resume)!r}, which is no checkpoint: give True for the newest in output_dir, the path of a "
        "checkpoint-N folder, or that of a file of the Checkpoint callback"
    )


def write_checkpoint(output_dir: Path, step: int, state: State, *, write_model: Callable[[Path], object]) -> Path:
    """Write a checkpoint folder; a crash at any moment leaves no part of it under its name."""
    target = output_dir / f"checkpoint-{step}"
    temporary = output_dir / f".checkpoint-{step}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        write_model(temporary)
        save_state(temporary / STATE_FILE, state)
        for path in temporary.rglob("*"):
            sync(path)
        sync(temporary)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(output_dir)
    return target


def keep_newest(output_dir: Path, count: int | None) -> None:
    """Remove all but the newest checkpoints."""
    if count is not None:
        for path in checkpoints(output_dir)[: -max(count, 1)]:
            shutil.rmtree(path, ignore_errors=True)


def remove_half_written(output_dir: Path) -> None:
    """Remove what a killed process left."""
    for path in output_dir.glob(_TEMPORARY):
        shutil.rmtree(path, ignore_errors=True)


def set_aside(output_dir: Path) -> None:
    """Move the checkpoints of an earlier run into `earlier/`, which holds those of one run."""
    old = [path for path in output_dir.glob("checkpoint-*") if _FOLDER.fullmatch(path.name)]
    if not old:
        return
    aside = output_dir / EARLIER
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for path in old:
        path.rename(aside / path.name)
    log.info(
        "%d checkpoints of an earlier run are now in %s; resume=True would have gone on from them", len(old), aside
    )
