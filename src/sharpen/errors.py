"""The errors that Sharpen raises.

    SharpenError
    ├── ConfigError (ValueError)               a setting that cannot work
    │   └── ComponentError                     a component spec that cannot be turned into a component
    │       ├── ComponentImportError (ImportError)       there is no such module
    │       ├── ComponentAttributeError (AttributeError) the module has no such class
    │       └── ComponentArgumentError (TypeError)       an argument that is missing, or that the class does not take
    ├── ComponentTypeError (TypeError, ValueError)   a spec that resolves to a component of the wrong type
    ├── MissingExtraError (ImportError)        an optional package is needed; the message holds the command
    ├── InvalidInputError (ValueError)         a value from a caller that is not allowed
    │   ├── TaskError                          a task that JSON cannot give back equal
    │   ├── MissingValueError (KeyError)       a template has a field that format() got no value for
    │   ├── SecretError                        a literal secret where only a reference may be written
    │   ├── UnknownIdError                     no such rollout, attempt, resources or worker
    │   ├── FinishedError                      a finished rollout or attempt cannot change
    │   └── TooLargeError                      a request above the limits of the store
    ├── AgentError (RuntimeError)              an attempt failed because of its agent
    │   ├── AgentTimeoutError (TimeoutError)   it ran longer than allowed
    │   ├── AgentExitError                     it called sys.exit, or its program failed
    │   ├── AgentResultError (TypeError)       it returned something that is not a result
    │   └── AgentOutputError                   it printed more than is allowed
    ├── MissingResourceError (LookupError)     an agent asks for a resource that the rollout does not have
    ├── MissingMethodError (NotImplementedError)     a user's store lacks a method that is needed
    ├── TransportError (TypeError)             a component that cannot be sent to another process
    ├── StateError (TypeError)                 a state that cannot be saved without loss
    ├── StateFileError (OSError)               a checkpoint that is missing, damaged or of another program
    ├── GymSpaceValidationError (ValueError)   an observation or an action outside its space
    ├── RewardError (ValueError)               a reward of a simulator that is not a number
    ├── EpisodeError (RuntimeError)            an episode that failed: which one, where, and why
    │   └── WorkerDiedError                    the process that played it ended
    ├── SeedIteratorNotAvailable (LookupError) a vessel has no initial states for a stage
    ├── QueueError (RuntimeError)              a data queue that is not open, or whose producer has ended
    ├── RunError (RuntimeError)                a run that cannot continue
    │   ├── RunnerStartError                   a runner failed repeatedly at its start
    │   ├── RunnersExhaustedError              all runners reached max_rollouts while rollouts wait
    │   └── DiskFullError (OSError)            the disk of the run's folder is full: free some space, then resume it
    └── StoreError
        ├── SpansEvictedError (LookupError)    the spans were dropped to stay within the bound
        ├── StoreFileError (OSError)           a store that is missing, damaged or foreign, or lost its contents
        ├── StoreWriteError (OSError)          a local store that cannot write now (locked, read only)
        │   └── StoreFullError                 its disk or memory is full: free some space, then it continues
        ├── StoreUnavailableError (ConnectionError)  the store server did not answer in time
        ├── AccessDeniedError (PermissionError)      a missing or wrong token, or a host or origin that is not allowed
        └── PortTakenError (OSError, RuntimeError)   the address is in use

Each error is also the built-in that it resembles, so `except ValueError` keeps its meaning.
`http_status` and `from_wire` carry an error over HTTP without losing its class.
"""


class SharpenError(Exception):
    """Base of every error that Sharpen raises on purpose."""


class ConfigError(SharpenError, ValueError):
    """A setting that cannot work."""


class ComponentError(ConfigError):
    """A component spec that cannot be turned into a component."""


class ComponentImportError(ComponentError, ImportError):
    """The import path of a component names a module that does not exist."""


class ComponentAttributeError(ComponentError, AttributeError):
    """The import path of a component names a module that does not have it."""


class ComponentArgumentError(ComponentError, TypeError):
    """A component lacks an argument, or got one that it does not take."""


class ComponentTypeError(SharpenError, TypeError, ValueError):
    """A component spec that resolves to something of the wrong type."""


class MissingExtraError(SharpenError, ImportError):
    """A feature needs a package that is not installed."""

    @classmethod
    def of(cls, package: str, *, extra: str | None, feature: str) -> "MissingExtraError":
        """Return the error with its install command; without an extra, that of the package itself."""
        wanted = package if extra is None else f"'sharpen[{extra}]'"
        return cls(f"{feature} needs the package {package!r}: pip install {wanted}")


class InvalidInputError(SharpenError, ValueError):
    """A value from a caller that is not allowed."""


class TaskError(InvalidInputError):
    """A task or metadata that would not come back equal from JSON."""


class MissingValueError(InvalidInputError, KeyError):
    """A template has a field that `format` got no value for."""

    __str__ = Exception.__str__  # a KeyError shows the repr of its message


