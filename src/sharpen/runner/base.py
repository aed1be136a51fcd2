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
import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic

from ..emitter import emit_exception
from ..errors import AgentExitError, AgentTimeoutError, ConfigError, MissingResourceError
from ..litagent import LitAgent, as_agent
from ..store import LightningStore
from ..tracer import Tracer
from ..tracer.base import activate
from ..types import AttemptedRollout, Hook, NamedResources, ParallelWorkerBase, Rollout, RolloutMode, Span, TaskT
from .attempts import Work, complete, hand_back
from .courier import Courier
from .hooks import Hooks
from .keys import with_keys
from .output import at_most, counted_output
from .results import spans_of
from .shift import Shift, StopEvent
from .threads import AgentThreads, MainThread, end_fork, place_of_agents
from .worker import worker_name

log = logging.getLogger(__name__)
# Runners that are given no number: apart from those that a strategy numbers from 0.
_numbers = itertools.count(10_000)
_work: contextvars.ContextVar[Work | None] = contextvars.ContextVar("sharpen_work", default=None)


class Runner(ParallelWorkerBase, Generic[TaskT]):
    """Claims rollouts and runs an agent on them, `concurrency` at a time. To change what an attempt does, override
    `execute`: what it returns (or raises) is the outcome.

    `poll_interval` bounds one long poll for work. An agent may print `max_output_bytes` in an attempt; a process in
    which more than `max_abandoned` threads hang in agents that nobody waits for asks to be replaced.
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
        self._in_hand: dict[str, Work] = {}
        self._resources: dict[tuple[str, int], NamedResources] = {}
        self._threads, self._place = AgentThreads(), self._find_place()
        self.finished = self.failed = 0
        self._courier = Courier(
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
        self._courier.stop()
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
        self._courier.start(getattr(event, "alive", None))
        with counted_output():
            await Shift(self, event).work()

    async def step(
        self,
        input: TaskT,
        *,
        resources: NamedResources | None = None,
        mode: RolloutMode | None = None,
        event: StopEvent | None = None,
    ) -> Rollout:
        """Run one task now; what the agent raises reaches the caller."""
        store = self.open_store
        self._courier.start()
        resources_id = None if resources is None else (await store.add_resources(resources)).resources_id
        rollout = await store.start_rollout(input, mode, resources_id, worker_id=self.worker_name)
        work = self.take(rollout)
        with counted_output():
            try:
                await self.attend(work)
            except asyncio.CancelledError:
                await asyncio.shield(self.give_up(work))
                raise
            await self.report(work)
        if work.error is not None:
            raise work.error
        finished = await store.get_rollout_by_id(rollout.rollout_id)
        assert finished is not None
        return finished

    def take(self, rollout: AttemptedRollout) -> Work:
        """Have an attempt in hand: its spans are carried and its lease is renewed."""
        work = self._in_hand[rollout.attempt.attempt_id] = Work(rollout, self.open_store)
        self._courier.take(work.outbox)
        return work

    async def attend(self, work: Work) -> None:
        """Run one attempt. Never raises, but for its own cancellation: how it ended stands in `work`."""
        token = _work.set(work)
        work.task, work.loop = asyncio.current_task(), asyncio.get_running_loop()
        try:
            result = await self.execute(work.rollout)
            if not work.is_settled:  # an `execute` of the user's own, which never came to ours
                self._settle(work, result, trace_id=None)
        except asyncio.CancelledError as error:
            if not work.is_unwanted and work.task is not None and work.task.cancelling():
                raise  # somebody stops the runner
            work.fail(error)  # unwanted, or a cancellation that the agent has let through
        except BaseException as error:
            work.fail(_as_exit(error))
            if isinstance(error, KeyboardInterrupt) and self._place is not None:
                raise  # a person at the keyboard, since the agent runs on the main thread
        finally:
            work.task = None
            _work.reset(token)

    async def report(self, work: Work) -> None:
        """Store the outcome with the last spans."""
        try:
            await complete(self.open_store, work)
        finally:
            self._let_go(work)
            self.finished += 1
            self.failed += work.error is not None

    async def give_up(self, work: Work) -> None:
        """The runner stops: the rollout goes back to the queue."""
        try:
            await hand_back(self.open_store, work)
        finally:
            self._let_go(work)

    async def execute(self, rollout: AttemptedRollout) -> Any:
        """Run one claimed rollout and return what the agent returned."""
        tracer, work = self._open_tracer(), _work.get() or Work(rollout, self.open_store)
        resources = await self._resources_of(rollout)
        known = {"agent": self.agent, "runner": self, "rollout": rollout}
        await self.hooks.call("on_rollout_start", **known, tracer=tracer)
        spans: list[Span] = []
        try:
            result = await self._traced(tracer, work, resources, known)
            recorded = tracer.get_last_trace()
            spans = self._settle(work, result, recorded[0].trace_id if recorded else None)
        finally:
            await self.hooks.call("on_rollout_end", **known, spans=[*tracer.get_last_trace(), *spans])
        return result

    async def _traced(self, tracer: Tracer, work: Work, resources: NamedResources, known: dict[str, Any]) -> Any:
        rollout = work.rollout
        ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
        async with tracer.trace_context(rollout.rollout_id, store=work.outbox, **ids):
            with activate(tracer):
                await self.hooks.call("on_trace_start", **known, tracer=tracer)
                try:
                    with at_most(self.max_output_bytes):
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
            raise AgentTimeoutError(f"the agent ran past the timeout_seconds={seconds:g} of its rollout") from error
        except SystemExit as error:
            raise _as_exit(error) from error

    async def _call_agent(self, rollout: AttemptedRollout, resources: NamedResources) -> Any:
        agent, prefix = self.get_agent(), "training" if rollout.mode == "train" else "validation"
        arguments = (rollout.input, resources, rollout)
        if agent.is_async():
            method = getattr(agent, f"{prefix}_rollout_async")
            if self._place is None:
                return await _guarded(method(*arguments))
            return await self._place.call(lambda: _guarded(method(*arguments)), is_async=True)
        method = getattr(agent, f"{prefix}_rollout")
        result = await self._call_sync(lambda: method(*arguments))
        return await _guarded(result) if inspect.isawaitable(result) else result

    async def _call_sync(self, function: Any) -> Any:
        if self._place is None:
            return await self._threads.call(function)
        try:
            return await self._place.call(function)
        except asyncio.CancelledError:
            if not self._place.is_asked_for:
                self._place = None  # an agent hangs there, and the next ones must not wait for it
            raise

    def _settle(self, work: Work, result: Any, trace_id: str | None) -> list[Span]:
        """The result as spans, on their way to the store."""
        spans = spans_of(result, work.rollout, trace_id)
        for span in spans:
            work.outbox.put(span)
        work.is_settled = True
        return spans

    def _find_place(self) -> MainThread | None:
        """A thread that was lent to agents; several slots are of more use in threads of their own."""
        place = place_of_agents()
        return place if place is not None and (place.is_asked_for or self.concurrency == 1) else None

    # -- what is in hand -----------------------------------------------------------------------------

    @property
    def abandoned(self) -> int:
        """Threads that hang in agents nobody waits for."""
        return self._threads.abandoned

    def _let_go(self, work: Work) -> None:
        self._courier.drop(work.outbox)
        self._in_hand.pop(work.rollout.attempt.attempt_id, None)

    def _cancel_unwanted(self, attempt_ids: Iterable[str]) -> None:
        """Called by the courier, from its thread."""
        for attempt_id in attempt_ids:
            work = self._in_hand.get(attempt_id)
            if work is not None and not work.is_unwanted:
                log.info("rollout %s is no longer wanted; its agent is stopped", work.rollout.rollout_id)
                work.cancel()

    def _statistics(self) -> dict[str, Any]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "slots": self.concurrency,
            "in_hand": len(self._in_hand),
            "finished": self.finished,
            "failed": self.failed,
            "hook_errors": self.hooks.errors,
            "abandoned_threads": self._threads.abandoned,
        }

    async def _resources_of(self, rollout: AttemptedRollout) -> NamedResources:
        store = self.open_store
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
                self._resources = {**dict(list(self._resources.items())[-31:]), key: known}
        return dict(known)

    def _open_tracer(self) -> Tracer:
        if self.tracer is None:
            from ..tracer import OtelTracer

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
        raise ConfigError(f"{name} is {value!r}: give a number of at least {at_least:g}")
