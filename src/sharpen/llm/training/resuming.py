"""Reading the state of a checkpoint, if it is one of such a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...callbacks import named
from ...callbacks.base import State
from ...checkpoints import load_state
from ...errors import ConfigError, StateFileError
from .checkpoints import STATE_FILE
from .settings import Algorithm, Settings

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


def read_state(checkpoint: Path, algorithm: Algorithm, num_rows: int, settings: Settings) -> State:
    """The state in a checkpoint folder or file; one of another algorithm or other rows is refused."""
    state: State = load_state(checkpoint / STATE_FILE if checkpoint.is_dir() else checkpoint)
    try:
        its_algorithm, its_rows, its_settings = state["algorithm"], state["num_rows"], state["settings"]
    except (KeyError, TypeError) as error:
        raise StateFileError(
            f"{str(checkpoint)!r} is a saved state, but not of a fine-tuning run: pass a checkpoint of one"
        ) from error
    if its_algorithm != algorithm:
        raise ConfigError(
            f"{str(checkpoint)!r} belongs to a {its_algorithm} run, but this is a {algorithm} run: pass another one"
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
    """Put the states of callbacks or loggers back; those that are new in this run keep what they have."""
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
