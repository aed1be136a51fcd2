"""The program `sharpen`: its commands, and how it ends."""

import argparse
import sys
from collections.abc import Callable, Sequence

from .._version import __version__
from ..errors import SharpenError
from . import mcp

COMMANDS: tuple[Callable[["argparse._SubParsersAction[argparse.ArgumentParser]"], None], ...] = (mcp.add_command,)
"""Each adds a command to the parser, with a function `run(arguments)`."""

_INTERRUPTED = 130  # as a shell counts a program that SIGINT ended


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code."""
    parser = make_parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        parser.print_help()
        return 2
    try:
        given.run(given)
    except SharpenError as error:
        sys.stderr.write(f"sharpen {given.command}: {error}\n")
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    parser = argparse.ArgumentParser(prog="sharpen", description="Makes agents better.")
    parser.add_argument("--version", action="version", version=f"sharpen {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    return parser
