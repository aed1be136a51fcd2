"""One call on its way through the engine: its requests, and the client that may hang up meanwhile."""

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Self

from ...errors import InvalidInputError
from ...http.asgi import Receive
from ..engine import Engine, EngineError, Generation, Request, SamplingParams
from .prompts import Prompt
from .refusals import Refusal, stopping


class HungUp(Exception):
    """The client has closed its connection."""


class Call:
    """A context: whatever ends it, nothing of it goes on in the engine, and nobody listens for its client."""

    def __init__(self, engine: Engine, receive: Receive) -> None:
        self._engine, self._receive = engine, receive
        self.requests: list[Request] = []
        self._has_hung_up = False

    def __enter__(self) -> Self:
        self._listening = asyncio.get_running_loop().create_task(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listening.cancel()
        self.cancel()

    def submit(self, prompt: Prompt, params: SamplingParams) -> None:
        """Queue one prompt; what the engine refuses is a refusal in its words."""
        if not self._engine.is_started:
            raise stopping()
        try:
            request = self._engine.submit(prompt.ids, params)
        except InvalidInputError as error:
            raise Refusal(400, str(error), code="invalid_value") from error
        except EngineError:
            raise stopping() from None
        self.requests.append(request)
        if request.sequences[0].text is None:
            raise Refusal(
                500, "the engine has no tokenizer, so it gives no text: make it with Engine(model, tokenizer)"
            )

    async def results(self) -> list[Generation]:
        """All samples of all prompts."""
        found = [await _in_words(request) for request in self.requests]
        self.check(*(sample.finish_reason for each in found for sample in each.samples))
        return found

    def check(self, *reasons: str | None) -> None:
        """A sample that was cancelled was so by its client, or by the end of the engine."""
        if "cancelled" in reasons:
            raise HungUp if self._has_hung_up else stopping()

    def cancel(self) -> None:
        for request in self.requests:
            if not request.done():
                request.cancel()

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._has_hung_up = True
        self.cancel()


async def _in_words(result: Awaitable[Generation]) -> Generation:
    try:
        return await result
    except EngineError as error:
        raise Refusal(500, str(error), code="engine_failed") from error
