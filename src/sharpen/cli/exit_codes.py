"""How a command ends: what its exit code means, and which error has which."""

from ..errors import (
    ComponentTypeError,
    ConfigError,
    FinishedError,
    InvalidInputError,
    TooLargeError,
    UnknownIdError,
)

OK = 0
FAILED = 1  # the work failed
USAGE = 2  # wrong arguments, or a configuration that cannot work
NOT_FOUND = 3  # no such run, rollout, file, ...
INTERRUPTED = 130  # Ctrl-C; as a shell counts a program that SIGINT ended
PIPE_CLOSED = 141  # nobody reads the output any more; the same for SIGPIPE
TERMINATED = 143  # the same for SIGTERM

MEANINGS = {
    OK: "the command did what was asked",
    FAILED: "the work failed",
    USAGE: "wrong arguments, or a configuration that cannot work",
    NOT_FOUND: "there is no such run, rollout or other thing",
    INTERRUPTED: "ended by Ctrl-C",
    PIPE_CLOSED: "nobody read the output to its end",
    TERMINATED: "ended by SIGTERM",
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
    """Whether a signal ended the work; a run that has ended in order after SIGTERM leaves by `SystemExit`."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, SystemExit) and error.code == TERMINATED)


def code_of(error: BaseException) -> int:
    """The exit code that says the same as this error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
