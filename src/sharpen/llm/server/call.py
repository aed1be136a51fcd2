"""One call on its way through the engine: its requests, and the client that may hang up meanwhile."""

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import Self

from starlette.types import Receive

from ...errors import InvalidInputError
from ...web.app import ClientGone, HttpError, disconnected, server_stopping
from ..engine import Engine, EngineError, Generation, Request, SamplingParams
from .prompts import Prompt


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
            raise server_stopping()
        try:
            request = self._engine.submit(prompt.ids, params)
        except InvalidInputError as error:
            raise HttpError(400, str(error), code="invalid_value") from error
        except EngineError:
            raise server_stopping() from None
        self.requests.append(request)
        if request.sequences[0].text is None:
            raise HttpError(
                500, "the engine has no tokenizer, so it returns no text: create it as Engine(model, tokenizer)"
            )

    async def results(self) -> list[Generation]:
        """All samples of all prompts."""
        found = [await _in_words(request) for request in self.requests]
        self.check(*(sample.finish_reason for each in found for sample in each.samples))
        return found

    def check(self, *reasons: str | None) -> None:
        """A sample that was cancelled was so by its client, or by the end of the engine."""
        if "cancelled" in reasons:
            raise ClientGone if self._has_hung_up else server_stopping()

    def cancel(self) -> None:
        for request in self.requests:
            if not request.done():
                request.cancel()

    async def _listen(self) -> None:
        await disconnected(self._receive)
        self._has_hung_up = True
        self.cancel()


async def _in_words(result: Awaitable[Generation]) -> Generation:
    try:
        return await result
    except EngineError as error:
        raise HttpError(500, str(error), code="engine_failed") from error
