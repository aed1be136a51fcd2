"""Tokens on their way from the engine's thread to the event loop that streams them.

An event costs the same for one token as for ten, and hundreds of streams would cost more than the sampling itself. So
the first token is passed on at once, and later ones a few at a time.
"""

import asyncio
import threading
from collections.abc import Callable

from ..engine import Engine, Request, Token
from ..engine.request import Listener

PAUSE_SECONDS = 0.04  # from event to event: no reader is faster


class TokenFeed:
    """Collects what is sampled until it is taken."""

    def __init__(self, engine: Engine, requests: list[Request]) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine, self._requests = engine, requests
        self._lock = threading.Lock()
        self._tokens: list[list[Token]] = [[] for _ in requests]
        self._num_open = len(requests)
        self._is_told = False
        self._news = asyncio.Event()
        self._due = 0.0
        self._listeners = [self._listener(place) for place in range(len(requests))]
        for request, listener in zip(requests, self._listeners, strict=True):
            engine.listen(request, listener)
            request.future.add_done_callback(lambda _: self._end())

    async def take(self) -> list[list[Token]] | None:
        """The tokens that came since the last call, for each request; None once there are no more."""
        while True:
            await self._news.wait()
            self._news.clear()
            with self._lock:
                self._is_told = False
                taken, self._tokens = self._tokens, [[] for _ in self._requests]
                is_over = self._num_open == 0
            if any(taken):
                if is_over:
                    self._news.set()
                self._due = self._loop.time() + PAUSE_SECONDS
                return taken
            if is_over:
                return None

    def close(self) -> None:
        for request, listener in zip(self._requests, self._listeners, strict=True):
            self._engine.stop_listening(request, listener)

    def _tell(self) -> None:
        """There is something to take, now or when it is time."""
        if self._loop.time() >= self._due:
            self._news.set()
        else:
            self._loop.call_at(self._due, self._news.set)

    # -- called in the engine's thread ---------------------------------------------------------------

    def _listener(self, place: int) -> Listener:
        def put(tokens: list[Token]) -> None:
            with self._lock:
                self._tokens[place].extend(tokens)
                is_first, self._is_told = not self._is_told, True
            if is_first:
                self._call(self._tell)

        return put

    def _end(self) -> None:
        with self._lock:
            self._num_open -= 1
            is_over = self._num_open == 0
        if is_over:
            self._call(self._news.set)

    def _call(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError:
            # The loop was closed, so nobody is left who could read.
            if not self._loop.is_closed():
                raise
