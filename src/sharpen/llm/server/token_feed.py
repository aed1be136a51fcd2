"""Tokens on their way from the engine's thread to the event loop that streams them."""

import asyncio
import threading

from ..engine import Engine, Request, Token
from ..engine.request import Listener


class TokenFeed:
    """Collects what is sampled until somebody takes it: a reader that lags gets more tokens at once, not a queue."""

    def __init__(self, engine: Engine, requests: list[Request]) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine, self._requests = engine, requests
        self._lock = threading.Lock()
        self._tokens: list[list[Token]] = [[] for _ in requests]
        self._num_open = len(requests)
        self._is_awake = False
        self._news = asyncio.Event()
        self._listeners = [self._listener(place) for place in range(len(requests))]
        for request, listener in zip(requests, self._listeners, strict=True):
            engine.listen(request, listener)
            request.future.add_done_callback(lambda _: self._end())

    async def take(self) -> list[list[Token]] | None:
        """The tokens that came since the last call, for each request; None once there are no more."""
        while True:
            await self._news.wait()
            with self._lock:
                self._news.clear()
                self._is_awake = False
                taken, self._tokens = self._tokens, [[] for _ in self._requests]
                is_over = self._num_open == 0
                if is_over:
                    self._news.set()
            if any(taken):
                return taken
            if is_over:
                return None

    def close(self) -> None:
        for request, listener in zip(self._requests, self._listeners, strict=True):
            self._engine.stop_listening(request, listener)

    # -- called in the engine's thread ---------------------------------------------------------------

    def _listener(self, place: int) -> Listener:
        def put(tokens: list[Token]) -> None:
            with self._lock:
                self._tokens[place].extend(tokens)
                self._wake()

        return put

    def _end(self) -> None:
        with self._lock:
            self._num_open -= 1
            self._wake()

    def _wake(self) -> None:
        if self._is_awake:
            return
        self._is_awake = True
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:
            # The loop was closed, so nobody is left who could read.
            if not self._loop.is_closed():
                raise