class SecretError(InvalidInputError):
    """A literal secret where only a reference such as `env:NAME` may be written."""


class UnknownIdError(InvalidInputError):
    """No rollout, attempt, resources or worker has this id."""


class FinishedError(InvalidInputError):
    """A finished rollout or attempt cannot change."""


class TooLargeError(InvalidInputError):
    """A request above the limits of the store."""


class AgentError(SharpenError, RuntimeError):
    """An attempt failed because of its agent."""


class AgentTimeoutError(AgentError, TimeoutError):
    """The agent ran longer than the `timeout_seconds` of its rollout."""


class AgentExitError(AgentError):
    """The agent called `sys.exit`, or its program ended with an exit code that means failure."""


class AgentResultError(AgentError, TypeError):
    """The agent returned something that is not a result."""


class AgentOutputError(AgentError):
    """The agent printed more than is allowed."""


class MissingResourceError(SharpenError, LookupError):
    """An agent asks for a resource that its rollout does not have."""


class MissingMethodError(SharpenError, NotImplementedError):
    """A subclass does not define a method that was called."""


class TransportError(SharpenError, TypeError):
    """A component that cannot be sent to another process."""


class StateError(SharpenError, TypeError):
    """A state holds a value that cannot be saved without loss."""


class StateFileError(SharpenError, OSError):
    """A file that is missing, damaged, or not a state file."""


class GymSpaceValidationError(SharpenError, ValueError):
    """A value is not in its space."""

    def __init__(self, message: str, space: object, x: object) -> None:
        super().__init__(message, space, x)
        self.message, self.space, self.x = message, space, x

    def __str__(self) -> str:
        return f"{self.message}\n  Space: {self.space}\n  Sample: {self.x!r}"


class RewardError(SharpenError, ValueError):
    """The reward of a step is not a number."""


class EpisodeError(SharpenError, RuntimeError):
    """An episode failed; the message holds its initial state, and the traceback of the worker that played it."""


class WorkerDiedError(EpisodeError):
    """The process that played an episode has ended."""


class SeedIteratorNotAvailable(SharpenError, LookupError):
    """A vessel has no initial states for this stage."""


class QueueError(SharpenError, RuntimeError):
    """A data queue cannot return its next item."""


class RunError(SharpenError, RuntimeError):
    """A run that cannot continue."""


class RunnerStartError(RunError):
    """A runner failed repeatedly at its start."""


class RunnersExhaustedError(RunError):
    """All runners reached `max_rollouts` while rollouts wait."""


class DiskFullError(RunError, OSError):
    """The disk of a run's folder is full."""


class StoreError(SharpenError):
    """The store could not handle a request, for a reason outside the request."""


class SpansEvictedError(StoreError, LookupError):
    """The spans were dropped to keep the memory store within its bound."""


class StoreFileError(StoreError, OSError):
    """A store that is missing, damaged or of another program, or that lost its contents while it was in use."""


class StoreWriteError(StoreError, OSError):
    """A local store that cannot write at the moment."""


class StoreFullError(StoreWriteError):
    """The disk of a store, or the memory of its server, is full."""


class StoreUnavailableError(StoreError, ConnectionError):
    """The store server did not answer within the allowed time."""


class AccessDeniedError(StoreError, PermissionError):
    """A missing or wrong token, or a request from a host or origin that is not allowed."""


class PortTakenError(StoreError, OSError, RuntimeError):
    """Another program listens on this address."""


# How an error travels over HTTP: its class name in the body, and this status.
HTTP_STATUS: dict[type[SharpenError], int] = {
    InvalidInputError: 400,
    TaskError: 400,
    SecretError: 400,
    UnknownIdError: 404,
    FinishedError: 409,
    TooLargeError: 413,
    SpansEvictedError: 410,
    StoreFileError: 500,
    StoreWriteError: 503,
    StoreFullError: 503,
    StoreUnavailableError: 503,
    AccessDeniedError: 403,
}


def http_status(error: SharpenError) -> int:
    """Return the HTTP status for this error."""
    return next((HTTP_STATUS[kind] for kind in type(error).__mro__ if kind in HTTP_STATUS), 500)


def from_wire(name: str, message: str, *, default: type[SharpenError] = StoreError) -> SharpenError:
    """Return the error that the other side raised, by its class name."""
    known = {kind.__name__: kind for kind in HTTP_STATUS}
    return known.get(name, default)(message)


def text_of(error: BaseException) -> str:
    """Return the text of any exception, also of one whose `__str__` fails, without lone surrogates."""
    try:
        return str(error).encode("utf-8", "replace").decode()
    except Exception as broken:  # noqa: BLE001 - a user's class may raise anything
        return f"(its text cannot be read: {type(broken).__name__})"


def describe(error: BaseException) -> str:
    """Return the class and the text of an exception, for a line of a log."""
    return f"{type(error).__name__}: {text_of(error)}"
