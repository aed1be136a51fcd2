"""`Service`: from the body of a request to the bytes of its answer, whole or piece by piece.

A call is its requests to the engine and the client that may hang up meanwhile: then its requests end.
"""

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, Awaitable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from starlette.types import Receive

from ...errors import InvalidInputError
from ...web.app import ClientGone, HttpError, disconnected, error_body, server_stopping
from ..engine import Engine, EngineError, Generation, Request, SamplingParams
from .answers import AnswerWriter, Api, Asked, TokenTexts, new_id
from .prompts import Prompt, PromptWriter
from .requests import (
    MAX_SAMPLES,
    CallSeeds,
    ChatFields,
    FieldReader,
    Fields,
    check_sampling,
    invalid_field,
    sampling_params,
)
from .streams import StreamWriter, TokenFeed, event

ROLLOUT_HEADER, ATTEMPT_HEADER = b"x-sharpen-rollout-id", b"x-sharpen-attempt-id"
Headers = Mapping[bytes, bytes]


class Service:
    """Answers requests with one engine. It belongs to one event loop."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        *,
        name: str,
        seed: int | None = None,
        rollout_prefix: str = "",
        max_response_tokens: int | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        # A tokenizer must not be used by two threads at once, and the trainer may have this one.
        tokenizer = copy.deepcopy(tokenizer)
        self.engine, self.name = engine, name
        self._window, self._max_response_tokens = engine.sizes.max_length, max_response_tokens
        self._end_id: int | None = getattr(tokenizer, "eos_token_id", None)
        self._reader = FieldReader()
        self._prompts = PromptWriter(
            tokenizer, vocab_size=engine.sizes.vocab_size, template_kwargs=chat_template_kwargs
        )
        self._answers = AnswerWriter(TokenTexts(tokenizer))
        self._seeds = None if seed is None else CallSeeds(seed, rollout_prefix)
        self._calls: set[Call] = set()
        self._is_stopping = False

    def read(self, api: Api, body: bytes) -> Asked:
        """What is asked, or a refusal."""
        fields = self._reader.chat(body) if api == "chat" else self._reader.completion(body)
        if fields.model is not None and fields.model != self.name:
            raise HttpError(
                404,
                f"model {fields.model[:200]!r} does not exist: this server has {self.name!r}",
                code="model_not_found",
                param="model",
            )
        check_sampling(fields)
        if isinstance(fields, ChatFields):
            _check_tool_choice(fields.tool_choice)
            prompts = [self._prompts.of_chat(fields)]
        else:
            prompts = self._prompts.of_completion(fields)
        if len(prompts) * (fields.n or 1) > MAX_SAMPLES:
            raise invalid_field(
                "n",
                f"{len(prompts)} prompts with n={fields.n} are more than {MAX_SAMPLES} samples: send several requests",
            )
        return Asked(api, fields, prompts, self.name, id=new_id(api), created=int(time.time()))

    async def answer(self, asked: Asked, headers: Headers, receive: Receive) -> bytes:
        """The whole answer. `ClientGone` where nobody is left to hear it."""
        with self._begun(asked, headers, receive) as call:
            return self._answers.write(asked, await call.results())

    async def stream(self, asked: Asked, headers: Headers, receive: Receive) -> AsyncGenerator[bytes, None]:
        """The events of the answer, as it is sampled. What fails after the first event is an event itself."""
        has_begun = False
        try:
            with self._begun(asked, headers, receive) as call:
                writer, feed = StreamWriter(asked, self._answers, call.requests), TokenFeed(self.engine, call.requests)
                try:
                    while (news := await feed.take()) is not None:
                        call.check(*(token.finish_reason for tokens in news for token in tokens))
                        if piece := writer.write(news):
                            yield piece
                            has_begun = True
                finally:
                    feed.close()
                yield writer.end(await call.results())
        except HttpError as error:
            if not has_begun:
                raise
            yield event(error_body(error))

    def stop(self) -> None:
        """No more calls; those under way are refused."""
        self._is_stopping = True
        for call in self._calls:
            call.cancel()

    def resume(self) -> None:
        """Calls are taken again."""
        self._is_stopping = False

    @contextmanager
    def _begun(self, asked: Asked, headers: Headers, receive: Receive) -> Iterator["Call"]:
        if self._is_stopping:
            raise server_stopping()
        with Call(self.engine, receive) as call:
            self._calls.add(call)
            try:
                self._submit(call, asked, headers)
                yield call
            finally:
                self._calls.discard(call)

    def _submit(self, call: "Call", asked: Asked, headers: Headers) -> None:
        """Hand a call to the engine; all its prompts are checked before the first."""
        limits = [self._limit(asked.fields, prompt) for prompt in asked.prompts]
        for prompt, limit in zip(asked.prompts, limits, strict=True):
            seed = self._seed(asked.fields, prompt, headers)
            call.submit(prompt, sampling_params(asked.fields, limit=limit, seed=seed, end_id=self._end_id))

    def _limit(self, fields: Fields, prompt: Prompt) -> int:
        """How many tokens may be sampled: as asked for, and as the window has room for."""
        room = self._window - len(prompt.ids)
        if room < 1:
            raise HttpError(
                400,
                f"the prompt has {len(prompt.ids)} tokens, but this model's maximum context length is {self._window} "
                "tokens, including the answer: shorten the prompt",
                code="context_length_exceeded",
                param="messages" if isinstance(fields, ChatFields) else "prompt",
            )
        return min(each for each in (room, fields.limit, self._max_response_tokens) if each is not None)

    def _seed(self, fields: Fields, prompt: Prompt, headers: Headers) -> int | None:
        if fields.seed is not None or self._seeds is None:
            return fields.seed
        return self._seeds.next(
            rollout_id=unquote(headers.get(ROLLOUT_HEADER, b"").decode("latin-1")),
            attempt_id=unquote(headers.get(ATTEMPT_HEADER, b"").decode("latin-1")),
            prompt_digest=prompt.digest,
        )


def _check_tool_choice(choice: Any) -> None:
    """What is sampled cannot be forced into a call."""
    if choice not in (None, "auto", "none"):
        raise invalid_field(
            "tool_choice",
            f"tool_choice is {choice!r:.80}, but this server cannot force a call: use 'auto' or 'none'",
            code="unsupported_value",
        )


# -- one call on its way through the engine -----------------------------------------------------------


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
