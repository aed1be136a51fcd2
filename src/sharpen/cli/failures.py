"""How a failure is reported: one line for people, an `error` object for programs, and the traceback on request.

With SHARPEN_DEBUG=1 the traceback is shown. Otherwise that of an unexpected error is saved in a file, whose path is
printed.
"""

import contextlib
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator

from ..errors import AccessDeniedError, RunError, SharpenError, text_of
from ..logging import plain
from .exit_codes import code_of
from .output import Output

VARIABLE = "SHARPEN_DEBUG"


def say_failure(command: str, error: BaseException) -> int:
    """Print the error of a failed command to standard error, and return its exit code."""
    if os.environ.get(VARIABLE):
        sys.stderr.write(plain("".join(traceback.format_exception(error))))
    is_expected = isinstance(error, SharpenError | OSError)
    kind = "" if is_expected else f"{type(error).__name__}: "
    sys.stderr.write(plain(f"{command}: {kind}{text_of(error) or type(error).__name__}\n"))
    if isinstance(error, AccessDeniedError):
        sys.stderr.write("Set SHARPEN_TOKEN to the token of that store. For a store on this machine, leave it unset.\n")
    if not is_expected and not os.environ.get(VARIABLE):
        sys.stderr.write(f"This is an unexpected error. {_where_the_traceback_is(error)}\n")
    sys.stderr.flush()
    return code_of(error)


@contextlib.contextmanager
def saying_what_failed(what: str) -> Iterator[None]:
    """Say what was being done when an operating-system error names only a file, often one the user does not know."""
    try:
        yield
    except OSError as error:
        if isinstance(error, SharpenError) or error.filename is None:
            raise
        raise RunError(f"{what}: {error.strerror}") from error


def say_failure_as_json(kind: str, message: str) -> None:
    """Print the error as JSON to standard output."""
    Output(is_json=True).value({"error": {"type": kind, "message": plain(message)}})


def _where_the_traceback_is(error: BaseException) -> str:
    """Save the traceback in a file that only this user can read, as an exception may hold text of agents."""
    try:
        handle, path = tempfile.mkstemp(prefix="sharpen-traceback-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return f"Set {VARIABLE}=1 to see the traceback."
    return f"The traceback is saved in {path} (set {VARIABLE}=1 to print it instead)."
