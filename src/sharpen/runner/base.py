"""`Runner`: claims rollouts, runs the agent on each, and reports what came of it.

Inside an attempt the order is: resources, `on_rollout_start`, the trace opens, `on_trace_start`, the agent,
`on_trace_end`, the trace closes, the result becomes spans, `on_rollout_end`, completion. Whatever an agent does fails
its own attempt only.
"""

import asyncio
import contextlib
import contextvars
import inspect
import itertools
import logging
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Generic, Literal

from ..emitter import emit_exception
from ..errors import AgentExitError, AgentTimeoutError, ConfigError, MissingResourceError
from ..litagent import LitAgent, as_agent
from ..store import LightningStore
from ..tracer import OtelTracer, Tracer, activate
from ..types import AttemptedRollout, Hook, NamedResources, ParallelWorkerBase, Rollout, RolloutMode, Span, TaskT
from .attempt import RunningAttempt, counted_output, output_limit, with_keys
from .claim_loop import ClaimLoop, StopEvent
from .heartbeat import HeartbeatThread
from .threads import AgentThreads, MainThread, end_fork, lent_thread

log = logging.getLogger(__name__)
MAX_RESOURCES = 32  # versions of resources that a runner keeps
# Runners that are given no number: apart from those that a strategy numbers from 0.
_numbers = itertools.count(10_000)
_running: contextvars.ContextVar[RunningAttempt | None] = contextvars.ContextVar("sharpen_attempt", default=None)


