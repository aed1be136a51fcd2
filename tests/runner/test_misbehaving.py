"""Whatever an agent does fails its own attempt with a reason, and the runner goes on."""

import asyncio
import os
import sys
import threading
import time

import pytest

from sharpen import InMemoryLightningStore, RolloutConfig, rollout
from sharpen.runner import Runner, RunnerWornOut
from sharpen.tracer import DummyTracer
from tests.errors import raises

from .scenes import PATIENCE_SECONDS, at_work, finished, run_tasks, why


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def misbehave(kind):
    match kind:
        case "raise":
            raise ZeroDivisionError("by zero")
        case "exit":
            sys.exit(3)
        case "wrong type":
            return {"reward": 1}
        case "wrong item":
            return ["reward"]
        case "nan":
            return float("nan")
        case "cancel":
            raise asyncio.CancelledError("by the agent itself")
        case "interrupt":
            raise KeyboardInterrupt
        case "surrogate":
            raise ValueError("lone \ud800 surrogate")
        case "mute":
            raise MuteError
        case "print":
            for _ in range(100):
                print("x" * 100_000)
            return 1.0
        case _:
            return 1.0


EXPECTED = {
    "raise": ("failed", "ZeroDivisionError", "by zero"),
    "exit": ("failed", "AgentExitError", "sys.exit(3)"),
    "wrong type": ("failed", "AgentResultError", "dict"),
    "wrong item": ("failed", "AgentResultError", "str"),
    "nan": ("failed", "AgentResultError", "nan"),
    "cancel": ("failed", "CancelledError", "by the agent itself"),
    "interrupt": ("failed", "KeyboardInterrupt", "KeyboardInterrupt"),
    "surrogate": ("failed", "ValueError", "lone ? surrogate"),
    "mute": ("failed", "MuteError", "cannot be read"),
    "print": ("failed", "AgentOutputError", "bytes"),
}


@rollout
def sync_agent(task):
    return misbehave(task)


@rollout
async def async_agent(task):
    await asyncio.sleep(0)
    return misbehave(task)


@pytest.mark.parametrize("agent", [sync_agent, async_agent], ids=["sync", "async"])
async def test_an_agent_that_misbehaves_fails_its_own_attempt_with_a_reason(agent):
    store = InMemoryLightningStore()
    kinds = [*EXPECTED, "well"]
    runner = Runner(tracer=DummyTracer(), max_output_bytes=2**20)
    done = await run_tasks(agent, kinds, store=store, runner=runner)
    for kind, each in zip(kinds[:-1], done[:-1], strict=True):
        status, error_type, text = await why(store, each)
        assert (each.status, status, error_type) == ("failed", *EXPECTED[kind][:2]), kind
        assert EXPECTED[kind][2] in text
    assert done[-1].status == "succeeded"


async def test_an_agent_that_tries_again_on_every_error_is_stopped_all_the_same():
    store = InMemoryLightningStore()
    calls, ended = [], threading.Event()

    @rollout
    def stubborn(task):
        try:
            while True:
                try:
                    time.sleep(0.01)
                    calls.append(task)
                except Exception:  # noqa: BLE001 - as agents do
                    continue
        finally:
            ended.set()

    (done,) = await run_tasks(stubborn, ["x"], store=store, timeout_seconds=0.2)
    assert done.status == "failed"
    assert await asyncio.to_thread(ended.wait, PATIENCE_SECONDS)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_fork_that_exits_does_not_go_on_as_a_runner(kind, tmp_path):
    def fork():
        pid = os.fork()
        if pid == 0:
            sys.exit(7)
        _, status = os.waitpid(pid, 0)
        return float(os.waitstatus_to_exitcode(status))

    @rollout
    def forking(task):
        return fork()

    @rollout
    async def forking_async(task):
        return fork()

    (done,) = await run_tasks(forking if kind == "sync" else forking_async, ["x"])
    assert (done.status, done.reward) == ("succeeded", 7.0)


async def test_an_error_is_recorded_in_the_trace():
    store = InMemoryLightningStore()
    (done,) = await run_tasks(sync_agent, ["raise"], store=store)
    (span,) = await store.query_spans(done.rollout_id, name="sharpen.exception")
    assert "by zero" in str(span.attributes)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_agent_that_hangs_past_its_timeout_ends_as_timeout(kind):
    store = InMemoryLightningStore()
    release = threading.Event()

    @rollout
    def hanging(task):
        return float(release.wait(60)) if task == "hang" else 1.0

    @rollout
    async def hanging_async(task):
        if task == "hang":
            await asyncio.sleep(60)
        return 1.0

    agent = hanging if kind == "sync" else hanging_async
    done = await run_tasks(agent, ["hang", "well"], store=store, timeout_seconds=0.3)
    release.set()
    assert [each.status for each in done] == ["failed", "succeeded"]
    attempt = await store.get_latest_attempt(done[0].rollout_id)
    assert attempt.status == "timeout"


