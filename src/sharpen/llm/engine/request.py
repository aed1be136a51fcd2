"""One request: how to sample it, what comes out, the handle that its caller holds, and the state of its samples."""

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ...checks import check_int, check_number
from ...errors import InvalidInputError, SharpenError
from .text import TextStream

if TYPE_CHECKING:
    from .engine import Engine

MAX_TOP_LOGPROBS = 64
MAX_SAMPLES = 65_536
MAX_STOPS, MAX_STOP_CHARACTERS = 64, 1_000  # each is searched for after every token, while other requests wait
_INTEGERS = (
    ("n", 1, MAX_SAMPLES),
    ("top_k", 0, 2**31 - 1),
    ("logprobs", 0, MAX_TOP_LOGPROBS),
    ("max_new_tokens", 1, None),
    ("seed", -(2**63), 2**64 - 1),
)

FinishReason = Literal["stop", "length", "cancelled"]
TopLogprobs = tuple[tuple[int, float], ...]


class EngineError(SharpenError, RuntimeError):
    """The engine could not continue a request, or is not in a state to accept one."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen, and when they end.

    Temperature, then `top_k`, then `top_p` shape the distribution. Temperature 0 takes the likeliest token. Without
    `max_new_tokens` a request may fill the model's window or the cache. `stop` ends at a string, which the text leaves
    out and the token ids keep; `stop_token_ids` apply in addition to the model's own end-of-text ids, which
    `ignore_eos` turns off. Equal seeds give equal samples, whatever else the engine does; the `n` samples of a
    request differ. `logprobs` is how many of the likeliest tokens to return at each place.
    """

    max_new_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int = 0
    n: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        self._check_numbers()
        self._check_stops()

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def is_filtered(self) -> bool:
        """Whether `top_p` or `top_k` excludes tokens before the draw."""
        return not self.is_greedy and (self.top_p < 1.0 or self.top_k > 0)

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOPS:
            raise InvalidInputError(f"stop has {len(self.stop)} strings: use at most {MAX_STOPS}")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidInputError(f"stop contains {text!r}: use strings of at least one character")
            if len(text) > MAX_STOP_CHARACTERS:
                raise InvalidInputError(
                    f"stop contains a string of {len(text)} characters: use at most {MAX_STOP_CHARACTERS}"
                )

    def _check_numbers(self) -> None:
        for name, at_least, at_most in _INTEGERS:
            number = check_int(
                name,
                getattr(self, name),
                at_least=at_least,
                at_most=at_most,
                optional=name in ("max_new_tokens", "seed"),
                error=InvalidInputError,
            )
            object.__setattr__(self, name, number)
        for token_id in self.stop_token_ids:
            check_int("stop_token_ids", token_id, at_least=0, error=InvalidInputError)
        check_number("temperature", self.temperature, at_least=0, error=InvalidInputError)
        check_number("top_p", self.top_p, above=0, at_most=1, error=InvalidInputError)


@dataclass(frozen=True, slots=True)
class Token:
    """One sampled token of a stream.

    `logprob` is of the distribution that was sampled from (temperature, top-k, top-p applied; 0 when greedy),
    `model_logprob` of the model's own. `text` is what became readable with this token: some tokens are parts of a
    character, and text that may begin a stop string is held back. A final event without a token (`id` is None) carries
    the held-back text and the finish reason.
    """

    sample: int
    id: int | None
    logprob: float
    model_logprob: float
    version: int
    top: TopLogprobs
    text: str
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished sample: its tokens, with the log-probabilities and the weights version of each.

    `token_ids` hold everything that was sampled, including an end-of-text token and the tokens of a stop string; `text`
    leaves those out (None without a tokenizer), and is decoded when it is first read. `stop` is the id or string that
    ended the sample.
    """

    index: int
    token_ids: list[int]
    logprobs: list[float]
    model_logprobs: list[float]
    versions: list[int]
    top_logprobs: list[TopLogprobs]
    text_source: str | TextStream | None = field(repr=False, compare=False)
    finish_reason: FinishReason
    stop: int | str | None

    @property
    def text(self) -> str | None:
        source = self.text_source
        return source.text if isinstance(source, TextStream) else source


@dataclass(frozen=True, slots=True)
class Generation:
    """The result of one request: `n` samples of one prompt. `cached_tokens` of the prompt were found in the cache."""

    prompt_ids: list[int]
    samples: list[Sample]
    cached_tokens: int


Listener = Callable[[list[Token]], None]


class Request:
    """The handle of a submitted request: wait for it, stream it or cancel it, from any thread or an event loop."""

    def __init__(self, engine: "Engine", prompt_ids: list[int], params: SamplingParams) -> None:
        self._engine = engine
        self.prompt_ids, self.params = prompt_ids, params
        self.key = hash(tuple(prompt_ids))
        self.sequences: list[Sequence] = []
        self.future: Future[Generation] = Future()
        self.listeners: list[Listener] = []
        self.has_run_alone = False  # after a failed step that it was part of
        self.future.add_done_callback(self._on_done)

    def done(self) -> bool:
        return self.future.done()

    def cancel(self) -> None:
        """End it at the next step; its result is what was sampled so far, with the finish reason `cancelled`."""
        self._engine.cancel(self)

    def result(self, timeout_seconds: float | None = None) -> Generation:
        """Wait for the samples. If no background thread is running, this call takes the steps itself."""
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not self.future.done() and not self._engine.is_started:
            if end is not None and time.monotonic() > end:
                break
            self._engine.step()
        return self.future.result(None if end is None else max(0.0, end - time.monotonic()))

    def __await__(self) -> Generator[Any, None, Generation]:
        """Wait in an event loop. If the waiting task is cancelled, so is the request."""
        return asyncio.wrap_future(self.future).__await__()

    def stream(self) -> Iterator[Token]:
        """Yield tokens as they are sampled, starting with the first."""
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
        """Yield tokens as they are sampled, in an event loop; needs the background thread (`engine.start()`)."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Token | None] = asyncio.Queue()
        end = [None]

        def put(tokens: list[Token] | list[None]) -> None:
            for token in tokens:
                events.put_nowait(token)

        stop = self._listen(lambda tokens: _call_in(loop, put, tokens))
        self.future.add_done_callback(lambda _: _call_in(loop, put, end))
        try:
            while (token := await events.get()) is not None:
                yield token
        finally:
            stop()
        self.future.result()

    def _on_done(self, future: Future[Generation]) -> None:
        if future.cancelled():
            self.cancel()

    def _next(self, events: queue.SimpleQueue[Token | None]) -> Token | None:
        while events.empty() and not self._engine.is_started:
            self._engine.step()
        return events.get()

    def _listen(self, listener: Listener) -> Callable[[], None]:
        self._engine.listen(self, listener)
        return lambda: self._engine.stop_listening(self, listener)


