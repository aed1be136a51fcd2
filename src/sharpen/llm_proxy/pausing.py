"""`Gate`: lets calls through, or holds them while weights are updated.

A gate belongs to one event loop: `pause`, `resume` and `drain` are called there.
"""

import asyncio
from typing import Literal

from .calls import Refusal

WhenPaused = Literal["wait", "refuse"]
RETRY_AFTER_SECONDS = 1.0


class Gate:
    """Counts the calls that are under way. While paused, new ones wait or are refused."""

    def __init__(self, *, when_paused: WhenPaused = "wait", pause_wait_seconds: float = 600.0) -> None:
        self.in_flight = 0
        self.waiting = 0
        """Calls that a pause holds."""
        self.is_paused = False
        self._when_paused, self._wait_seconds = when_paused, pause_wait_seconds
        self._is_closed = False
        self._opened: asyncio.Event | None = None
        self._emptied: asyncio.Event | None = None

    def pause(self) -> None:
        """Let no new call through; those under way go on."""
        if not self.is_paused:
            self.is_paused, self._opened = True, asyncio.Event()

    def resume(self) -> None:
        """Let calls through again, those that wait first."""
        self.is_paused = False
        if self._opened is not None:
            self._opened.set()

    def close(self) -> None:
        """The gateway stops: nobody will open the gate, so calls that wait before it are refused."""
        self._is_closed = True
        if self._opened is not None:
            self._opened.set()

    async def enter(self) -> bool:
        """Come in; whether it had to wait for that. Whoever came in leaves by `leave`."""
        if not self.is_paused:
            self.in_flight += 1
            return False
        if self._when_paused == "refuse" and not self._is_closed:
            raise _refusal("paused while its model is updated")
        self.waiting += 1
        try:
            await self._wait()
        finally:
            self.waiting -= 1
        self.in_flight += 1
        return True

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._wait_seconds):
                while self.is_paused and self._opened is not None:  # it may be paused again before we wake
                    if self._is_closed:
                        raise stopping()
                    await self._opened.wait()
        except TimeoutError:
            raise _refusal(f"paused for more than {self._wait_seconds:g} s") from None

    def leave(self) -> None:
        """The call has ended, in whatever way."""
        self.in_flight -= 1
        if self.in_flight == 0 and self._emptied is not None:
            self._emptied.set()
            self._emptied = None  # whoever finds new calls when it wakes waits for another one

    async def drain(self, timeout: float | None = None) -> int:
        """Wait until no call is under way, or the time is over; how many are left."""
        try:
            async with asyncio.timeout(timeout):
                while self.in_flight:
                    self._emptied = self._emptied or asyncio.Event()
                    await self._emptied.wait()
        except TimeoutError:
            pass  # the number says it
        return self.in_flight


def stopping() -> Refusal:
    """What calls are told that a stop finds under way, and unanswered."""
    return Refusal(
        503,
        "stopping",
        "the gateway is stopping: try again later",
        retry_after_seconds=RETRY_AFTER_SECONDS,
        should_retry=True,
    )


def _refusal(state: str) -> Refusal:
    return Refusal(
        429,
        "paused",
        f"the gateway is {state}: try again later",
        retry_after_seconds=RETRY_AFTER_SECONDS,
        should_retry=True,
    )
