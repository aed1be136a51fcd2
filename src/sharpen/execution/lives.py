"""The lives of a runner: each goes from a start to an end, in a process or in a thread, and the supervisor decides
what follows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

EXIT_WORN_OUT = 75  # the exit code of a runner process that asks to be replaced

How = Literal["done", "stopped", "worn_out", "failed", "died"]


@dataclass(frozen=True)
class End:
    """How a life ended. `done`: the runner has nothing left to do; `failed`: its code raised; `died`: no word.

    `leaves_work` says that attempts may be open which nobody works on.
    """

    how: How
    finished: int
    is_ready: bool
    worker_name: str | None
    leaves_work: bool
    reason: str
    kind: str = ""
    traceback: str = ""
    place: Literal["process", "thread", "actor"] = "process"


class Life(Protocol):
    """One life of a runner."""

    async def live(self) -> End:
        """From the start to the end."""

    def ask_to_stop(self) -> None:
        """What it has in hand is finished first, however long that takes."""

    async def end_in_order(self) -> None:
        """Ask it to stop, then insist, step by step."""

    def kill(self) -> None:
        """End it at once."""


OnReady = Callable[[str], None]
"""Told the name of the worker in the store."""


class Begin(Protocol):
    """Begins a life of one worker; `on_ready` is called when it is about to work."""

    def __call__(self, worker_id: int, finished_before: int, on_ready: OnReady) -> Life: ...
