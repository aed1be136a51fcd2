"""What is different for an agent in a runner process: there is no terminal."""

import io
import os
import sys
from typing import Any, NoReturn

from ..errors import AgentError
from ..tracer.imports import ImportWatch

HINT = (
    "a runner process has no terminal. To debug, run the agent in this process with Trainer(strategy='shm'), or set "
    "PYTHONBREAKPOINT to a remote debugger, such as debugpy.breakpoint"
)


def prepare_for_agents() -> None:
    """Let breakpoints and reads from the terminal say what to do."""
    sys.breakpointhook = _break
    sys.stdin = _NoTerminal(open(os.devnull, "rb"))  # noqa: SIM115 - open as long as the process
    ImportWatch(["pdb"], _refuse_pdb).start()


def _break(*arguments: Any, **options: Any) -> Any:
    """`breakpoint()`: the debugger of the user's choice where one was chosen."""
    if os.environ.get("PYTHONBREAKPOINT", "") in ("", "pdb.set_trace"):
        _refuse()
    return sys.__breakpointhook__(*arguments, **options)


def _refuse(*arguments: Any, **options: Any) -> NoReturn:
    raise AgentError(f"the agent stopped at a breakpoint, but {HINT}")


def _refuse_pdb(name: str) -> None:
    sys.modules[name].set_trace = _refuse  # type: ignore[attr-defined]


class _NoTerminal(io.TextIOWrapper):
    """Standard input without anybody behind it."""

    def readline(self, size: int | None = -1, /) -> NoReturn:
        raise EOFError(f"the agent reads a line from the terminal, but {HINT}")

    def __next__(self) -> NoReturn:
        raise StopIteration
