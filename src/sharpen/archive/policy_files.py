"""The checkpoints of a simulator's policy in the folder of a run, or in `checkpoints/` below it."""

from pathlib import Path
from typing import Any

from ..checkpoints import load_state
from ..errors import StateFileError
from .best_step import Choice
from .catalog import RunEntry

_LATEST = "latest.pth"


def policy_choices(entry: RunEntry) -> list[Choice]:
    """Those that are whole and hold a policy, the newest last."""
    if entry.kind != "simulator":
        return []
    folders = [folder for folder in (entry.path, entry.path / "checkpoints") if folder.is_dir()]
    paths = [path for folder in folders for path in folder.glob("*.pth") if path.name != _LATEST]
    found = [Choice(path, step) for path in paths if (step := _iteration(path)) is not None]
    return sorted(found, key=lambda choice: choice.step or 0)


def _iteration(path: Path) -> int | None:
    """The iteration of a checkpoint; None where it is none of a simulator's trainer."""
    try:
        state: Any = load_state(path)
    except StateFileError:
        return None
    has_policy = isinstance(state, dict) and "policy" in (state.get("vessel") or {})
    return int(state["current_iter"]) if has_policy else None
