"""`ConsoleLogger`: shows a run on the screen.

In a terminal a progress bar shows the newest metrics; in a pipe or a file each step is a plain line. Both go to
standard error, so that standard output belongs to the user's program.
"""

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..checks import check_int
from .base import FinishStatus, Logger, LogLevel
from .metrics import as_numbers

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID


class ConsoleLogger(Logger):
    """Shows the metrics of a run.

    Args:
        total: The number of steps of the run; `max_iters` of its settings if not given.
        every_n_steps: Show every n-th step only.
        metrics: The metrics to show; all if not given.
        float_format: How values are formatted.
        loglevel: The lowest level to show.
        console: Where to print; standard error if not given.
        clock: The time in seconds.
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
        """Print plain lines to a console whose last line belongs to another display."""
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
            self._open_bar().show(step, self._format(self._shown))
        else:
            shown = {name: self._shown[name] for name in values if name in self._shown}
            self._print(f"step {step}{self._of_total()}  {self._format(shown)}  {self._seconds()}")

    def log_text(self, name: str, text: str, step: int) -> None:
        self._print(f"step {step}{self._of_total()}  {name}: {text}")

    def finish(self, status: FinishStatus = "succeeded") -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()
        if self._began is not None:
            self._print(f"{status}  {self._format(self._shown)}  {self._seconds()}")
        self._began = None

    # -- text ----------------------------------------------------------------------------------------

    def _format(self, values: Mapping[str, float]) -> str:
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

    def _open_bar(self) -> "_Bar":
        if self._bar is None:
            self._bar = _Bar(self._console, self.total)
        return self._bar

    def _print(self, line: str) -> None:
        """Print one plain line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.print(line)
        elif self._console is not None:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)
        elif sys.stderr is not None:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


class _Bar:
    """A progress bar, drawn when a step is logged and not by a thread, which would overwrite a debugger's prompt."""

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

        # Standard output may be a file: what is written there must not appear on the screen.
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

    def show(self, step: int, text: str) -> None:
        self._progress.update(self._task, completed=step, description=text, refresh=True)

    def print(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        self._progress.stop()
