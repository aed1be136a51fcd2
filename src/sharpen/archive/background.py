"""Run long computations beside an event loop that others wait for, such as that of a store server with a dashboard.

A page about thousands of spans takes a third of a second of Python. Even in a thread it would delay the event loop:
threads switch every 5 ms, and the loop gives up its turn at every database statement, several times in one claim. So
the switch interval is short while such work runs. At most two computations run at once, so that a quick page does not
wait for a long one.
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import TracebackType
from typing import ParamSpec, TypeVar

SWITCH_SECONDS = 0.0005

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_background(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in one of the background threads, with a short switch interval, and return its result."""

    def run() -> T:
        with _short_switches:
            return work(*args, **kwargs)

    return await asyncio.get_running_loop().run_in_executor(_threads(), run)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, thread_name_prefix="sharpen-background")


class _ShortSwitches:
    """Shorten the switch interval of threads inside a `with`; it is restored when the last one ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._usual_seconds = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._usual_seconds = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual_seconds, SWITCH_SECONDS))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                sys.setswitchinterval(self._usual_seconds)


_short_switches = _ShortSwitches()
