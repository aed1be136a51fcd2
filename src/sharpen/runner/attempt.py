"""One attempt in a runner, from the claim of its rollout to the report of its outcome.

The order is: resources, `on_rollout_start`, the trace opens, `on_trace_start`, the agent, `on_trace_end`, the trace
closes, the result becomes spans, `on_rollout_end`, completion. Whatever an agent does fails its own attempt only, and
whatever ends an attempt, the store gets the outcome with the last spans, or the rollout back in the queue.
"""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import math
import numbers
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set as AbstractSet
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from ..backoff import Backoff
from ..emitter import emit_exception, emit_reward
from ..errors import (
    AgentOutputError,
    AgentResultError,
    AgentTimeoutError,
    InvalidInputError,
    MissingResourceError,
    SharpenError,
    describe,
    text_of,
)
from ..secrets import REFERENCE, hide_known, map_secrets
from ..store import LightningStore
from ..store.base import AttemptEnd
from ..tracer import Tracer, activate
from ..tracer.base import Shared
from ..tracer.trace import traceback_text
from ..types import LLM, AttemptedRollout, Hook, NamedResources, Span, SpanCoreFields
from .heartbeat import Outbox, send_one_by_one
from .threads import agent_errors

if TYPE_CHECKING:
    from .base import Runner

log = logging.getLogger(__name__)
MAX_REASON = 4_000
MAX_RESOURCES = 32  # versions of resources that a runner keeps
PATIENCE_SECONDS = 120.0
HAND_BACK_SECONDS = 4.0
UNREACHABLE_SECONDS = 0.5  # a runner that stops does not wait for a store that has gone


