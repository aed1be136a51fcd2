"""Answers as a stream of events: what was sampled since the last event goes into the next.

Tokens come from the thread of the engine to the event loop that streams them.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from ..engine import Engine, Generation, Request, Token
from ..engine.request import Listener, Sequence
from .answers import AnswerWriter, Asked, encode, finish_reason, stop_reason, tool_call, usage_of
from .prompts import Prompt
from .requests import ChatFields, CompletionFields
from .tool_calls import ToolCall, ToolCallReader

DONE = b"data: [DONE]\n\n"


def event(body: Any) -> bytes:
    return b"data: %s\n\n" % (body if isinstance(body, bytes) else encode(body))


class StreamWriter:
    """Writes the events of one request: of each of its prompts, `n` choices."""

    def __init__(self, asked: Asked, answers: AnswerWriter, requests: list[Request]) -> None:
        self._asked = asked
        n = asked.fields.n or 1
        self._choices = [
            [_Choice(asked, answers, number * n + each.index, prompt, each) for each in request.sequences]
            for number, (prompt, request) in enumerate(zip(asked.prompts, requests, strict=True))
        ]

    def write(self, news: list[list[Token]]) -> bytes:
        """The events of what was sampled; `news` holds the tokens of each prompt."""
        events = []
        for choices, tokens in zip(self._choices, news, strict=True):
            for choice in choices if tokens else ():
                own = [token for token in tokens if token.sample == choice.sequence.index]
                if own and (body := choice.write(own)) is not None:
                    events.append(event(body))
        return b"".join(events)

    def end(self, generations: list[Generation]) -> bytes:
        """How the stream ends."""
        if not self._asked.fields.wants_usage:
            return DONE
        head = self._asked.head(_kind(self._asked), generations[-1].samples[-1].versions[-1])
        return event(head | {"choices": [], "usage": usage_of(generations)}) + DONE


class _Choice:
    """What one choice has said so far."""

    def __init__(self, asked: Asked, answers: AnswerWriter, index: int, prompt: Prompt, sequence: Sequence) -> None:
        self._asked, self._answers, self._prompt, self._index = asked, answers, prompt, index
        self.sequence = sequence
        self._reader = ToolCallReader(prompt.digest) if asked.reads_tool_calls else None
        self._has_begun = False
        self._offset = 0

    def write(self, tokens: list[Token]) -> dict[str, Any] | None:
        """The event of these tokens; None where it would say nothing."""
        fields, last = self._asked.fields, tokens[-1]
        sampled = [token for token in tokens if token.id is not None]
        text = "".join([token.text for token in tokens])
        choice: dict[str, Any] = {"index": self._index}
        if isinstance(fields, ChatFields):
            choice["delta"] = self._delta(fields, text, is_last=last.finish_reason is not None)
        else:
            choice["text"] = text
        is_silent = not text or choice.get("delta") == {}
        if is_silent and last.finish_reason is None and not fields.return_token_ids and fields.num_top is None:
            return None
        choice["finish_reason"] = self._finish_reason(last)
        choice["stop_reason"] = None if last.finish_reason is None else stop_reason(fields, self.sequence.stop)
        choice["logprobs"] = self._logprobs(sampled)
        body = self._asked.head(_kind(self._asked), tokens[0].version)
        if fields.return_token_ids:
            self._add_ids(body, choice, sampled)
        if tokens[0].version != last.version:
            choice["weights_versions"] = [str(token.version) for token in sampled]
        self._has_begun = True
        body["choices"] = [choice]
        if fields.wants_usage:
            body["usage"] = None
        return body

    def _delta(self, fields: ChatFields, text: str, *, is_last: bool) -> dict[str, Any]:
        delta: dict[str, Any] = {} if self._has_begun else {"role": "assistant", "content": ""}
        if self._reader is None:
            return delta | {"content": text} if text else delta
        first = self._reader.num_calls
        parts = [*self._reader.feed(text), *(self._reader.finish() if is_last else ())]
        content = "".join(part for part in parts if isinstance(part, str))
        calls = [part for part in parts if isinstance(part, ToolCall)]
        if content:
            delta["content"] = content
        told = [{"index": first + place, **tool_call(each)} for place, each in enumerate(calls)]
        if fields.parallel_tool_calls is False:
            told = [each for each in told if each["index"] == 0]
        if told:
            delta["tool_calls"] = told
        return delta

    def _finish_reason(self, last: Token) -> str | None:
        if last.finish_reason is None:
            return None
        reason = finish_reason(last.finish_reason)
        return "tool_calls" if reason == "stop" and self._reader is not None and self._reader.num_calls else reason

    def _logprobs(self, sampled: list[Token]) -> Any:
        ids, logprobs = [token.id for token in sampled if token.id is not None], [token.logprob for token in sampled]
        tops = [token.top for token in sampled] if self._asked.fields.num_top else []
        found = self._answers.logprobs(self._asked.fields, ids, logprobs, tops, offset=self._offset)
        if isinstance(found, dict) and ids:
            self._offset = found["text_offset"][-1] + len(self._answers.texts.text(ids[-1]))
        return found

    def _add_ids(self, body: dict[str, Any], choice: dict[str, Any], sampled: list[Token]) -> None:
        choice["token_ids"] = [token.id for token in sampled]
        if self._has_begun:
            return
        place = choice if isinstance(self._asked.fields, CompletionFields) else body
        place["prompt_token_ids"] = self._prompt.json


def _kind(asked: Asked) -> str:
    return "chat.completion.chunk" if asked.api == "chat" else "text_completion"


# -- tokens on their way to the event loop ------------------------------------------------------------


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
