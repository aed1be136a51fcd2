"""The screen of a run: one console on standard error, so that standard output belongs to the user's program.

There is only one, since a live line and what is printed above it share the terminal.
"""

import contextlib
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def screen() -> "Console":
    """Return the console, which prints to whatever standard error is at that moment."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def is_terminal() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def say(text: str) -> None:
    """Print one plain line, never wrapped. A closed terminal does not end a run."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def show(thing: object) -> None:
    """Print a table, or anything else that rich can render."""
    with contextlib.suppress(OSError, ValueError, SystemExit):  # rich exits when its pipe is broken
        screen().print(thing)
