"""Checkpoint folders: `output_dir/checkpoint-N`, each a model that loads by its path, and what is needed to go on.

A folder is written under another name, synced and renamed, and renamed again before it is removed: one that is there is
whole. A new run sets the checkpoints of the run before aside, and one that goes on from an older checkpoint the newer
ones, so that resuming never goes on from a stranger's.
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
EARLIER = ("earlier", "earlier-2")
"""Where other runs' checkpoints go; the second where the first holds the one that a run goes on from."""
_FOLDER = re.compile(r"checkpoint-(\d+)")
_TEMPORARY = ".checkpoint-*.tmp"


def checkpoints(output_dir: Path) -> list[Path]:
    """The checkpoints in a folder, the newest last."""
    found = [
        (int(match[1]), path) for path in output_dir.glob("checkpoint-*") if (match := _FOLDER.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found) if (path / STATE_FILE).is_file()]


def find_checkpoint(output_dir: Path, resume: bool | str | os.PathLike[str] | None) -> Path | None:
    """Where to go on: the newest checkpoint (True), the one that is named, or nowhere."""
    if resume is None or resume is False:
        return None
    if resume is True:
        found = checkpoints(output_dir)
        if not found:
            log.info("there is no checkpoint in %s yet; training starts from the beginning", output_dir)
        return found[-1] if found else None
    if not isinstance(resume, str | os.PathLike):
        raise ConfigError(f"resume is {resume!r}: pass True, False, or the path of a checkpoint")
    path = Path(resume).expanduser().absolute()
    if path.is_file() or (path / STATE_FILE).is_file():
        return path
    if inside := checkpoints(path):
        return inside[-1]
    raise ConfigError(
        f"resume is {str(resume)!r}, which is not a checkpoint: pass True for the newest in output_dir, the path of a "
        "checkpoint-N folder, or the path of a file written by the Checkpoint callback"
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
        _remove(target)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(output_dir)
    return target


def keep_newest(output_dir: Path, count: int) -> None:
    """Remove all but the newest checkpoints."""
    for path in checkpoints(output_dir)[:-count]:
        _remove(path)


def _remove(path: Path) -> None:
    """Remove a checkpoint. A crash on the way leaves no part of it under its name."""
    if path.exists():
        doomed = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
        path.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def remove_half_written(output_dir: Path) -> None:
    """Remove what a killed process left."""
    for path in output_dir.glob(_TEMPORARY):
        shutil.rmtree(path, ignore_errors=True)


# -- earlier runs ------------------------------------------------------------------------------------


def check_apart(output_dir: Path, model: Path) -> None:
    """A model that training starts from lies neither where the trained one goes, nor among checkpoints."""
    if model == output_dir.resolve():
        raise ConfigError(
            f"output_dir is {str(output_dir)!r}, which contains the model to start from: training would overwrite it; "
            "choose another output_dir"
        )
    if model.is_relative_to(output_dir.resolve()):
        first = model.relative_to(output_dir.resolve()).parts[:1]
        if first and (_FOLDER.fullmatch(first[0]) or first[0] in EARLIER):
            raise ConfigError(
                f"output_dir is {str(output_dir)!r}, and {str(model)!r}, the model to start from, is among its "
                "checkpoints, which training moves and deletes: choose another output_dir, or resume from it"
            )


def set_aside(output_dir: Path, *, resumed: Path | None) -> None:
    """Move the checkpoints that a run does not go on from into `earlier/`, which holds those of one run."""
    old = [path for path in output_dir.glob("checkpoint-*") if _is_foreign(path, resumed)]
    if not old:
        return
    aside = next(folder for name in EARLIER if not _is_inside(resumed, folder := output_dir / name))
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for path in old:
        path.rename(aside / path.name)
    log.info(
        "moved %d checkpoints of an earlier run to %s; to resume from one, pass its path as resume", len(old), aside
    )


def _is_foreign(path: Path, resumed: Path | None) -> bool:
    """Whether a checkpoint was not written on the way to the one that a run goes on from."""
    its = _FOLDER.fullmatch(path.name)
    if its is None or resumed is None or resumed.parent.resolve() != path.parent.resolve():
        return its is not None
    last = _FOLDER.fullmatch(resumed.name)
    return last is None or int(its[1]) > int(last[1])


def _is_inside(path: Path | None, folder: Path) -> bool:
    return path is not None and path.resolve().is_relative_to(folder.resolve())
