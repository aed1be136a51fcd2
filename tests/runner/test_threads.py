"""A thread that lends itself to agents."""

import asyncio
import threading

import pytest

from sharpen import InMemoryLightningStore, RolloutConfig, rollout
from sharpen.runner import MainThread, Runner, agents_on
from sharpen.tracer import DummyTracer

from .scenes import finished


@pytest.fixture
def lent():
    """A thread that pumps, as the main thread of a program does."""
    place = MainThread()
    thread = threading.Thread(target=place.pump)
    thread.start()
    yield place, thread
    place.stop()
    thread.join(20)
    assert not thread.is_alive()


async def run_on(place, agent, tasks, **settings):
    store, event = InMemoryLightningStore(), threading.Event()
    queued = [await store.enqueue_rollout(task) for task in tasks]
    runner = Runner(tracer=DummyTracer(), **settings)
    with agents_on(place), runner.run_context(agent=agent, store=store):
        task = asyncio.create_task(runner.iter(event=event))
        done = await finished(store, queued)
        event.set()
        await task
    return done


async def test_sync_agents_run_on_the_thread_that_was_lent(lent):
    place, thread = lent

    @rollout
    def agent(task):
        assert threading.current_thread() is thread
        return asyncio.run(asyncio.sleep(0, result=float(task)))

    assert [each.reward for each in await run_on(place, agent, [1, 2])] == [1.0, 2.0]


async def test_async_agents_run_there_side_by_side_in_one_loop_that_lasts(lent):
    place, thread = lent
    loops, together, most = set(), 0, 0

    @rollout
    async def agent(task):
        nonlocal together, most
        assert threading.current_thread() is thread
        loops.add(asyncio.get_running_loop())
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.05)
        together -= 1
        return 1.0

    done = await run_on(place, agent, list(range(12)), concurrency=4)
    assert {each.status for each in done} == {"succeeded"}
    assert (len(loops), most) == (1, 4)


async def test_sync_and_async_agents_take_turns_on_it(lent):
    place, _ = lent

    @rollout
    async def one(task):
        return 1.0

    @rollout
    def two(task):
        return 2.0

    for agent, reward in ((one, 1.0), (two, 2.0), (one, 1.0)):
        assert [each.reward for each in await run_on(place, agent, [0])] == [reward]


async def test_an_agent_that_fails_there_fails_its_attempt_only(lent):
    place, _ = lent

    @rollout
    async def agent(task):
        if task == 0:
            raise SystemExit(1)
        return 1.0

    assert [each.status for each in await run_on(place, agent, [0, 1])] == ["failed", "succeeded"]


async def test_several_slots_use_threads_of_their_own_unless_the_place_was_asked_for():
    place = MainThread(is_asked_for=False)  # nobody pumps: an agent there would never run
    barrier = threading.Barrier(2, timeout=20)

    @rollout
    def agent(task):
        barrier.wait()
        return 1.0

    done = await run_on(place, agent, [0, 1], concurrency=2)
    assert [each.status for each in done] == ["succeeded", "succeeded"]


async def test_an_agent_that_hangs_on_a_thread_nobody_asked_for_holds_up_no_other():
    place, release = MainThread(is_asked_for=False), threading.Event()
    thread = threading.Thread(target=place.pump)
    thread.start()

    @rollout
    def agent(task):
        return float(release.wait(60)) if task == "hang" else 1.0

    store, event = InMemoryLightningStore(), threading.Event()
    brief = RolloutConfig(timeout_seconds=0.3)
    queued = [await store.enqueue_rollout(task, config=brief) for task in ("well", "hang", "well", "well")]
    runner = Runner(tracer=DummyTracer())
    with agents_on(place), runner.run_context(agent=agent, store=store):
        task = asyncio.create_task(runner.iter(event=event))
        done = await finished(store, queued)
        event.set()
        await task
    release.set()
    place.stop()
    await asyncio.to_thread(thread.join, 20)
    assert [each.status for each in done] == ["succeeded", "failed", "succeeded", "succeeded"]
