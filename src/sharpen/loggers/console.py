"""`ConsoleLogger`: what people see of a run.

In a terminal a progress bar shows the newest metrics; in a pipe or a file each step is a plain line. Both go to
standard error, so that standard output stays the user's own.
"""

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..checks import check_int
from .base import FinishStatus, Logger
from .level import LogLevel
from .metrics import as_numbers

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


class ConsoleLogger(Logger):
    """Shows the metrics of every `every_n_steps`-th step, or only those named in `metrics`.

    `total` is the number of steps to come; without it, `max_iters` of the run's settings is taken.
    """

    def __init__(
        self,
        total: int | None = None,
        every_n_steps: int = 1,
        metrics: list[str] | None = None,
        float_format: str = ".4g",
        loglevel: int | LogLevel = LogLevel.PERIODIC,
        *,
        console: "Console | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(loglevel)
        self.total = total
        self.every_n_steps = check_int("every_n_steps", every_n_steps, at_least=1)
        self.metrics = metrics
        self.float_format = float_format
        self._console = console
        self._is_shared = False
        self._clock = clock
        self._bar: _Bar | None = None
        self._shown: dict[str, float] = {}
        self._began: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bar": None, "_console": None}

    def share(self, console: "Console") -> None:
        """Speak in plain lines on a console whose last line is somebody else's."""
        self._console, self._is_shared = console, True

    def log_config(self, config: Mapping[str, Any]) -> None:
        self._began = self._clock() if self._began is None else self._began
        if self.total is None and isinstance(config.get("max_iters"), int):
            self.total = config["max_iters"]

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._began = self._clock() if self._began is None else self._began
        values = as_numbers(metrics)
        self._shown |= {name: values[name] for name in values if self.metrics is None or name in self.metrics}
        if step % self.every_n_steps and step != self.total:
            return
        if self._is_terminal():
            self._started_bar().show(step, self._words(self._shown))
        else:
            shown = {name: self._shown[name] for name in values if name in self._shown}
            self._say(f"step {step}{self._of_total()}  {self._words(shown)}  {self._seconds()}")

    def log_text(self, name: str, text: str, step: int) -> None:
        self._say(f"step {step}{self._of_total()}  {name}: {text}")

    def finish(self, status: FinishStatus = "succeeded") -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()
        if self._began is not None:
            self._say(f"{status}  {self._words(self._shown)}  {self._seconds()}")
        self._began = None

    # -- words ---------------------------------------------------------------------------------------

    def _words(self, values: Mapping[str, float]) -> str:
        return "  ".join(f"{name} {value:{self.float_format}}" for name, value in values.items())

    def _of_total(self) -> str:
        return "" if self.total is None else f"/{self.total}"

    def _seconds(self) -> str:
        return "" if self._began is None else f"{self._clock() - self._began:.1f} s"

    # -- screen --------------------------------------------------------------------------------------

    def _is_terminal(self) -> bool:
        if self._console is not None:
            return self._console.is_terminal and not self._is_shared
        return sys.stderr is not None and sys.stderr.isatty()

    def _started_bar(self) -> "_Bar":
        if self._bar is None:
            self._bar = _Bar(self._console, self.total)
        return self._bar

    def _say(self, line: str) -> None:
        """One plain line; above the bar where there is one."""
        if self._bar is not None:
            self._bar.print(line)
        elif self._console is not None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        elif sys.stderr is not None:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


class _Bar:
    """A progress bar. It is drawn when a step is logged, not by a thread, so a debugger's prompt stays."""

    def __init__(self, console: "Console | None", total: int | None) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        # Standard output may be a file: what goes there must not land on the screen.
        is_shared = sys.stdout is not None and sys.stdout.isatty()
        self._progress = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=console or Console(stderr=True, highlight=False),
            auto_refresh=False,
            transient=True,
            redirect_stdout=is_shared,
        )
        self._task: TaskID = self._progress.add_task("", total=total)
        self._progress.start()

    def show(self, step: int, words: str) -> None:
        self._progress.update(self._task, completed=step, description=words, refresh=True)

    def print(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        self._progress.stop()
