"""The console: a bar in a terminal, plain lines elsewhere."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from rich.console import Console

from sharpen.errors import ConfigError
from sharpen.loggers import ConsoleLogger
from tests.errors import raises


def clock_of(*seconds: float) -> Any:
    times = iter(seconds)
    return lambda: next(times)


def test_in_a_pipe_each_step_is_a_plain_line_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    logger = ConsoleLogger(clock=clock_of(0.0, 1.0, 2.5, 4.0))
    logger.log_config({"max_iters": 2})
    logger.log_metrics({"reward": 0.123456, "loss": 1e-7}, 1)
    logger.log_metrics({"val/reward": 12.0}, 2)
    logger.log_text("prompt", "[bold]Solve it[/bold]", 2)
    logger.finish()
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "step 1/2  reward 0.1235  loss 1e-07  1.0 s",
        "step 2/2  val/reward 12  2.5 s",
        "step 2/2  prompt: [bold]Solve it[/bold]",
        "succeeded  reward 0.1235  loss 1e-07  val/reward 12  4.0 s",
    ]


def test_only_some_steps_and_some_metrics_are_shown_and_the_last_step_always(
    capfd: pytest.CaptureFixture[str],
) -> None:
    logger = ConsoleLogger(total=5, every_n_steps=3, metrics=["loss"], float_format=".2f", clock=lambda: 0.0)
    for step in range(1, 6):
        logger.log_metrics({"loss": step, "noise": 9.0}, step)
    assert capfd.readouterr().err.splitlines() == ["step 3/5  loss 3.00  0.0 s", "step 5/5  loss 5.00  0.0 s"]


def test_a_run_that_logged_nothing_ends_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    ConsoleLogger().finish("failed")
    assert capfd.readouterr().err == ""


def test_a_terminal_shows_a_bar_with_the_newest_metrics() -> None:
    screen = io.StringIO()
    logger = ConsoleLogger(total=4, console=Console(file=screen, force_terminal=True, width=100))
    logger.log_metrics({"reward": 0.25}, 1)
    assert "1/4" in screen.getvalue()
    assert "reward 0.25" in screen.getvalue()
    logger.log_metrics({"reward": 0.75}, 3)
    logger.log_text("note", "above the bar", 3)
    logger.finish("interrupted")
    text = screen.getvalue()
    assert "3/4" in text
    assert "above the bar" in text
    assert "interrupted  reward 0.75" in text.splitlines()[-1]


PROGRAM = """
from sharpen.loggers import ConsoleLogger
logger = ConsoleLogger(total=2)
logger.log_metrics({"reward": 0.5}, 1)
logger.log_metrics({"reward": 1.5}, 2)
print("of the user")
logger.finish()
"""


def in_terminal(program: str, out: Path | None = None) -> str:
    """What a program writes to a terminal: with standard error, and unless it goes to a file, standard output."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("4H", 50, 120, 0, 0))
    with open(out, "w") if out else os.fdopen(os.dup(writer), "w") as stdout:
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment["TERM"] = "xterm-256color"
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=stdout, stderr=writer, env=environment, check=False
        )
    os.close(writer)
    screen = b""
    while True:
        try:
            chunk = os.read(reader, 65536)
        except OSError:  # Linux says so when the other end is closed and everything is read
            break
        screen += chunk
    os.close(reader)
    assert done.returncode == 0, screen.decode()
    return screen.decode()


def shown(written: str) -> list[str]:
    """The lines that stand on a terminal in the end."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", written):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.startswith("\x1b[") and part.endswith("A"):
            row -= int(part[2:-1] or 1)
        elif part.startswith("\x1b[") and part.endswith("K"):
            lines[row] = ""
        elif not part.startswith("\x1b"):
            lines[row] = lines[row].ljust(column)[:column] + part + lines[row][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines if line.strip()]


def test_a_real_terminal_gets_the_bar_and_standard_output_stays_the_users(tmp_path: Path) -> None:
    screen = in_terminal(PROGRAM, tmp_path / "out")
    assert "\x1b[" in screen
    assert "2/2" in screen
    assert "reward 1.5" in screen
    assert (tmp_path / "out").read_text() == "of the user\n"


def test_a_bar_and_what_the_user_prints_share_a_terminal() -> None:
    program = PROGRAM.replace("logger.finish()", "import os; os._exit(0)")  # the bar is still there
    *above, bar = shown(in_terminal(program))
    assert above == ["of the user"]
    assert bar.startswith("2/2")
    assert bar.endswith("reward 1.5")
    printed, last = shown(in_terminal(PROGRAM))
    assert printed == "of the user"
    assert last.startswith("succeeded  reward 1.5")


SHARED = """
import os
from rich.console import Console
from rich.live import Live
from sharpen.loggers import ConsoleLogger
console = Console(stderr=True)
logger = ConsoleLogger(total=2)
logger.share(console)
with Live("the line of the run", console=console, auto_refresh=False):
    logger.log_metrics({"reward": 0.5}, 1)
    logger.log_text("prompt", "Solve it", 1)
    logger.log_metrics({"reward": 1.5}, 2)
    os._exit(0)
"""


def test_on_a_shared_screen_it_speaks_in_lines_above_what_is_there() -> None:
    first, text, second, live = shown(in_terminal(SHARED))
    assert first.startswith("step 1/2  reward 0.5")
    assert text == "step 1/2  prompt: Solve it"
    assert second.startswith("step 2/2  reward 1.5")
    assert live == "the line of the run"


def test_a_pipe_gets_no_control_characters() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stderr
    assert "step 2/2  reward 1.5" in done.stderr


def test_a_logger_with_a_bar_travels_to_another_process() -> None:
    logger = ConsoleLogger(total=4, console=Console(file=io.StringIO(), force_terminal=True))
    logger.log_metrics({"reward": 0.25}, 1)
    assert cloudpickle.loads(cloudpickle.dumps(logger)).total == 4
    logger.finish()


def test_settings_that_cannot_work_are_refused() -> None:
    with raises(ConfigError, "every_n_steps", 0):
        ConsoleLogger(every_n_steps=0)
