"""`Runner`: claims rollouts, runs the agent on each, and reports what came of it.

The claims are in `claim_loop.py`, one attempt from its start to its report in `attempt.py`, heartbeats and uploads in
`heartbeat.py`, and the threads that agents run in, in `threads.py`.

`RunnerBundle` is what a strategy sends to the workers of a run. A runner process imports the module of everything that
it unpickles, so what travels there lives here, in a room that knows neither the trainer nor algorithms. `unpack` is the
only place in the package where anything is unpickled.
"""

import asyncio
import contextlib
import copy
import itertools
import os
import pickle
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Generic

from ..checks import check_int, check_number
from ..errors import ConfigError
from ..litagent import LitAgent, as_agent
from ..store import LightningStore
from ..tracer import OtelTracer, Tracer
from ..types import AttemptedRollout, Hook, NamedResources, ParallelWorkerBase, Rollout, RolloutMode, TaskT
from .attempt import Hooks, ResourceCache, RunningAttempt, counted_output
from .claim_loop import ClaimLoop, StopEvent
from .heartbeat import HeartbeatThread
from .threads import AgentThreads

# Runners that are given no number: apart from those that a strategy numbers from 0.
_numbers = itertools.count(10_000)


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
        self.tracer = tracer
        self.max_rollouts = check_int("max_rollouts", max_rollouts, at_least=1, optional=True)
        self.poll_interval = check_number("poll_interval", poll_interval, at_least=0, unit="seconds")
        self.heartbeat_interval = check_number("heartbeat_interval", heartbeat_interval, at_least=0.01, unit="seconds")
        self.interval_jitter = min(interval_jitter, heartbeat_interval / 2)
        self.concurrency = check_int("concurrency", concurrency, at_least=1)
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
        self._threads, self._resources = AgentThreads(concurrency=self.concurrency), ResourceCache(store)
        self.finished = self.failed = 0
        self._attempts: dict[str, RunningAttempt] = {}
        self._heartbeat = HeartbeatThread(self)

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
        with contextlib.ExitStack() as stack:
            self.init(agent, hooks=hooks)
            stack.callback(self.teardown)
            self.init_worker(number, store)
            stack.callback(self.teardown_worker, number)
            yield self

    # -- work ----------------------------------------------------------------------------------------

    async def iter(self, *, event: StopEvent | None = None, **kwargs: Any) -> None:
        """Claim and run rollouts until the event is set or `max_rollouts` is reached."""
        self._heartbeat.start(getattr(event, "alive", None))
        with counted_output():
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
        attempt = self.take(await store.start_rollout(input, mode, resources_id, worker_id=self.worker_name))
        with counted_output():
            try:
                await self.attend(attempt)
            except asyncio.CancelledError:
                await asyncio.shield(self.give_up(attempt))
                raise
            await self.report(attempt)
        if attempt.error is not None:
            raise attempt.error
        finished = await store.get_rollout_by_id(attempt.rollout.rollout_id)
        assert finished is not None
        return finished

    # -- what happens with an attempt, for subclasses ------------------------------------------------

    def take(self, rollout: AttemptedRollout) -> RunningAttempt:
        """Start an attempt: from now on its spans are sent and its lease is renewed."""
        attempt = self._attempts[rollout.attempt.attempt_id] = RunningAttempt(rollout, self)
        if rollout.config.unresponsive_seconds is not None:
            self._heartbeat.note_lease(rollout.config.unresponsive_seconds)
        return attempt

    async def attend(self, attempt: RunningAttempt) -> None:
        """Run one attempt. Raises nothing but its own cancellation: `attempt` says how it ended."""
        await attempt.run()

    async def execute(self, rollout: AttemptedRollout) -> Any:
        """Run one claimed rollout and return what the agent returned."""
        self.get_store()
        attempt = self._attempts.get(rollout.attempt.attempt_id) or RunningAttempt(rollout, self)
        return await attempt.execute(rollout)

    async def report(self, attempt: RunningAttempt) -> None:
        """Store the outcome with the last spans."""
        try:
            await attempt.report()
        finally:
            self._attempts.pop(attempt.rollout.attempt.attempt_id, None)
            self.finished += 1
            self.failed += attempt.error is not None

    async def give_up(self, attempt: RunningAttempt) -> None:
        """Put the rollout back into the queue, since the runner stops."""
        try:
            await attempt.hand_back()
        finally:
            self._attempts.pop(attempt.rollout.attempt.attempt_id, None)

    # -- what it has ---------------------------------------------------------------------------------

    @property
    def abandoned(self) -> int:
        """Threads that hang in agents nobody waits for."""
        return self._threads.abandoned

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

    def _open_tracer(self) -> Tracer:
        if self.tracer is None:
            self.tracer = OtelTracer()
        return self.tracer


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


# -- what travels to a worker ------------------------------------------------------------------------


class RunnerBundle:
    """Runs the agent in one worker: a strategy calls `await bundle(store, worker_id, event)` for each of them.

    Every call works with a copy of the runner and of its tracer, since workers may be threads of one process.
    """

    def __init__(self, agent: LitAgent[Any], runner: Runner[Any], hooks: Sequence[Hook]) -> None:
        self.agent, self.runner, self.hooks = agent, runner, list(hooks)

    def parts(self) -> dict[str, object]:
        """Return what travels, under the names that users know."""
        return {"agent": self.agent, "runner": self.runner, "hooks": self.hooks}

    async def __call__(self, store: LightningStore, worker_id: int, event: StopEvent) -> None:
        runner = copy.copy(self.runner)
        if getattr(runner, "tracer", None) is not None:
            runner.tracer = copy.copy(runner.tracer)
        runner.init(self.agent, hooks=self.hooks)
        try:
            runner.init_worker(worker_id, store)
            try:
                await runner.iter(event=event)
            finally:
                await asyncio.to_thread(runner.teardown_worker, worker_id)
        finally:
            runner.teardown()


def unpack(data: bytes | bytearray) -> Any:
    """Return what `execution.transport.pack` has packed, in a process of the same run."""
    return pickle.loads(data)


def cached_again(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    """Return the function with an empty cache: the results of another process stay there."""
    return lru_cache(**parameters)(function)
