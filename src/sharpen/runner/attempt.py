"""One attempt in a runner: the keys it is given, what it may print, what its result becomes, how its end is reported.

Whatever ends an attempt, the store hears of it: the outcome with the last spans, or the rollout back in the queue.
"""

import asyncio
import contextlib
import contextvars
import logging
import math
import numbers
import os
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
from msgspec.structs import replace

from ..emitter import emit_reward
from ..errors import (
    AgentOutputError,
    AgentResultError,
    AgentTimeoutError,
    InvalidInputError,
    SharpenError,
    describe,
    text_of,
)
from ..secrets import REFERENCE, hide_known, map_secrets
from ..store import LightningStore
from ..store.base import AttemptEnd
from ..types import LLM, AttemptedRollout, NamedResources, Span, SpanCoreFields
from .heartbeat import Outbox, send_one_by_one

log = logging.getLogger(__name__)
MAX_REASON = 4_000
PATIENCE_SECONDS = 120.0
HAND_BACK_SECONDS = 4.0
UNREACHABLE_SECONDS = 0.5  # a runner that stops does not wait for a store that has gone


class RunningAttempt:
    """One attempt while it runs, and how it ended."""

    def __init__(self, rollout: AttemptedRollout, store: LightningStore) -> None:
        self.rollout = rollout
        self.store = store
        self.outbox = Outbox(store, rollout)
        self.task: asyncio.Task[Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.error: BaseException | None = None
        self.is_settled = False
        self.is_unwanted = False

    @property
    def outcome(self) -> AttemptEnd:
        if self.error is None:
            return "succeeded"
        return "timeout" if isinstance(self.error, AgentTimeoutError) else "failed"

    def settle(self, result: Any, trace_id: str | None) -> list[Span]:
        """Put the result, as spans, into the outbox."""
        spans = spans_of(result, self.rollout, trace_id)
        for span in spans:
            self.outbox.put(span)
        self.is_settled = True
        return spans

    def fail(self, error: BaseException) -> None:
        self.error = error
        if not self.is_unwanted:
            trace = error if log.isEnabledFor(logging.DEBUG) else None
            log.warning(
                "rollout %s failed: %s",
                self.rollout.rollout_id,
                hide_known(describe(error))[:300],
                exc_info=trace,
            )

    def cancel(self) -> None:
        """Stop the agent, since nobody waits for it any more. May be called from any thread."""
        self.is_unwanted = True
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(lambda: self.task is not None and self.task.cancel())

    async def report(self) -> None:
        """Store the last spans and the outcome; retry for a while where the store cannot write now."""
        spans = await self.outbox.close_and_take()
        ids = (self.rollout.rollout_id, self.rollout.attempt.attempt_id)
        about: dict[str, Any] = {} if self.error is None else {"metadata": _reason(self.error)}
        end, pause = asyncio.get_running_loop().time() + PATIENCE_SECONDS, 0.1
        while True:
            try:
                await self.store.complete_attempt(*ids, spans=spans, status=self.outcome, **about)
                return
            except InvalidInputError as error:
                if not spans:
                    log.error("the store rejected the outcome of rollout %s: %s", ids[0], error)
                    return
                await send_one_by_one(self.store, spans, error)
                spans = []
            except Exception as error:  # noqa: BLE001 - a store of the user's own may raise anything
                if asyncio.get_running_loop().time() > end:
                    log.error("could not store the outcome of rollout %s: %s", ids[0], error)
                    return
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)

    async def hand_back(self) -> None:
        """Keep what was recorded and put the rollout back into the queue, for another runner or the next run."""
        rollout_id = self.rollout.rollout_id
        async with handing_back(self.store, f"rollout {rollout_id}"):
            if spans := await self.outbox.close_and_take():
                await self.store.add_many_spans(spans)
            await self.store.update_rollout(rollout_id, status="requeuing")
            log.info("returned rollout %s to the queue", rollout_id)


@contextlib.asynccontextmanager
async def handing_back(store: LightningStore, what: str) -> AsyncIterator[None]:
    """Give something back to the store inside the block, within a few seconds; log where that fails."""
    is_unreachable = getattr(store, "is_away", False)  # as a client knows
    try:
        async with asyncio.timeout(UNREACHABLE_SECONDS if is_unreachable else HAND_BACK_SECONDS):
            yield
    except (SharpenError, TimeoutError) as error:
        reason = "the store is not responding" if isinstance(error, TimeoutError) else describe(error)
        log.warning("could not return %s to the queue: %s", what, reason)


