"""Long computations beside an event loop that others wait for, such as that of a store server with a dashboard.

A page about thousands of spans takes a third of a second of Python. In a thread it still holds up the loop: threads
take turns of 5 ms, and the loop gives its turn away at every statement of the database, several times in one claim. So
turns are short while such work is done, and two of them at most are done at once: a quick page need not wait for a long
one.
"""

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from types import TracebackType
from typing import ParamSpec, TypeVar

TURN_SECONDS = 0.0005

P = ParamSpec("P")
T = TypeVar("T")


async def aside(work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Do it in one of the threads for such work, in short turns."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), partial(_in_short_turns, work, *args, **kwargs))


def _in_short_turns(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    with _turns:
        return work(*args, **kwargs)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(2, thread_name_prefix="sharpen-aside")


class _ShortTurns:
    """Inside it the turns of threads are short; afterwards they are as they were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._usual_seconds = 0.0

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._usual_seconds = sys.getswitchinterval()
                sys.setswitchinterval(min(self._usual_seconds, TURN_SECONDS))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                sys.setswitchinterval(self._usual_seconds)


_turns = _ShortTurns()
