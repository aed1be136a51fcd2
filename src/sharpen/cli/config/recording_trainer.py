"""A `Trainer` that saves its configuration in the run folder as soon as the run starts."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...algorithm import Algorithm
from ...trainer import Trainer


class RecordingTrainer(Trainer):
    """`on_folder` is called with the folder of a run when it starts or resumes."""

    on_folder: Callable[[Path], object] | None = None
    shown_specs: Mapping[str, Any] = {}
    """The component specs of the configuration, with references instead of secrets: this is what is saved."""

    hidden: Callable[[Any], Any] | None = None
    """Replaces secrets by references anywhere in a value."""

    def hide(self, value: Any) -> Any:
        return value if self.hidden is None else self.hidden(value)

    def spec_of(self, name: str) -> Any:
        return self.shown_specs.get(name) or super().spec_of(name)

    @property
    def folder(self) -> Path | None:
        """The folder of the current run, or of the last one."""
        return None if self._folder is None else self._folder.path

    def _open_folder(self, resume: Any, algorithm: Algorithm[Any] | None) -> None:
        super()._open_folder(resume, algorithm)
        if self.on_folder is not None and self.folder is not None:
            self.on_folder(self.folder)