def _reason(error: BaseException) -> dict[str, Any]:
    """Why an attempt failed, as its metadata says it."""
    try:
        lines = traceback.format_exception(error, limit=-10)
    except Exception:  # noqa: BLE001 - the text of the error itself fails
        lines = traceback.format_tb(error.__traceback__, limit=-10)
    without_lone_surrogates = "".join(lines).encode("utf-8", "replace").decode()  # which no store can write
    return {
        "error_type": type(error).__name__,
        "error": hide_known(text_of(error))[:MAX_REASON] or type(error).__name__,
        "traceback": hide_known(without_lone_surrogates)[-MAX_REASON:],
    }


# -- resources ---------------------------------------------------------------------------------------


def with_keys(resources: NamedResources) -> NamedResources:
    """Return the resources with the keys that this environment has, since resources hold only references to keys.

    A reference to a variable that is not set stays, for whoever uses it.
    """
    return {name: _with_key(name, each) if isinstance(each, LLM) else each for name, each in resources.items()}


def _with_key(name: str, llm: LLM) -> LLM:
    def resolve(_: str, text: str) -> str:
        found = REFERENCE.fullmatch(text)
        if found is None or found[1] in os.environ:
            return os.environ[found[1]] if found else text
        _warn_of_missing(name, found[1])
        return text

    key = resolve("api_key", llm.api_key) if llm.api_key else llm.api_key
    return replace(llm, api_key=key, sampling_parameters=map_secrets(llm.sampling_parameters, resolve))


@cache
def _warn_of_missing(name: str, variable: str) -> None:
    """Once: the agent may have a key of its own, or find its calls refused."""
    log.warning(
        "the API key of resource %r comes from the environment variable %s, which is not set for this runner: "
        "calls with it will be rejected",
        name,
        variable,
    )


# -- output ------------------------------------------------------------------------------------------


class _Allowance:
    """What one attempt may still print."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = self.left = size_bytes


_allowance: contextvars.ContextVar[_Allowance | None] = contextvars.ContextVar("sharpen_allowance", default=None)


class _CountedStream:
    """A stream that counts what an attempt writes to it; everything else goes to the stream behind it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: Any) -> Any:
        allowance = _allowance.get()
        if allowance is not None:
            allowance.left -= len(text)
            if allowance.left < 0:
                raise AgentOutputError(
                    f"the agent printed more than {allowance.size_bytes} bytes: print less, "
                    "or raise the runner's max_output_bytes (None for no limit)"
                )
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _CountedOutput:
    """Standard output and error of this process, counted as long as a runner works in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._counted: list[tuple[str, _CountedStream]] = []

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._counted = [(name, _CountedStream(getattr(sys, name))) for name in ("stdout", "stderr")]
                for name, counted in self._counted:
                    setattr(sys, name, counted)

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for name, counted in self._counted:
                    if getattr(sys, name) is counted:
                        setattr(sys, name, counted._stream)


counted_output = _CountedOutput()


@contextlib.contextmanager
def output_limit(size_bytes: int | None) -> Iterator[None]:
    """Let the code inside, with its tasks and threads, print this much while the output is counted."""
    token = _allowance.set(None if size_bytes is None else _Allowance(size_bytes))
    try:
        yield
    finally:
        _allowance.reset(token)


# -- results -----------------------------------------------------------------------------------------

_ALLOWED = "nothing, a number (the final reward), or a list of Span, SpanCoreFields or OpenTelemetry spans"


def spans_of(result: Any, rollout: AttemptedRollout, trace_id: str | None) -> list[Span]:
    """Return what an agent returned as spans; a result of another form is an error that names its type."""
    if result is None:
        return []
    if isinstance(result, numbers.Real):
        number = float(result)
        if not math.isfinite(number):
            raise AgentResultError(f"the agent returned {number} as its reward: a reward must be a finite number")
        return [_span(emit_reward(number, propagate=False), rollout, trace_id)]
    if isinstance(result, Sequence) and not isinstance(result, str | bytes):
        return [_span(item, rollout, trace_id) for item in result]
    raise AgentResultError(f"the agent returned a {type(result).__name__}: return {_ALLOWED}")


def _span(item: Any, rollout: AttemptedRollout, trace_id: str | None) -> Span:
    rollout_id, attempt_id = rollout.rollout_id, rollout.attempt.attempt_id
    if isinstance(item, SpanCoreFields):
        span = Span.from_core_fields(item, rollout_id=rollout_id, attempt_id=attempt_id, sequence_id=0)
        span = span if trace_id is None else replace(span, trace_id=trace_id)
    elif isinstance(item, Span):
        span = replace(item, rollout_id=rollout_id, attempt_id=attempt_id)
    elif hasattr(item, "get_span_context"):
        span = Span.from_opentelemetry(item, rollout_id, attempt_id, 0)
    else:
        raise AgentResultError(f"the agent returned a list with a {type(item).__name__}: return {_ALLOWED}")
    try:
        msgspec.json.encode(span)
    except TypeError as error:
        raise AgentResultError(
            f"the agent returned the span {span.name!r}, which cannot be written as JSON: {error}"
        ) from None
    return span