class Runner(ParallelWorkerBase, Generic[TaskT]):
    """Claims rollouts and runs an agent on them, `concurrency` at a time.

    To change what an attempt does, override `execute`: what it returns (or raises) is the outcome.

    Args:
        tracer: Records what agents do; an `OtelTracer` by default.
        max_rollouts: How many rollouts to run before `iter` returns.
        poll_interval: Seconds that one long poll for work lasts at most.
        heartbeat_interval: Seconds between two heartbeats. Short leases are renewed sooner.
        interval_jitter: Seconds by which the interval varies, so that many workers do not call at once.
        concurrency: How many attempts run at once.
        max_output_bytes: What an agent may print in one attempt; None for no bound.
        max_abandoned: How many threads may hang in agents that nobody waits for before the process is to be replaced.
    """

    def __init__(
        self,
        tracer: Tracer | None = None,
        max_rollouts: int | None = None,
        poll_interval: float = 5.0,
        heartbeat_interval: float = 10.0,
        interval_jitter: float = 0.5,
        concurrency: int = 1,
        max_output_bytes: int | None = 8 * 2**20,
        max_abandoned: int = 8,
    ) -> None:
        super().__init__()
        _check("concurrency", concurrency, at_least=1)
        _check("max_rollouts", max_rollouts, at_least=1)
        _check("heartbeat_interval", heartbeat_interval, at_least=0.01)
        _check("poll_interval", poll_interval, at_least=0)
        self.tracer = tracer
        self.max_rollouts = max_rollouts
        self.poll_interval = poll_interval
        self.heartbeat_interval = heartbeat_interval
        self.interval_jitter = min(interval_jitter, heartbeat_interval / 2)
        self.concurrency = concurrency
        self.max_output_bytes = max_output_bytes
        self.max_abandoned = max_abandoned
        self.agent: LitAgent[TaskT] | None = None
        self.store: LightningStore | None = None
        self.worker_name: str | None = None

    # -- life-cycle ----------------------------------------------------------------------------------

    def init(self, agent: Any, *, hooks: Hook | Sequence[Hook] | None = None, **kwargs: Any) -> None:
        """Take the agent and the hooks. Called once, before any worker starts."""
        self.agent = as_agent(agent)
        self.hooks = Hooks([] if hooks is None else list(hooks) if isinstance(hooks, Sequence) else [hooks])
        self._open_tracer().init()

    def init_worker(self, worker_id: int, store: LightningStore, **kwargs: Any) -> None:
        """Take a store and a place among the workers."""
        super().init_worker(worker_id)
        self.store, self.worker_name = store, worker_name(worker_id)
        self._open_tracer().init_worker(worker_id, store)
        self.get_agent().set_runner(self)
        self._attempts: dict[str, RunningAttempt] = {}
        self._resources: dict[tuple[str, int], NamedResources] = {}
        self._threads, self._main_thread = AgentThreads(), self._lent_thread()
        self.finished = self.failed = 0
        self._heartbeat = HeartbeatThread(
            store,
            self.worker_name,
            heartbeat_interval=self.heartbeat_interval,
            interval_jitter=self.interval_jitter,
            statistics=self._statistics,
            on_unwanted=self._cancel_unwanted,
        )

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Send what is left and end the threads."""
        if self.store is None:
            return
        self._heartbeat.stop()
        self._threads.close()
        self._open_tracer().teardown_worker(worker_id)
        self.store = None

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        self._open_tracer().teardown()
        self.agent = None

    @contextlib.contextmanager
    def run_context(
        self,
        *,
        agent: Any,
        store: LightningStore,
        hooks: Hook | Sequence[Hook] | None = None,
        worker_id: int | None = None,
    ) -> Iterator["Runner[TaskT]"]:
        """A runner that is ready for `step` and `iter`, without a trainer."""
        number = next(_numbers) if worker_id is None else worker_id
        self.init(agent, hooks=hooks)
        try:
            self.init_worker(number, store)
            try:
                yield self
            finally:
                self.teardown_worker(number)
        finally:
            self.teardown()

    # -- work ----------------------------------------------------------------------------------------

    async def iter(self, *, event: StopEvent | None = None, **kwargs: Any) -> None:
        """Claim and run rollouts until the event is set or `max_rollouts` is reached."""
        self._heartbeat.start(getattr(event, "alive", None))
        with counted_output:
            await ClaimLoop(self, event).run()

    async def step(
        self,
        input: TaskT,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: StopEvent | None = None,
    ) -> Rollout:
        """Run one task now; what the agent raises reaches the caller."""
        store = self.get_store()
        self._heartbeat.start()
        resources_id = None if resources is None else (await store.add_resources(resources)).resources_id
        rollout = await store.start_rollout(input, mode, resources_id, worker_id=self.worker_name)
        attempt = self.take(rollout)
        with counted_output:
            try:
                await self.attend(attempt)
            except asyncio.CancelledError:
                await asyncio.shield(self.give_up(attempt))
                raise
            await self.report(attempt)
        if attempt.error is not None:
            raise attempt.error
        finished = await store.get_rollout_by_id(rollout.rollout_id)
        assert finished is not None
        return finished

    def take(self, rollout: AttemptedRollout) -> RunningAttempt:
        """Start an attempt: from now on its spans are sent and its lease is renewed."""
        attempt = self._attempts[rollout.attempt.attempt_id] = RunningAttempt(rollout, self.get_store())
        self._heartbeat.add(attempt.outbox)
        return attempt

    async def attend(self, attempt: RunningAttempt) -> None:
        """Run one attempt. Raises nothing but its own cancellation: `attempt` says how it ended."""
        token = _running.set(attempt)
        attempt.task, attempt.loop = asyncio.current_task(), asyncio.get_running_loop()
        try:
            result = await self.execute(attempt.rollout)
            if not attempt.is_settled:  # an `execute` of the user's own, which never came to ours
                attempt.settle(result, trace_id=None)
        except asyncio.CancelledError as error:
            if not attempt.is_unwanted and attempt.task is not None and attempt.task.cancelling():
                raise  # somebody stops the runner
            attempt.fail(error)  # unwanted, or a cancellation that the agent has let through
        except BaseException as error:
            attempt.fail(_as_exit(error))
            if isinstance(error, KeyboardInterrupt) and self._main_thread is not None:
                raise  # a person at the keyboard, since the agent runs on the main thread
        finally:
            attempt.task = None
            _running.reset(token)

    async def report(self, attempt: RunningAttempt) -> None:
        """Store the outcome with the last spans."""
        try:
            await attempt.report()
        finally:
            self._forget(attempt)
            self.finished += 1
            self.failed += attempt.error is not None

    async def give_up(self, attempt: RunningAttempt) -> None:
        """Put the rollout back into the queue, since the runner stops."""
        try:
            await attempt.hand_back()
        finally:
            self._forget(attempt)

    async def execute(self, rollout: AttemptedRollout) -> Any:
        """Run one claimed rollout and return what the agent returned."""
        tracer, attempt = self._open_tracer(), _running.get() or RunningAttempt(rollout, self.get_store())
        resources = await self._resources_of(rollout)
        known = {"agent": self.agent, "runner": self, "rollout": rollout}
        await self.hooks.call("on_rollout_start", **known, tracer=tracer)
        spans: list[Span] = []
        try:
            result = await self._traced(tracer, attempt, resources, known)
            recorded = tracer.get_last_trace()
            spans = attempt.settle(result, recorded[0].trace_id if recorded else None)
        finally:
            await self.hooks.call("on_rollout_end", **known, spans=[*tracer.get_last_trace(), *spans])
        return result

    async def _traced(
        self, tracer: Tracer, attempt: RunningAttempt, resources: NamedResources, known: dict[str, Any]
    ) -> Any:
        rollout = attempt.rollout
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        async with tracer.trace_context(rollout.rollout_id, store=attempt.outbox, **ids):
            with activate(tracer):
                await self.hooks.call("on_trace_start", **known, tracer=tracer)
                try:
                    with output_limit(self.max_output_bytes):
                        return await self._run_agent(rollout, resources)
                except Exception as error:
                    emit_exception(error)
                    raise
                finally:
                    await self.hooks.call("on_trace_end", **known, tracer=tracer)

    async def _run_agent(self, rollout: AttemptedRollout, resources: NamedResources) -> Any:
        seconds = rollout.config.timeout_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._call_agent(rollout, resources)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise AgentTimeoutError(f"the agent exceeded its rollout's timeout_seconds={seconds:g}") from error
        except SystemExit as error:
            raise _as_exit(error) from error

    async def _call_agent(self, rollout: AttemptedRollout, resources: NamedResources) -> Any:
        agent, prefix = self.get_agent(), "training" if rollout.mode == "train" else "validation"
        arguments = (rollout.input, resources, rollout)
        if agent.is_async():
            method = getattr(agent, f"{prefix}_rollout_async")
            if self._main_thread is None:
                return await _guarded(method(*arguments))
            return await self._main_thread.call(lambda: _guarded(method(*arguments)), is_async=True)
        method = getattr(agent, f"{prefix}_rollout")
        result = await self._call_sync(lambda: method(*arguments))
        return await _guarded(result) if inspect.isawaitable(result) else result

    async def _call_sync(self, function: Any) -> Any:
        if self._main_thread is None:
            return await self._threads.call(function)
        try:
            return await self._main_thread.call(function)
        except asyncio.CancelledError:
            if not self._main_thread.is_asked_for:
                self._main_thread = None  # an agent hangs there, and the next ones must not wait for it
            raise

    def _lent_thread(self) -> MainThread | None:
        """Return a thread that was lent to agents; several slots are of more use in threads of their own."""
        lent = lent_thread()
        return lent if lent is not None and (lent.is_asked_for or self.concurrency == 1) else None

    # -- running attempts ----------------------------------------------------------------------------

    @property
    def abandoned(self) -> int:
        """Threads that hang in agents nobody waits for."""
        return self._threads.abandoned

    def _forget(self, attempt: RunningAttempt) -> None:
        self._heartbeat.remove(attempt.outbox)
        self._attempts.pop(attempt.rollout.attempt.attempt_id, None)

    def _cancel_unwanted(self, attempt_ids: Iterable[str]) -> None:
        """Called from the heartbeat thread."""
        for attempt_id in attempt_ids:
            attempt = self._attempts.get(attempt_id)
            if attempt is not None and not attempt.is_unwanted:
                log.info("rollout %s is no longer wanted; stopping its agent", attempt.rollout.rollout_id)
                attempt.cancel()

    def _statistics(self) -> dict[str, Any]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "slots": self.concurrency,
            "in_hand": len(self._attempts),
            "finished": self.finished,
            "failed": self.failed,
            "hook_errors": self.hooks.errors,
            "abandoned_threads": self._threads.abandoned,
        }

    async def _resources_of(self, rollout: AttemptedRollout) -> NamedResources:
        store = self.get_store()
        if rollout.resources_id is None:
            latest = await store.get_latest_resources()
            return with_keys(latest.resources) if latest is not None else {}
        key = (rollout.resources_id, rollout.resources_version or 0)
        known = self._resources.get(key)
        if known is None:
            found = await store.get_resources_by_id(rollout.resources_id, rollout.resources_version)
            if found is None:
                raise MissingResourceError(f"the store has no resources {key[0]!r} in version {key[1]}")
            known = with_keys(found.resources)
            if rollout.resources_version is not None:
                kept = list(self._resources.items())[1 - MAX_RESOURCES :]
                self._resources = {**dict(kept), key: known}
        return dict(known)

    def _open_tracer(self) -> Tracer:
        if self.tracer is None:
            self.tracer = OtelTracer()
        return self.tracer

    @property
    def open_store(self) -> LightningStore:
        """The same as `get_store()`."""
        return self.get_store()

    def get_store(self) -> LightningStore:
        """Return the store of this worker.

        Raises:
            ConfigError: There is none before `init_worker`.
        """
        if self.store is None:
            raise ConfigError("the runner has no store: call init_worker(worker_id, store), or use run_context")
        return self.store

    def get_agent(self) -> LitAgent[TaskT]:
        """Return the agent.

        Raises:
            ConfigError: There is none before `init`.
        """
        if self.agent is None:
            raise ConfigError("the runner has no agent: call init(agent), or use run_context")
        return self.agent

    def get_worker_id(self) -> str:
        """Return the id of this worker in the store; `"Worker-Unknown"` before `init_worker`."""
        return self.worker_name or "Worker-Unknown"


async def _guarded(awaitable: Any) -> Any:
    """asyncio lets a SystemExit end the whole loop; here it ends the attempt."""
    process = os.getpid()
    try:
        return await awaitable
    except BaseException as error:
        end_fork(process, error)
        if isinstance(error, SystemExit):
            raise _as_exit(error) from error
        raise


def _as_exit(error: BaseException) -> BaseException:
    return AgentExitError(f"the agent called sys.exit({error.code!r})") if isinstance(error, SystemExit) else error


def _check(name: str, value: float | None, *, at_least: float) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < at_least):
        raise ConfigError(f"{name} is {value!r}: use a number of at least {at_least:g}")


class LitAgentRunner(Runner[TaskT]):
    """Runs a `LitAgent`. All of it is in `Runner`, which is enough to be subclassed on its own."""


def worker_name(worker_id: int) -> str:
    """Return the name under which the store knows a worker.

    It is unique for each worker of each process, so that nobody keeps the attempts of a dead one alive.
    """
    return f"{_process_name(os.getpid())}-{worker_id}"


@lru_cache(maxsize=1)
def _process_name(pid: int) -> str:
    # The number of a process comes back, after a restart of a container at once: the random part does not.
    return f"{socket.gethostname()}-{pid}-{secrets.token_hex(3)}"


# -- hooks -------------------------------------------------------------------------------------------

Moment = Literal["on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end"]


class Hooks:
    """A user's hooks: called with the keywords that they take, and never fatal. Those not overridden cost nothing."""

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self.errors = 0
        self._by_moment: dict[str, list[Callable[..., Any]]] = {}
        for moment in ("on_rollout_start", "on_trace_start", "on_trace_end", "on_rollout_end"):
            self._by_moment[moment] = [getattr(hook, moment) for hook in hooks if _has_own(hook, moment)]

    async def call(self, moment: Moment, **known: Any) -> None:
        """Call every hook of this moment in order; what one raises is logged and counted."""
        for function in self._by_moment[moment]:
            try:
                answer = function(**_wanted(function, known))
                if inspect.isawaitable(answer):
                    await answer
            except Exception:  # a user's code, which must not end the attempt
                self.errors += 1
                log.exception("hook %s.%s failed; the attempt continues", type(_owner(function)).__name__, moment)


def _owner(function: Callable[..., Any]) -> object:
    return getattr(function, "__self__", function)


def _has_own(hook: object, moment: str) -> bool:
    own = getattr(type(hook), moment, None)
    return callable(getattr(hook, moment, None)) and own is not getattr(Hook, moment)


def _wanted(function: Callable[..., Any], known: dict[str, Any]) -> dict[str, Any]:
    names, takes_all = _parameters(getattr(function, "__func__", function))
    return known if takes_all else {name: value for name, value in known.items() if name in names}


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> tuple[frozenset[str], bool]:
    parameters = inspect.signature(function).parameters
    return frozenset(parameters), any(each.kind is each.VAR_KEYWORD for each in parameters.values())
