"""The screen of a run: one console on standard error, so that standard output stays the user's own.

There is one, since a live line and what is printed above it must know of each other.
"""

import contextlib
import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@cache
def screen() -> "Console":
    """Standard error as it is at the moment of printing."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def is_terminal() -> bool:
    """Whether a person looks at the screen."""
    return sys.stderr is not None and sys.stderr.isatty()


def say(text: str) -> None:
    """One plain line, never broken by the width of the screen. A screen that is gone ends no run."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def show(thing: object) -> None:
    """A table, or whatever else rich can draw."""
    with contextlib.suppress(OSError, ValueError, SystemExit):  # rich exits when its pipe is broken
        screen().print(thing)
