"""The program `sharpen`: its commands, and its exit codes.

A command module has `add_command(commands)`, which adds its parser and sets `run=` to a function of the arguments that
returns the exit code (None is 0). Importing a command loads nothing heavy: that happens in its `run`.

Every command ends with a defined exit code (see `exit_codes`) and without a traceback: Ctrl-C and SIGTERM unwind the
command like an exception, so open resources are closed.
"""

import argparse
import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType, TracebackType
from typing import Protocol

from .._version import __version__
from ..errors import text_of
from ..logging import plain
from . import (
    algorithm,
    completion,
    dashboard,
    doctor,
    eval as evaluation,
    gateway,
    init,
    mcp,
    replay,
    rollouts,
    runner,
    runs,
    serve,
    store,
    train,
)
from .exit_codes import FAILED, INTERRUPTED, OK, PIPE_CLOSED, TERMINATED, USAGE
from .failures import say_failure, say_failure_as_json
from .overview import Overview
from .parser import WrongUsage


class Command(Protocol):
    """A module of one command."""

    def add_command(self, commands: "argparse._SubParsersAction[argparse.ArgumentParser]", /) -> None: ...


GROUPS: dict[str, tuple[Command, ...]] = {
    "start and train": (init, train, evaluation),
    "inspect results": (runs, rollouts, replay, dashboard),
    "run roles separately": (store, gateway, algorithm, runner),
    "models and tools": (serve, mcp),
    "this machine": (doctor, completion),
}
COMMANDS: tuple[Command, ...] = tuple(command for group in GROUPS.values() for command in group)


class Terminated(KeyboardInterrupt):
    """SIGTERM: unwinds a command as Ctrl-C does."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. It raises nothing."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _have_outputs()
    ending = _Ending(is_json="--json" in given)
    with ending, _sigterm_raises():
        parser = make_parser()
        parsed = parser.parse_args(given)
        if parsed.command is None:
            parser.print_help()
            return USAGE
        ending.command = f"sharpen {parsed.command}"
        ending.code = parsed.run(parsed) or OK
        sys.stdout.flush()
    return ending.code


def make_parser() -> Overview:
    """Return the parser of the command line, with all commands."""
    parser = Overview(prog="sharpen", description="Train LLM agents, policies and language models.")
    parser.add_argument("--version", action="version", version=f"sharpen {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for title, group in GROUPS.items():
        before = set(commands.choices)
        for command in group:
            command.add_command(commands)
        parser.groups[title] = [name for name in commands.choices if name not in before]
    return parser


class _Ending:
    """Turns whatever ends a command into a message and an exit code."""

    def __init__(self, *, is_json: bool) -> None:
        self.command = "sharpen"
        self.code = OK
        self._is_json = is_json

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if error is None:
            return False
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            self.code = PIPE_CLOSED
            return True
        try:
            self._report(error)
            sys.stdout.flush()
        except BrokenPipeError:
            _is_output_closed()
        return True

    def _report(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.code = TERMINATED if isinstance(error, Terminated) else INTERRUPTED
        elif isinstance(error, WrongUsage):
            self.code = USAGE
            self._report_as_json("UsageError", error.message)
        elif isinstance(error, SystemExit):
            self.code = self._of_exit(error)
        else:
            self.code = say_failure(self.command, error)
            self._report_as_json(type(error).__name__, text_of(error))

    def _report_as_json(self, kind: str, message: str) -> None:
        if self._is_json:
            say_failure_as_json(kind, message)

    def _of_exit(self, error: SystemExit) -> int:
        if error.code is None or isinstance(error.code, int):
            return error.code or OK
        sys.stderr.write(plain(f"{self.command}: {error.code}\n"))
        return FAILED


def _have_outputs() -> None:
    """Discard output if the program was started with its outputs closed."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open to the end
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open to the end


def _is_output_closed() -> bool:
    """Whether the reader of standard output is gone; then the rest of the output is discarded."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # no file at all
        return False
    asked = select.poll()
    asked.register(output, select.POLLOUT)
    if not any(event & (select.POLLERR | select.POLLHUP) for _, event in asked.poll(0)):
        return False
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, output)  # otherwise the interpreter complains when it flushes at exit
    os.close(nowhere)
    return True


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM raise on the main thread, unless the calling program handles or ignores it."""
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated
