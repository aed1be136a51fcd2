"""With `--json` standard output has the answer and nothing else, whatever the user's code prints.

The descriptor itself is led elsewhere, not only `sys.stdout`: runners are processes of their own, and libraries in C
write past Python.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

from .output import Output

_STDOUT = 1


@contextlib.contextmanager
def only_answer(out: Output) -> Iterator[None]:
    """While the block lasts, what is printed goes to standard error where the command answers with JSON."""
    if not out.is_json:
        yield
        return
    with _descriptor_apart(), contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def _descriptor_apart() -> Iterator[None]:
    _flush()
    try:
        kept = os.dup(_STDOUT)
    except OSError:  # the program was started with it closed
        yield
        return
    os.set_inheritable(kept, False)  # a child that lives on must not hold the reader of the answer
    try:
        with contextlib.suppress(OSError):  # there is no standard error
            os.dup2(2, _STDOUT)
        yield
    finally:
        _flush()
        os.dup2(kept, _STDOUT)
        os.close(kept)


def _flush() -> None:
    """What lies in a buffer, of ours or of the C library, belongs to where it was printed."""
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
