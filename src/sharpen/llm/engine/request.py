"""The handle of one request: wait for it, stream it, cancel it, from threads or from an event loop."""

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from .outputs import Generation, Token
from .sampling_params import SamplingParams
from .sequence import Sequence

if TYPE_CHECKING:
    from .engine import Engine

Listener = Callable[[list[Token]], None]


class Request:
    """A submitted request. Its methods may be called from any thread."""

    def __init__(self, engine: "Engine", prompt_ids: list[int], params: SamplingParams) -> None:
        self._engine = engine
        self.prompt_ids, self.params = prompt_ids, params
        self.key = hash(tuple(prompt_ids))
        self.sequences: list[Sequence] = []
        self.future: Future[Generation] = Future()
        self.listeners: list[Listener] = []
        self.has_run_alone = False  # after a step failed in which it took part
        self.future.add_done_callback(self._on_done)

    def done(self) -> bool:
        return self.future.done()

    def cancel(self) -> None:
        """End it at the next step; what was sampled so far is its result, with the reason `cancelled`."""
        self._engine.cancel(self)

    def result(self, timeout_seconds: float | None = None) -> Generation:
        """Wait for the samples. Where no background thread runs, this call takes the steps itself."""
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self.future.done() and not self._engine.is_started:
            if end is not None and time.monotonic() > end:
                break
            self._engine.step()
        return self.future.result(None if end is None else max(0.0, end - time.monotonic()))

    def __await__(self) -> Generator[Any, None, Generation]:
        """Wait in an event loop. A task that is cancelled meanwhile cancels the request."""
        return asyncio.wrap_future(self.future).__await__()

    def stream(self) -> Iterator[Token]:
        """Tokens as they are sampled, from the first on."""
        events: queue.SimpleQueue[Token | None] = queue.SimpleQueue()

        def put(tokens: list[Token]) -> None:
            for token in tokens:
                events.put(token)

        stop = self._listen(put)
        self.future.add_done_callback(lambda _: events.put(None))
        try:
            while (token := self._next(events)) is not None:
                yield token
        finally:
            stop()
        self.future.result()

    async def astream(self) -> AsyncIterator[Token]:
        """Tokens as they are sampled, in an event loop; needs the background thread (`engine.start()`)."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Token | None] = asyncio.Queue()
        end = [None]

        def put(tokens: list[Token] | list[None]) -> None:
            for token in tokens:
                events.put_nowait(token)

        stop = self._listen(lambda tokens: _call(loop, put, tokens))
        self.future.add_done_callback(lambda _: _call(loop, put, end))
        try:
            while (token := await events.get()) is not None:
                yield token
        finally:
            stop()
        self.future.result()

    def _on_done(self, future: "Future[Generation]") -> None:
        if future.cancelled():
            self.cancel()

    def _next(self, events: "queue.SimpleQueue[Token | None]") -> Token | None:
        while events.empty() and not self._engine.is_started:
            self._engine.step()
        return events.get()

    def _listen(self, listener: Listener) -> Callable[[], None]:
        self._engine.listen(self, listener)
        return lambda: self._engine.stop_listening(self, listener)


def _call(loop: asyncio.AbstractEventLoop, put: Callable[..., None], tokens: object) -> None:
    try:
        loop.call_soon_threadsafe(put, tokens)
    except RuntimeError:
        # The loop was closed, so nobody is left who could read.
        if not loop.is_closed():
            raise