def _call_in(loop: asyncio.AbstractEventLoop, put: Callable[..., None], tokens: object) -> None:
    try:
        loop.call_soon_threadsafe(put, tokens)
    except RuntimeError:
        # A closed loop has no readers left.
        if not loop.is_closed():
            raise


@dataclass(slots=True, eq=False)
class Sequence:
    """The state of one sample of a request; the scheduler moves it, the stepper appends to it.

    `computed` tokens have their keys and values in `blocks`; `prefixes` are the pool's numbers of the blocks that it
    can find again, and `chain` holds a hash for each full block of the tokens. `in_flight` tokens were launched on the
    device and not read back yet. `slot` is None while the sequence waits; `row` is its place in the last launched
    batch. `followers` wait for this sequence because their tokens are the same.
    """

    request: Request
    index: int
    params: SamplingParams
    seed: int
    tokens: list[int]
    num_prompt: int
    order: tuple[int, int]
    limit: int
    end_ids: frozenset[int]
    text: TextStream | None = None
    blocks: list[int] = field(default_factory=list)
    prefixes: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    followers: list["Sequence"] = field(default_factory=list)
    computed: int = 0
    in_flight: int = 0
    slot: int | None = None
    row: int = -1
    is_stale: bool = False
    cached_tokens: int | None = None
    logprobs: list[float] = field(default_factory=list)
    model_logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop: int | str | None = None
    end: int = field(init=False)
    """The number of tokens at which it ends by length."""

    def __post_init__(self) -> None:
        self.end = self.num_prompt + self.limit

    @property
    def is_fresh(self) -> bool:
        """Whether nothing has been sampled yet."""
        return len(self.tokens) == self.num_prompt

    @property
    def num_launched(self) -> int:
        """How many tokens it has, including those in flight."""
        return len(self.tokens) + self.in_flight

    @property
    def is_watched(self) -> bool:
        """Whether its tokens have listeners, or need their likeliest alternatives."""
        return bool(self.params.logprobs or self.request.listeners)

    def append(self, token_id: int, logprob: float, model_logprob: float, version: int, top: TopLogprobs) -> str:
        """Add a sampled token and check whether it is the last; return the text that became readable."""
        self.tokens.append(token_id)
        self.logprobs.append(logprob)
        self.model_logprobs.append(model_logprob)
        self.versions.append(version)
        if self.params.logprobs:
            self.top_logprobs.append(top)
        if token_id in self.end_ids:
            self.finish_reason, self.stop = "stop", token_id
            return self.text.finish() if self.text else ""
        text = self.text.append(token_id) if self.text else ""
        if self.text and self.text.stopped_by is not None:
            self.finish_reason, self.stop = "stop", self.text.stopped_by
        elif len(self.tokens) >= self.end:
            self.finish_reason = "length"
            text += self.text.finish() if self.text else ""
        return text

    def events_so_far(self) -> list[Token]:
        """Return the tokens sampled so far, for a new listener; the last one carries the text so far."""
        text = self.text.read_eagerly() if self.text else ""
        ids = self.tokens[self.num_prompt :]
        tops = self.top_logprobs or [()] * len(ids)
        last = len(ids) - 1
        return [
            Token(
                sample=self.index,
                id=ids[place],
                logprob=self.logprobs[place],
                model_logprob=self.model_logprobs[place],
                version=self.versions[place],
                top=tops[place],
                text=text if place == last else "",
                finish_reason=self.finish_reason if place == last else None,
            )
            for place in range(len(ids))
        ]

    def sample(self) -> Sample:
        """Return the finished sample."""
        return Sample(
            index=self.index,
            token_ids=self.tokens[self.num_prompt :],
            logprobs=self.logprobs,
            model_logprobs=self.model_logprobs,
            versions=self.versions,
            top_logprobs=self.top_logprobs,
            text_source=self.text,
            finish_reason=self.finish_reason or "cancelled",
            stop=self.stop,
        )
