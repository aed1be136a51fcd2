"""A `Trainer` that keeps the configuration it was made of in the folder of its run, from the run's beginning on."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...algorithm import Algorithm
from ...trainer import Trainer


class RecordingTrainer(Trainer):
    """`on_folder` is called with the folder of a run when it begins or goes on."""

    on_folder: Callable[[Path], object] | None = None
    shown_specs: Mapping[str, Any] = {}
    """What a configuration says of its parts, with references in place of secrets: this is what is written down."""

    hidden: Callable[[Any], Any] | None = None
    """Puts references in the place of secrets, wherever in a value they stand."""

    def hide(self, value: Any) -> Any:
        return value if self.hidden is None else self.hidden(value)

    def spec_of(self, name: str) -> Any:
        return self.shown_specs.get(name) or super().spec_of(name)

    @property
    def folder(self) -> Path | None:
        """The folder of the run under way, or of the last one."""
        return None if self._folder is None else self._folder.path

    def _open_folder(self, resume: Any, algorithm: Algorithm[Any] | None) -> None:
        super()._open_folder(resume, algorithm)
        if self.on_folder is not None and self.folder is not None:
            self.on_folder(self.folder)
