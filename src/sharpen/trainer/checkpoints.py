"""The checkpoint of a run: the state of the algorithm as JSON, and that of its loop beside it.

`algorithm.json` is what counts. The state of the loop lies in a file whose name is made from the state of the
algorithm that it belongs to, and is there first; so the two that are read are always of one moment, also when the
process is killed between them.
"""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from ..algorithm.base import State
from ..files import read_json, remove_leftovers, write_json
from ..runs.folder import FullDisk
from .loop import TrainingLoop


class Checkpoints:
    """Without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._disk = FullDisk("checkpoints")

    @property
    def exist(self) -> bool:
        return self.path is not None and self.path.exists()

    def save(self, state: State, loop: TrainingLoop) -> None:
        """Keep the state. While the disk is full, the last one that could be written stays."""
        assert self.path is not None
        with self._disk.tolerated(self.path.parent):
            self._save(state, loop)

    def _save(self, state: State, loop: TrainingLoop) -> None:
        from ..callbacks import save_state

        assert self.path is not None
        kept = self._loop_path(state) if loop.is_in_use else None
        if kept is not None:
            save_state(kept, loop.own_state())
        write_json(self.path, state)
        for old in self.path.parent.glob("loop-*.state"):
            if old != kept:
                old.unlink(missing_ok=True)

    def load(self) -> State | None:
        """The state of the algorithm."""
        if not self.exist:
            return None
        assert self.path is not None
        found: State = read_json(self.path)
        return found

    def load_loop(self) -> State | None:
        """The state of the loop at that moment."""
        from ..callbacks import load_state

        state = self.load()
        if state is None or self.path is None:
            return None
        remove_leftovers(self.path.parent)
        path = self._loop_path(state)
        found: State | None = load_state(path) if path.exists() else None
        return found

    def _loop_path(self, state: Any) -> Path:
        assert self.path is not None
        # Read and written once more: what JSON lacks, such as a tuple, is then what it will be when it is loaded.
        plain = msgspec.json.decode(msgspec.json.encode(state))
        digest = hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()
        return self.path.with_name(f"loop-{digest[:16]}.state")
