"""Checkpoint folders: `output_dir/checkpoint-N`, each a model that loads by its path, with the state to resume from.

A folder is written under another name, synced and renamed, and renamed again before it is removed: one that is there is
whole. A new run sets the checkpoints of the run before aside, and one that resumes from an older checkpoint the newer
ones, so that resuming never picks up another run. A state of another run, or of other settings, is refused.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...callbacks import named, save_state
from ...callbacks.base import State
from ...checkpoints import load_state
from ...errors import ConfigError, StateFileError
from ...files import remove_folder, remove_leftovers, replacing_folder
from .settings import Settings

log = logging.getLogger(__name__)

STATE_FILE = "training_state.safetensors"
EARLIER = ("earlier", "earlier-2")
"""Where other runs' checkpoints go; the second where the first holds the one that a run goes on from."""
_FOLDER = re.compile(r"checkpoint-(\d+)")
_TEMPORARY = ".checkpoint-*.tmp"
# A run may be extended, moved, and watched otherwise; what else changes makes its numbers those of two runs.
_MAY_CHANGE = {
    "model_name",  # weights of another shape are refused when they are loaded
    "output_dir",
    "num_train_epochs",
    "max_steps",
    "loggers",
    "save_steps",
    "eval_steps",
    "logging_steps",
    "save_total_limit",
}


def checkpoints(output_dir: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest last."""
    found = [
        (int(match[1]), path) for path in output_dir.glob("checkpoint-*") if (match := _FOLDER.fullmatch(path.name))
    ]
    return [path for _, path in sorted(found) if (path / STATE_FILE).is_file()]


def find_checkpoint(output_dir: Path, resume: bool | str | os.PathLike[str] | None) -> Path | None:
    """Return where to resume: the newest checkpoint (True), the one that is named, or None for a new run."""
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
    with replacing_folder(target) as folder:
        write_model(folder)
        save_state(folder / STATE_FILE, state)
    return target


def keep_newest(output_dir: Path, count: int) -> None:
    """Remove all but the newest checkpoints."""
    for path in checkpoints(output_dir)[:-count]:
        remove_folder(path)


def remove_half_written(output_dir: Path) -> None:
    """Remove what an interrupted run left."""
    remove_leftovers(output_dir)
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


# -- resuming ----------------------------------------------------------------------------------------


def read_state(checkpoint: Path, num_rows: int, settings: Settings) -> State:
    """Return the state in a checkpoint folder or file; one of another algorithm, other rows or settings is refused."""
    state: State = load_state(checkpoint / STATE_FILE if checkpoint.is_dir() else checkpoint)
    try:
        its_algorithm, its_rows, its_settings = state["algorithm"], state["num_rows"], state["settings"]
    except (KeyError, TypeError) as error:
        raise StateFileError(
            f"{str(checkpoint)!r} is a saved state, but not of a fine-tuning run: pass a checkpoint of one"
        ) from error
    if its_algorithm != settings.algorithm:
        raise ConfigError(
            f"{str(checkpoint)!r} belongs to a {its_algorithm} run, but this is a {settings.algorithm} run: pass "
            "another one"
        )
    if its_rows != num_rows:
        raise ConfigError(
            f"{str(checkpoint)!r} belongs to a run on {its_rows} rows, but the data set has {num_rows}: resume with "
            "the same rows, or start a new run"
        )
    if (its_settings["lora"] is None) == settings.use_lora:
        was = "all weights" if settings.use_lora else "an adapter"
        raise ConfigError(f"{str(checkpoint)!r} belongs to a run that trained {was}: resume with the same use_lora")
    _refuse_changes(checkpoint, its_settings, settings.as_dict())
    return state


def load_named(things: Sequence[Any], states: Mapping[str, Any]) -> None:
    """Load the states of callbacks or loggers; those that are new in this run keep what they have."""
    for name, thing in named(things).items():
        if name in states:
            thing.load_state_dict(states[name])


def _refuse_changes(checkpoint: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Other settings would not act: the optimiser and the schedule come from the checkpoint."""
    before, now = {**before, **before["trl"], "trl": None}, {**now, **now["trl"], "trl": None}
    changed = [name for name in {**before, **now} if name not in _MAY_CHANGE and now.get(name) != before.get(name)]
    if changed:
        words = ", ".join(f"{name} was {before.get(name)!r}, now {now.get(name)!r}" for name in changed)
        raise ConfigError(
            f"the settings differ from those of {str(checkpoint)!r}: {words}. Resume with the same settings, or start "
            "a new run from the checkpoint by passing its path as model_name"
        )
