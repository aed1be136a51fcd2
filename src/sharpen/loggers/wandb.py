"""`WandbLogger`: records metrics in Weights & Biases.

With `mode="offline"` nothing leaves the machine, not even error reports; `wandb sync` uploads the folder later.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from ..checks import needs_extra
from .base import FinishStatus, Logger, LogLevel
from .metrics import as_numbers

_EXIT_CODES: dict[FinishStatus, int] = {"succeeded": 0, "failed": 1, "interrupted": 255}


class WandbLogger(Logger):
    """Records one W&B run, opened with the first thing to log; a resumed run continues under the same id.

    Args:
        project: The project of the run.
        name: The name of the run.
        dirpath: The folder of W&B's files.
        mode: `WANDB_MODE` if not given.
        loglevel: The lowest level to record.
        **init: Other arguments of `wandb.init`.
    """

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        dirpath: str | os.PathLike[str] | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        loglevel: int | LogLevel = LogLevel.PERIODIC,
        **init: Any,
    ) -> None:
        super().__init__(loglevel)
        self.project = project
        self.name = name
        self.dirpath = None if dirpath is None else Path(dirpath)
        self.mode = mode
        self._init = init
        self._run: Any = None
        self._id: str | None = init.pop("id", None)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}

    def log_config(self, config: Mapping[str, Any]) -> None:
        self._opened().config.update(dict(config), allow_val_change=True)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._opened().log(as_numbers(metrics), step=step)

    def log_text(self, name: str, text: str, step: int) -> None:
        self._opened().log({name: text}, step=step)

    def finish(self, status: FinishStatus = "succeeded") -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=_EXIT_CODES[status])

    def _opened(self) -> Any:
        if self._run is None:
            self._run = self._open()
            self._id = self._run.id
        return self._run

    def _open(self) -> Any:
        mode = self.mode or os.environ.get("WANDB_MODE")
        if mode in ("offline", "disabled"):
            # Read by W&B's process when it starts: offline means that errors are not reported either.
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        with needs_extra("wandb", extra="wandb", feature="WandbLogger"):
            import wandb
        if self.dirpath is not None:
            self.dirpath.mkdir(parents=True, exist_ok=True)
        settings = {"project": self.project, "name": self.name, "dir": self.dirpath, "mode": self.mode, "id": self._id}
        # Only a known run can be resumed; offline, the upload joins its parts.
        resume = "allow" if self._id is not None and mode not in ("offline", "disabled") else None
        return wandb.init(**{"resume": resume, "reinit": "create_new", **settings, **self._init})

    def state_dict(self) -> dict[str, Any]:
        return {"id": self._id}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        self._id = state_dict["id"]
