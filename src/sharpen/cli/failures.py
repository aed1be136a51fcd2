"""How a failure is told: one line for people, an `error` object for machines, the traceback for who asks.

With the variable SHARPEN_DEBUG=1 the traceback is shown. Otherwise that of an error nobody expected is kept in a file,
whose place is said.
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
    """Tell a failed command's error on standard error; its exit code."""
    if os.environ.get(VARIABLE):
        sys.stderr.write(plain("".join(traceback.format_exception(error))))
    is_expected = isinstance(error, SharpenError | OSError)
    kind = "" if is_expected else f"{type(error).__name__}: "
    sys.stderr.write(plain(f"{command}: {kind}{text_of(error) or type(error).__name__}\n"))
    if isinstance(error, AccessDeniedError):
        sys.stderr.write("Set SHARPEN_TOKEN to the token of that store; for one of this machine leave it unset.\n")
    if not is_expected and not os.environ.get(VARIABLE):
        sys.stderr.write(f"This was not expected. {_where_the_traceback_is(error)}\n")
    sys.stderr.flush()
    return code_of(error)


@contextlib.contextmanager
def saying_what_failed(what: str) -> Iterator[None]:
    """An error of the system about a file names that file alone, often one that no user knows: say what was wanted."""
    try:
        yield
    except OSError as error:
        if isinstance(error, SharpenError) or error.filename is None:
            raise
        raise RunError(f"{what}: {error.strerror}") from error


def say_failure_as_json(kind: str, message: str) -> None:
    """The same for a program that reads standard output."""
    Output(is_json=True).value({"error": {"type": kind, "message": plain(message)}})


def _where_the_traceback_is(error: BaseException) -> str:
    """Keeps it in a file that only this user can read, as an exception may hold text of agents."""
    try:
        handle, path = tempfile.mkstemp(prefix="sharpen-traceback-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(traceback.format_exception(error))
    except OSError:
        return f"Set {VARIABLE}=1 to see its traceback."
    return f"Its traceback is in {path} (or set {VARIABLE}=1 to see it)."