class RunningAttempt:
    """A claimed rollout while a runner has it, and how it ended."""

    def __init__(self, rollout: AttemptedRollout, runner: "Runner[Any]") -> None:
        self.rollout, self.store = rollout, runner.get_store()
        self._ids = (rollout.rollout_id, rollout.attempt.attempt_id)
        self.outbox = Outbox(self.store, rollout)
        self.error: BaseException | None = None
        self.is_unwanted = False
        self._runner, self._is_settled = runner, False
        self._task: asyncio.Task[Any] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def outcome(self) -> AttemptEnd:
        if self.error is None:
            return "succeeded"
        return "timeout" if isinstance(self.error, AgentTimeoutError) else "failed"

    # -- the agent -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the agent. Raises only its own cancellation; whatever else it ends by is in `error`."""
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        try:
            with agent_errors():
                result = await self._runner.execute(self.rollout)
            if not self._is_settled:  # an `execute` of the user's own, which did not call ours
                self._settle(result, trace_id=None)
        except asyncio.CancelledError as error:
            if not self.is_unwanted and self._task is not None and self._task.cancelling():
                raise  # somebody stops the runner
            self._fail(error)  # unwanted, or a cancellation that the agent has let through
        except BaseException as error:
            self._fail(error)
            if isinstance(error, KeyboardInterrupt) and self._runner._threads.is_on_lent_thread:
                raise  # a person at the keyboard, since the agent runs on the main thread
        finally:
            self._task = None

    async def execute(self, rollout: AttemptedRollout) -> Any:
        """Run the agent in a trace, with the hooks around it, and return what the agent returned."""
        runner = self._runner
        tracer, agent = runner.tracer, runner.get_agent()
        assert tracer is not None  # since `init`
        resources = await runner._resources.of(rollout)
        known = {"agent": agent, "runner": runner, "rollout": rollout}
        await runner.hooks.call("on_rollout_start", **known, tracer=tracer)
        spans: list[Span] = []
        try:
            async with self._trace(tracer, known):
                result = await self._call_agent(rollout, resources)
            recorded = tracer.get_last_trace()
            spans = self._settle(result, recorded[0].trace_id if recorded else None)
        finally:
            await runner.hooks.call("on_rollout_end", **known, spans=[*tracer.get_last_trace(), *spans])
        return result

    @contextlib.asynccontextmanager
    async def _trace(self, tracer: Tracer, known: dict[str, Any]) -> AsyncIterator[None]:
        """Record the agent inside the block, and let it print only so much."""
        hooks, (rollout_id, attempt_id) = self._runner.hooks, self._ids
        trace = tracer.trace_context(rollout_id, store=self.outbox, rollout_id=rollout_id, attempt_id=attempt_id)
        async with trace:
            with activate(tracer):
                await hooks.call("on_trace_start", **known, tracer=tracer)
                try:
                    with output_limit(self._runner.max_output_bytes):
                        yield
                except Exception as error:
                    emit_exception(error)
                    raise
                finally:
                    await hooks.call("on_trace_end", **known, tracer=tracer)

    async def _call_agent(self, rollout: AttemptedRollout, resources: NamedResources) -> Any:
        """Call or await the agent's method for this mode, within the rollout's time."""
        agent, threads, seconds = self._runner.get_agent(), self._runner._threads, rollout.config.timeout_seconds
        name = "training_rollout" if rollout.mode == "train" else "validation_rollout"
        method = getattr(agent, f"{name}_async" if agent.is_async() else name)
        call = partial(method, rollout.input, resources, rollout)
        try:
            async with asyncio.timeout(seconds) as limit:
                if agent.is_async():
                    return await threads.call_async(call)
                result = await threads.call(call)
                return await threads.call_async(lambda: result) if inspect.isawaitable(result) else result
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise AgentTimeoutError(f"the agent exceeded its rollout's timeout_seconds={seconds:g}") from error

    def cancel(self) -> None:
        """Stop the agent, since nobody waits for it any more. May be called from any thread."""
        self.is_unwanted = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._task is not None and self._task.cancel())

    def _settle(self, result: Any, trace_id: str | None) -> list[Span]:
        """Put the result, as spans, into the outbox."""
        spans = spans_of(result, self.rollout, trace_id)
        for span in spans:
            self.outbox.put(span)
        self._is_settled = True
        return spans

    def _fail(self, error: BaseException) -> None:
        self.error = error
        if not self.is_unwanted:
            trace = error if log.isEnabledFor(logging.DEBUG) else None
            words = hide_known(describe(error))[:300]
            log.warning("rollout %s failed: %s", self.rollout.rollout_id, words, exc_info=trace)

    # -- the end -------------------------------------------------------------------------------------

    async def report(self) -> None:
        """Store the last spans and the outcome; retry for a while where the store cannot write now."""
        spans = await self.outbox.close_and_take()
        about: dict[str, Any] = {} if self.error is None else {"metadata": _reason(self.error)}
        backoff: Backoff | None = None
        while True:
            try:
                await self.store.complete_attempt(*self._ids, spans=spans, status=self.outcome, **about)
                return
            except InvalidInputError as error:
                if not spans:
                    log.error("the store rejected the outcome of rollout %s: %s", self._ids[0], error)
                    return
                await send_one_by_one(self.store, spans, error)
                spans = []
            except Exception as error:  # noqa: BLE001 - a store of the user's own may raise anything
                backoff = backoff or Backoff(0.1, maximum=5.0, deadline_seconds=PATIENCE_SECONDS)
                if not await backoff.wait_async():
                    log.error("could not store the outcome of rollout %s: %s", self._ids[0], error)
                    return

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
    """Return why an attempt failed, as its metadata."""
    return {
        "error_type": type(error).__name__,
        "error": hide_known(text_of(error))[:MAX_REASON] or type(error).__name__,
        "traceback": traceback_text(error, frames=10)[-MAX_REASON:],
    }


# -- resources ---------------------------------------------------------------------------------------


