"""`Watch`: ends the work of one call when its agent hangs up or time runs out.

The work is cancelled where it waits, and the block of the watch raises `HungUp` or `TimedOut`. There is one timer for
all limits of a call, and it is not touched from piece to piece; a call of some milliseconds is over before anybody
listens for its agent.
"""

import asyncio
import math
from types import TracebackType
from typing import Self

from starlette.types import Receive

LISTEN_AFTER_SECONDS = 0.1


class HungUp(Exception):
    """The agent has closed its connection."""


class TimedOut(TimeoutError):
    """A limit of the call has passed; the text says which."""


class Watch:
    """Guards a block that runs in one task. `limit` and `expect` set what is allowed from now on."""

    __slots__ = ("_armed_at", "_cancelling", "_due", "_end", "_end_words", "_listening", "_loop", "_reason", "_receive",
                 "_task", "_timer", "_words")  # fmt: skip

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._end = self._due = math.inf
        self._end_words = self._words = ""
        self._reason: Exception | None = None
        self._listening: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._arm(self._loop.time() + LISTEN_AFTER_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None  # else both would keep each other until the collector comes
        if self._reason is None:
            return
        is_ours = self._task.uncancel() <= self._cancelling
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._reason from None

    def limit(self, seconds: float, words: str) -> None:
        """From now on the whole may take this long."""
        self._end, self._end_words = self._loop.time() + seconds, words
        self._hurry(self._end)

    def allow(self, seconds: float, words: str) -> None:
        """The whole may take at least this long from now on, whatever `limit` said."""
        end = self._loop.time() + seconds
        if end > self._end:
            self._end, self._end_words = end, words

    def lift(self) -> None:
        """What was waited for has come: from now on only a hang-up ends the work."""
        self._end = self._due = math.inf

    @property
    def is_late(self) -> bool:
        """Whether the work is cancelled because a limit has passed."""
        return isinstance(self._reason, TimedOut)

    def expect(self, seconds: float | None, words: str) -> None:
        """The next thing has to happen within this time; None lifts that limit."""
        self._due = math.inf if seconds is None else self._loop.time() + seconds
        self._words = words
        self._hurry(self._due)

    # -- time ----------------------------------------------------------------------------------------

    def _hurry(self, due: float) -> None:
        """Look earlier than planned; a due time that moved on is noticed when the old one is reached."""
        if due < self._armed_at and self._reason is None:
            self._timer.cancel()
            self._arm(due)

    def _arm(self, at: float) -> None:
        self._armed_at = at
        self._timer = self._loop.call_at(at, self._look)

    def _look(self) -> None:
        if self._listening is None:
            self._listening = self._loop.create_task(self._listen())
        now, due = self._loop.time(), min(self._end, self._due)
        if now >= due:
            self._interrupt(TimedOut(self._end_words if self._end <= self._due else self._words))
        elif due < math.inf:
            self._arm(due)
        else:
            self._armed_at = math.inf

    # -- the agent -----------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._interrupt(HungUp("the client disconnected"))

    def _interrupt(self, reason: Exception) -> None:
        if self._reason is None:
            self._reason = reason
            self._task.cancel()
