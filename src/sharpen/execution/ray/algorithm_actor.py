"""The algorithm on a node of its own: the actor that runs it, and says what the program must know."""

import asyncio
import socket
import threading
import traceback
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError
from ..algorithm_call import AlgorithmCall
from ..events import Reach, RunEvent
from ..serving import ServedElsewhere
from .arrival import Arrival, Parcel, Surroundings
from .cluster import this_node
from .errors import packed

END_RUNNERS = "end_runners"
CANCELLED = "cancelled"
At = tuple[str, Reach]


class AlgorithmActor:
    """Runs one algorithm, in a thread with a loop of its own."""

    def __init__(self) -> None:
        self._words: asyncio.Queue[Any] = asyncio.Queue()
        self._call: AlgorithmCall | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = RunEvent(lambda: self._say(END_RUNNERS))

    async def prepare(
        self, version: str, surroundings: Surroundings, marks: Sequence[str], at_program: At, parcel: Parcel
    ) -> dict[str, Any]:
        """Be ready to run: empty, or what went wrong. `at_program` is the node of the program, and its reach."""
        try:
            self._loop = asyncio.get_running_loop()
            self._arrival = Arrival(version, surroundings, "algorithm")
            _check_folders(marks)
            bundle = await asyncio.to_thread(self._arrival.unpack, parcel)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the program raises it
            return {"error": packed(error), "traceback": traceback.format_exc()}
        self._event.reach = _reach_here(*at_program)
        served = ServedElsewhere(surroundings.url, surroundings.token, options=surroundings.client)
        self._call = AlgorithmCall(bundle, served, self._event)
        return {}

    async def run(self) -> AsyncIterator[Any]:
        """Run it; what it wants of the program meanwhile, and at last how it ended: None, `CANCELLED` or an error."""
        assert self._call is not None
        call = self._call
        threading.Thread(target=self._run, args=(call,), name="sharpen-algorithm", daemon=True).start()
        while (word := await self._words.get()) is not None:
            yield word
        self._arrival.leave()
        error = call.error
        if error is None:
            yield None
        elif isinstance(error, asyncio.CancelledError):
            yield CANCELLED
        else:
            yield {"error": packed(error), "traceback": "".join(traceback.format_exception(error))}

    def _run(self, call: AlgorithmCall) -> None:
        call.run()
        self._say(None)

    def _say(self, word: str | None) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._words.put_nowait, word)

    # -- what the program says meanwhile -------------------------------------------------------------

    async def cancel(self) -> None:
        assert self._call is not None
        self._call.cancel()

    async def set_event(self) -> None:
        self._event.set()

    async def note_runners_ended(self) -> None:
        self._event.note_runners_ended()


def _reach_here(node_id: str, reach: Reach) -> Reach:
    """A gateway that the algorithm starts is on its node."""
    here = this_node()
    return reach if here.node_id == node_id else Reach(here.host, reach.token_variable)


def _check_folders(marks: Sequence[str]) -> None:
    """What the algorithm writes must lie where the program reads it."""
    for mark in map(Path, marks):
        if not mark.exists():
            raise ConfigError(
                f"the algorithm would run on {socket.gethostname()}, where {str(mark.parent)!r} is not the folder of "
                "the program's machine: set run_dir= to a folder on a file system that all nodes share, omit "
                "algorithm_resources (the algorithm then runs on the program's node), or use algorithm='driver'"
            )