async def test_a_timed_out_attempt_is_tried_again_where_its_rule_says_so():
    tries = []

    @rollout
    async def agent(task):
        tries.append(task)
        await asyncio.sleep(60 if len(tries) == 1 else 0)
        return 1.0

    (done,) = await run_tasks(agent, ["x"], timeout_seconds=0.2, max_attempts=2, retry_condition=["timeout"])
    assert (done.status, len(tries)) == ("succeeded", 2)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_cancelled_rollout_stops_costing(kind):
    store = InMemoryLightningStore()
    began, stopped = threading.Event(), threading.Event()

    @rollout
    def busy(task):
        began.set()
        try:
            while True:
                time.sleep(0.01)
        finally:
            stopped.set()

    @rollout
    async def busy_async(task):
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    runner = Runner(tracer=DummyTracer(), heartbeat_interval=0.1)
    queued = await store.enqueue_rollout("x")
    async with at_work(runner, busy if kind == "sync" else busy_async, store):
        assert await asyncio.to_thread(began.wait, PATIENCE_SECONDS)
        await store.cancel_rollouts([queued.rollout_id])
        assert await asyncio.to_thread(stopped.wait, PATIENCE_SECONDS)
    assert (await store.get_rollout_by_id(queued.rollout_id)).status == "cancelled"


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_agent_that_blocks_keeps_its_lease(kind):
    store = InMemoryLightningStore()

    @rollout
    def blocking(task):
        time.sleep(1.0)
        return 1.0

    @rollout
    async def blocking_async(task):
        time.sleep(1.0)  # noqa: ASYNC251 - an agent that does not know better
        return 1.0

    agent = blocking if kind == "sync" else blocking_async
    (done,) = await run_tasks(agent, ["x"], store=store, unresponsive_seconds=0.4, max_attempts=1)
    assert done.status == "succeeded"
    assert len(await store.query_attempts(done.rollout_id)) == 1


async def test_missing_resources_fail_the_attempt_with_a_reason():
    store = InMemoryLightningStore()

    @rollout
    def agent(task, llm):
        return 1.0

    (done,) = await run_tasks(agent, ["x"], store=store)
    status, kind, text = await why(store, done)
    assert (status, kind) == ("failed", "MissingResourceError")
    assert "LLM" in text


async def test_a_process_with_too_many_hanging_threads_asks_to_be_replaced():
    store = InMemoryLightningStore()
    release = threading.Event()

    @rollout
    def agent(task):
        release.wait(60)

    runner = Runner(tracer=DummyTracer(), max_abandoned=2)
    queued = [await store.enqueue_rollout(n, config=RolloutConfig(timeout_seconds=0.1)) for n in range(6)]
    try:
        with runner.run_context(agent=agent, store=store), raises(RunnerWornOut, 3):
            await asyncio.wait_for(runner.iter(), PATIENCE_SECONDS)
    finally:
        release.set()
    statuses = [each.status for each in await store.query_rollouts(rollout_id_in=[r.rollout_id for r in queued])]
    assert statuses == ["failed"] * 3 + ["queuing"] * 3


async def test_a_runner_that_is_cancelled_hands_its_rollouts_back():
    store = InMemoryLightningStore()
    began = asyncio.Event()

    @rollout
    async def agent(task):
        began.set()
        await asyncio.sleep(60)

    queued = await store.enqueue_rollout("x")
    runner = Runner(tracer=DummyTracer())
    with runner.run_context(agent=agent, store=store):
        task = asyncio.create_task(runner.iter())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    again = await store.get_rollout_by_id(queued.rollout_id)
    assert again.status == "requeuing"
    assert (await store.statistics())["queue_length"] == 1
    claimed = await store.dequeue_rollout(worker_id="other")
    assert (claimed.rollout_id, claimed.attempt.sequence_id) == (queued.rollout_id, 2)
    await finished_by_hand(store, claimed)


async def finished_by_hand(store, claimed):
    await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
    (done,) = await finished(store, [claimed])
    assert done.status == "succeeded"