class ResourceCache:
    """The resources that rollouts are bound to, with their keys; the last versions are kept."""

    def __init__(self, store: LightningStore) -> None:
        self._store = store
        self._known: dict[tuple[str, int], NamedResources] = {}

    async def of(self, rollout: AttemptedRollout) -> NamedResources:
        """Return the resources of a rollout.

        Raises:
            MissingResourceError: The store does not have them.
        """
        if rollout.resources_id is None:
            latest = await self._store.get_latest_resources()
            return with_keys(latest.resources) if latest is not None else {}
        key = (rollout.resources_id, rollout.resources_version or 0)
        if key not in self._known:
            found = await self._store.get_resources_by_id(rollout.resources_id, rollout.resources_version)
            if found is None:
                raise MissingResourceError(f"the store has no resources {key[0]!r} in version {key[1]}")
            if rollout.resources_version is None:
                return with_keys(found.resources)
            self._known = dict([*list(self._known.items())[1 - MAX_RESOURCES :], (key, with_keys(found.resources))])
        return dict(self._known[key])


def with_keys(resources: NamedResources) -> NamedResources:
    """Return the resources with the keys that this environment has, since resources hold only references to keys.

    A reference to a variable that is not set stays, for whoever uses it.
    """
    return {name: _with_key(name, each) if isinstance(each, LLM) else each for name, each in resources.items()}


def _with_key(name: str, llm: LLM) -> LLM:
    def resolve(_: str, text: str) -> str:
        found = REFERENCE.fullmatch(text)
        if found is not None and found[1] not in os.environ:
            _warn_of_missing(name, found[1])
        return text if found is None else os.environ.get(found[1], text)

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


# -- hooks -------------------------------------------------------------------------------------------

Moment = Literal["on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end"]
_KNOWN = frozenset({"agent", "runner", "rollout", "tracer", "spans"})


class Hooks:
    """A user's hooks: called with the keywords that they take, and never fatal. Those not overridden cost nothing."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self.errors = 0
        self._by_moment = {moment: [hook for hook in hooks if _overrides(hook, moment)] for moment in get_args(Moment)}

    async def call(self, moment: Moment, **known: Any) -> None:
        """Call every hook of this moment in order; what one raises is logged and counted."""
        for hook in self._by_moment[moment]:
            try:
                function = getattr(hook, moment)
                answer = function(**{name: known[name] for name in known.keys() & _keywords(function)})
                if inspect.isawaitable(answer):
                    await answer
            except Exception:  # a user's code, which must not end the attempt
                self.errors += 1
                log.exception("hook %s.%s failed; the attempt continues", type(hook).__name__, moment)


def _overrides(hook: Hook, moment: Moment) -> bool:
    return getattr(type(hook), moment, None) is not getattr(Hook, moment) and callable(getattr(hook, moment, None))


def _keywords(function: Callable[..., Any]) -> AbstractSet[str]:
    """Return the names of the keywords that a hook takes."""
    parameters = inspect.signature(function).parameters
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return _KNOWN if takes_all else frozenset(parameters)


# -- output ------------------------------------------------------------------------------------------


class _Allowance:
    """What one attempt may still print."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = self._left = size_bytes

    def take(self, size_bytes: int) -> None:
        self._left -= size_bytes
        if self._left < 0:
            raise AgentOutputError(
                f"the agent printed more than {self._size_bytes} bytes: print less, "
                "or raise the runner's max_output_bytes (None for no limit)"
            )


_allowance: contextvars.ContextVar[_Allowance | None] = contextvars.ContextVar("sharpen_allowance", default=None)


class _CountedStream:
    """A stream that counts what an attempt writes to it; everything else goes to the stream behind it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: Any) -> Any:
        allowance = _allowance.get()
        if allowance is not None:
            allowance.take(len(text))
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _count_streams() -> None:
    sys.stdout, sys.stderr = _CountedStream(sys.stdout), _CountedStream(sys.stderr)


def _restore_streams() -> None:
    for name in ("stdout", "stderr"):
        if isinstance(found := getattr(sys, name), _CountedStream):
            setattr(sys, name, found._stream)


_counting = Shared(_count_streams, _restore_streams)


@contextlib.contextmanager
def counted_output() -> Iterator[None]:
    """Count what attempts write to standard output and error of this process, as long as a runner works in it."""
    _counting.hold()
    try:
        yield
    finally:
        _counting.release()


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
