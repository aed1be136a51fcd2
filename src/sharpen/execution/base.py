"""`ExecutionStrategy`: how algorithm and runners are laid out over threads, processes and machines.

A setting of a strategy may come from the environment: an argument wins over a variable, which wins over the default.
"""

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeVar

from ..checks import check_int
from ..errors import ConfigError
from ..store import LightningStore
from .events import ExecutionEvent

if TYPE_CHECKING:
    from .execution import Execution

AlgorithmBundle = Callable[[LightningStore, ExecutionEvent], Awaitable[None]]
RunnerBundle = Callable[[LightningStore, int, ExecutionEvent], Awaitable[None]]
Connect = Callable[[], AbstractAsyncContextManager[LightningStore]]
"""Gives the store of a run to somebody in this process, in the event loop of the caller."""

T = TypeVar("T")
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class ExecutionStrategy:
    """Runs an algorithm and its runners to the end. Override `execute`, sync or async, in your own strategy."""

    @property
    def has_runners_here(self) -> bool:
        """Whether agents run on this machine, so that what they need can be looked for before the run."""
        return False

    def execute(
        self, algorithm: AlgorithmBundle, runner: RunnerBundle, store: LightningStore
    ) -> Awaitable[None] | None:
        """Return when the algorithm and all runners have stopped; raise the algorithm's error."""
        raise NotImplementedError(f"{type(self).__name__} does not implement execute: override it")

    def stop(self) -> None:
        """Ask current runs to shut down; callable from any thread. A strategy that cannot runs to its end."""


class SupervisedStrategy(ExecutionStrategy):
    """A strategy of this package. It may execute several runs at once, each from a separate thread."""

    def __init__(self) -> None:
        self._executions: list[Execution] = []

    def stop(self) -> None:
        """Ask current runs to shut down; callable from any thread."""
        for execution in list(self._executions):
            execution.stop()

    def _run(self, execution: "Execution") -> None:
        self._executions.append(execution)
        try:
            execution.run()
        finally:
            self._executions.remove(execution)


# -- settings ----------------------------------------------------------------------------------------


def setting(name: str, given: T | None, variable: str, parse: Callable[[str], T | None]) -> T | None:
    """Return the value of one setting, or None where it is not set."""
    text = os.environ.get(variable, "").strip()
    if given is not None or not text:
        return given
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"the environment variable {variable} (for {name}) is {text!r}: {error}") from None


def server_settings(
    host: str | None, port: int | None, managed: bool | None
) -> tuple[str | None, int | None, bool | None]:
    """Return where the store is served, and whether this run serves it; a port of None is a free one."""
    return (
        setting("server_host", host, "SHARPEN_SERVER_HOST", str),
        setting("server_port", _port(port), "SHARPEN_SERVER_PORT", lambda text: _port(int(text))),
        setting("managed_store", managed, "SHARPEN_MANAGED_STORE", _yes_or_no),
    )


def _port(port: int | None) -> int | None:
    return check_int("server_port", port, at_least=1, at_most=65535, optional=True)


def _yes_or_no(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError("use 1 or 0")
    return _BOOLEANS[text.lower()]
