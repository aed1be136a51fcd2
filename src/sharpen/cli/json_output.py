"""With `--json`, standard output holds the JSON result and nothing else, whatever the user's code prints.

The file descriptor is redirected, not only `sys.stdout`: runners are separate processes, and C libraries bypass Python.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

from .output import Output

_STDOUT = 1


@contextlib.contextmanager
def only_json(out: Output) -> Iterator[None]:
    """Redirect what is printed in the block to standard error if the command prints JSON."""
    if not out.is_json:
        yield
        return
    with _redirected_descriptor(), contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def _redirected_descriptor() -> Iterator[None]:
    _flush()
    try:
        kept = os.dup(_STDOUT)
    except OSError:  # the program was started with standard output closed
        yield
        return
    os.set_inheritable(kept, False)  # a child that outlives us must not keep the pipe open
    try:
        with contextlib.suppress(OSError):  # there is no standard error
            os.dup2(2, _STDOUT)
        yield
    finally:
        _flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _flush() -> None:
    """Write buffered output, ours and that of the C library, to where it was printed."""
    with contextlib.suppress(OSError, ValueError):  # it is closed, or its reader is gone
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
