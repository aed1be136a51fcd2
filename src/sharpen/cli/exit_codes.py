"""The exit codes of commands, and which error has which."""

from ..errors import (
    ComponentTypeError,
    ConfigError,
    FinishedError,
    InvalidInputError,
    TooLargeError,
    UnknownIdError,
)

OK = 0
FAILED = 1  # the command failed
USAGE = 2  # wrong arguments or an invalid configuration
NOT_FOUND = 3  # no such run, rollout, file, ...
INTERRUPTED = 130  # Ctrl-C; 128 + SIGINT, as shells count
PIPE_CLOSED = 141  # the reader closed the pipe; 128 + SIGPIPE
TERMINATED = 143  # 128 + SIGTERM

MEANINGS = {
    OK: "success",
    FAILED: "the command failed",
    USAGE: "wrong arguments or an invalid configuration",
    NOT_FOUND: "the run, rollout or other object does not exist",
    INTERRUPTED: "stopped by Ctrl-C",
    PIPE_CLOSED: "the reader of the output closed the pipe",
    TERMINATED: "stopped by SIGTERM",
}

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (UnknownIdError, NOT_FOUND),
    (FinishedError, FAILED),
    (TooLargeError, FAILED),
    (InvalidInputError, USAGE),
    (ConfigError, USAGE),
    (ComponentTypeError, USAGE),
)


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal ended the command; a run that shut down cleanly after SIGTERM raises `SystemExit`."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and error.code == TERMINATED)


def code_of(error: BaseException) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
