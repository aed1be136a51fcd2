"""A runner claims, runs the agent in the stated order, and reports."""

import asyncio
import threading
import time

import pytest

from sharpen import (
    LLM,
    Hook,
    InMemoryLightningStore,
    LitAgent,
    PromptTemplate,
    RolloutConfig,
    Span,
    emit_message,
    emit_reward,
    rollout,
)
from sharpen.errors import ConfigError, MissingResourceError
from sharpen.runner import LitAgentRunner, Runner, worker_name
from sharpen.semconv import AGL_MESSAGE
from sharpen.tracer import DummyTracer, OtelTracer
from sharpen.types import SpanCoreFields
from tests.errors import raises

from .scenes import at_work, finished, own_threads, run_tasks


@pytest.fixture
def store():
    return InMemoryLightningStore()


@pytest.fixture(params=[DummyTracer, OtelTracer])
def runner(request):
    return Runner(tracer=request.param())


class Doubling(LitAgent):
    def rollout(self, task, resources, rollout):
        return task * 2.0


async def test_a_sync_agent_is_run_on_every_task(runner):
    done = await run_tasks(Doubling(), [1, 2, 3], runner=runner)
    assert [(each.status, each.reward) for each in done] == [("succeeded", value) for value in (2.0, 4.0, 6.0)]


async def test_an_async_agent_is_run_on_every_task(runner):
    @rollout
    async def agent(task):
        await asyncio.sleep(0)
        return task / 2

    assert [each.reward for each in await run_tasks(agent, [1, 2], runner=runner)] == [0.5, 1.0]


async def test_train_and_validation_run_their_own_methods(store):
    class Both(LitAgent):
        def training_rollout(self, task, resources, rollout):
            return 1.0

        async def validation_rollout_async(self, task, resources, rollout):
            return 2.0

        async def training_rollout_async(self, task, resources, rollout):
            return self.training_rollout(task, resources, rollout)

    queued = [await store.enqueue_rollout(1, mode=mode) for mode in ("train", "val", "test", None)]
    async with at_work(Runner(tracer=DummyTracer()), Both(), store):
        assert [each.reward for each in await finished(store, queued)] == [1.0, 2.0, 2.0, 2.0]


async def test_spans_and_rewards_are_stored_before_the_rollout_counts_as_finished(store, runner):
    @rollout
    def agent(task):
        emit_message("hello")
        emit_reward(0.25)
        return 0.75

    (done,) = await run_tasks(agent, ["x"], runner=runner, store=store)
    spans = await store.query_spans(done.rollout_id)
    assert done.reward == 0.75
    assert [span.name for span in spans][:1] == [AGL_MESSAGE]
    assert len({span.trace_id for span in spans}) == 1
    assert [span.attributes.get("sharpen.reward.0.value") for span in spans if "reward" in str(span.attributes)] == [
        0.25,
        0.75,
    ]


async def test_the_last_emitted_reward_counts_where_nothing_is_returned(runner):
    @rollout
    def agent(task):
        emit_reward(0.1)
        emit_reward(0.9)

    assert [each.reward for each in await run_tasks(agent, [0], runner=runner)] == [0.9]


async def test_spans_that_an_agent_returns_are_stored(store):
    @rollout
    def agent(task):
        made = Span.from_attributes(attributes={"a": 1}, name="mine")
        return [made, SpanCoreFields("core", attributes={"sharpen.reward.0.value": 3.0})]

    (done,) = await run_tasks(agent, ["x"], store=store)
    assert [span.name for span in await store.query_spans(done.rollout_id)] == ["mine", "core"]
    assert done.reward == 3.0


async def test_the_agent_gets_the_resources_its_rollout_was_bound_to(store):
    @rollout
    def agent(task, prompt_template, resources, rollout):
        assert rollout.rollout_id.startswith("ro-")
        assert list(resources) == ["prompt"]
        return float(prompt_template.format(x=task))

    await store.add_resources({"prompt": PromptTemplate("1{x}")})
    old = await store.enqueue_rollout(5)
    await store.add_resources({"prompt": PromptTemplate("2{x}")})
    new = await store.enqueue_rollout(5)
    async with at_work(Runner(tracer=DummyTracer()), agent, store):
        assert [each.reward for each in await finished(store, [old, new])] == [15.0, 25.0]


async def test_keys_are_resolved_where_the_agent_runs(store, monkeypatch):
    class Asking(LitAgent):
        def rollout(self, task, resources, rollout):
            assert resources["llm"].api_key == "secret"
            assert resources["other"].api_key == "env:NOT_SET_HERE"
            return 1.0

    monkeypatch.setenv("SOME_KEY", "secret")
    url = "http://127.0.0.1:1"
    await store.add_resources(
        {"llm": LLM(url, "m", api_key="env:SOME_KEY"), "other": LLM(url, "m", api_key="env:NOT_SET_HERE")}
    )
    (done,) = await run_tasks(Asking(), [0], store=store)
    assert done.status == "succeeded"


# -- hooks -------------------------------------------------------------------------------------------


class Watching(Hook):
    def __init__(self):
        self.seen = []

    async def on_rollout_start(self, *, agent, runner, rollout, tracer):
        self.seen.append(("on_rollout_start", rollout.rollout_id, tracer is runner.tracer))

    async def on_trace_start(self, *, agent, runner, rollout, tracer):
        self.seen.append("on_trace_start")

    async def on_trace_end(self, *, agent, runner, rollout, tracer):
        self.seen.append("on_trace_end")

    async def on_rollout_end(self, *, agent, runner, rollout, spans):
        self.seen.append(("on_rollout_end", [span.attributes.get("sharpen.reward.0.value") for span in spans]))


async def test_hooks_are_called_in_the_stated_order(runner):
    hook = Watching()

    @rollout
    def agent(task):
        hook.seen.append("agent")
        return 1.0

    (done,) = await run_tasks(agent, [0], runner=runner, hooks=hook)
    assert hook.seen[0] == ("on_rollout_start", done.rollout_id, True)
    assert hook.seen[1:4] == ["on_trace_start", "agent", "on_trace_end"]
    assert hook.seen[4][0] == "on_rollout_end"
    assert hook.seen[4][1][-1] == 1.0


@pytest.mark.parametrize("failure", ["raises", "returns a wrong type"])
async def test_hooks_are_called_also_when_the_agent_fails(failure):
    hook = Watching()

    @rollout
    def agent(task):
        if failure == "raises":
            raise ValueError("no")
        return {}

    (done,) = await run_tasks(agent, [0], hooks=[hook])
    assert done.status == "failed"
    assert [each if isinstance(each, str) else each[0] for each in hook.seen] == [
        "on_rollout_start",
        "on_trace_start",
        "on_trace_end",
        "on_rollout_end",
    ]


async def test_a_hook_is_called_with_the_keywords_it_takes():
    class Small(Hook):
        seen = []

        async def on_rollout_start(self, rollout):
            self.seen.append(rollout.id)

        def on_trace_end(self):
            self.seen.append("sync and without keywords")

        async def on_rollout_end(self, **known):
            self.seen.append(sorted(known))

    (done,) = await run_tasks(Doubling(), [1], hooks=Small())
    assert Small.seen == [done.id, "sync and without keywords", ["agent", "rollout", "runner", "spans"]]


async def test_a_hook_that_raises_is_logged_and_counted_and_the_attempt_goes_on(caplog):
    class Broken(Hook):
        async def on_rollout_start(self, rollout):
            raise RuntimeError("hook is broken")

        async def on_rollout_end(self, spans):
            raise RuntimeError("hook is broken")

    runner = Runner(tracer=DummyTracer())
    (done,) = await run_tasks(Doubling(), [1], runner=runner, hooks=Broken())
    assert done.status == "succeeded"
    assert runner.hooks.errors == 2
    assert "hook Broken.on_rollout_start failed" in caplog.text


async def test_a_hook_finds_store_agent_and_worker_through_the_runner(store):
    seen = []

    class Look(Hook):
        async def on_rollout_start(self, *, runner, rollout, **_):
            seen.append((runner.get_store(), runner.get_agent(), runner.get_worker_id()))

    runner, agent = LitAgentRunner(tracer=DummyTracer()), Doubling()
    with runner.run_context(agent=agent, store=store, worker_id=3, hooks=Look()):
        done = await runner.step(1)
    (attempt,) = await store.query_attempts(done.rollout_id)
    assert seen == [(store, agent, attempt.worker_id)]


def test_a_runner_without_store_and_agent_says_so():
    runner = LitAgentRunner(tracer=DummyTracer())
    for get in (runner.get_store, runner.get_agent):
        with raises(ValueError, "run_context"):
            get()
    assert runner.get_worker_id() == "Worker-Unknown"


# -- step --------------------------------------------------------------------------------------------


async def test_a_step_runs_one_task_and_gives_its_rollout(store, runner):
    with runner.run_context(agent=Doubling(), store=store):
        done = await runner.step(4, mode="val")
    assert (done.status, done.reward, done.mode) == ("succeeded", 8.0, "val")


async def test_a_step_takes_resources(store):
    @rollout
    def agent(task, llm):
        assert llm.model == "m"
        return 1.0

    runner = Runner(tracer=DummyTracer())
    with runner.run_context(agent=agent, store=store):
        assert (await runner.step(1, resources={"llm": LLM("http://127.0.0.1:1", "m")})).reward == 1.0


async def test_a_step_raises_what_the_agent_raises_and_records_it(store):
    @rollout
    def agent(task):
        raise KeyError("missing")

    runner = Runner(tracer=DummyTracer())
    with runner.run_context(agent=agent, store=store), raises(KeyError, "missing"):
        await runner.step(4)
    assert [each.status for each in await store.query_rollouts()] == ["failed"]


async def test_a_step_that_is_cancelled_hands_its_rollout_back(store):
    @rollout
    async def agent(task):
        await asyncio.sleep(60)

    runner = Runner(tracer=DummyTracer())
    with runner.run_context(agent=agent, store=store):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runner.step(4), 0.2)
        assert runner._attempts == {}
    assert [each.status for each in await store.query_rollouts()] == ["requeuing"]


async def test_a_missing_resource_reaches_the_caller_of_step(store):
    @rollout
    def agent(task, llm):
        return 1.0

    runner = Runner(tracer=DummyTracer())
    with runner.run_context(agent=agent, store=store), pytest.raises(MissingResourceError):
        await runner.step(1)


# -- runners of one's own ----------------------------------------------------------------------------


class Watched(Runner):
    """Overrides what happens with an attempt from its start to its end."""

    def __init__(self):
        super().__init__(tracer=DummyTracer())
        self.seen = []

    def take(self, rollout):
        self.seen.append("take")
        return super().take(rollout)

    async def attend(self, attempt):
        self.seen.append("attend")
        await super().attend(attempt)

    async def report(self, attempt):
        self.seen.append("report")
        await super().report(attempt)

    async def give_up(self, attempt):
        self.seen.append("give_up")
        await super().give_up(attempt)


async def test_a_subclass_may_override_the_steps_of_an_attempt(store):
    runner = Watched()
    await run_tasks(Doubling(), [1], runner=runner, store=store)
    assert runner.seen == ["take", "attend", "report"]


async def test_a_subclass_may_override_what_happens_when_a_runner_stops(store):
    runner, is_asleep = Watched(), asyncio.Event()

    @rollout
    async def agent(task):
        is_asleep.set()
        await asyncio.sleep(60)

    with runner.run_context(agent=agent, store=store):
        step = asyncio.create_task(runner.step(1))
        await is_asleep.wait()
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
    assert runner.seen == ["take", "attend", "give_up"]


async def test_an_execute_of_ones_own_may_go_around_the_agent():
    class Half(Runner):
        async def execute(self, rollout):
            return rollout.input / 2

    assert [each.reward for each in await run_tasks(Doubling(), [3], runner=Half(tracer=DummyTracer()))] == [1.5]


async def test_an_execute_of_ones_own_may_stand_around_ours():
    class Counting(LitAgentRunner):
        seen = []

        async def execute(self, task):
            result = await super().execute(task)
            self.seen.append((task.input, result))
            return result

    done = await run_tasks(Doubling(), [3, 4], runner=Counting(tracer=DummyTracer()))
    assert [each.reward for each in done] == [6.0, 8.0]
    assert Counting.seen == [(3, 6.0), (4, 8.0)]


async def test_an_execute_of_ones_own_that_raises_fails_its_attempt_only():
    class Picky(Runner):
        async def execute(self, rollout):
            if rollout.input == 1:
                raise RuntimeError("not this one")
            return await super().execute(rollout)

    done = await run_tasks(Doubling(), [1, 2], runner=Picky(tracer=DummyTracer()))
    assert [each.status for each in done] == ["failed", "succeeded"]


# -- slots, stops, bounds ----------------------------------------------------------------------------


async def test_async_agents_run_side_by_side():
    together = 0
    most = 0

    @rollout
    async def agent(task):
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.05)
        together -= 1
        return 1.0

    done = await run_tasks(agent, list(range(40)), runner=Runner(tracer=DummyTracer(), concurrency=20))
    assert {each.status for each in done} == {"succeeded"}
    assert most == 20


async def test_sync_agents_run_in_threads_as_many_as_there_are_slots():
    barrier = threading.Barrier(4, timeout=20)

    @rollout
    def agent(task):
        assert threading.current_thread() is not threading.main_thread()
        return float(barrier.wait())

    done = await run_tasks(agent, list(range(8)), runner=Runner(tracer=DummyTracer(), concurrency=4))
    assert {each.status for each in done} == {"succeeded"}


async def test_a_sync_agent_may_run_a_loop_of_its_own():
    @rollout
    def agent(task):
        return asyncio.run(asyncio.sleep(0, result=1.0))

    assert [each.reward for each in await run_tasks(agent, [0])] == [1.0]


async def test_an_idle_runner_takes_new_work_at_once_and_stops_at_once(store):
    runner = Runner(tracer=DummyTracer(), poll_interval=60)
    began = time.monotonic()
    async with at_work(runner, Doubling(), store) as event:
        await asyncio.sleep(0.1)
        await finished(store, [await store.enqueue_rollout(1)])
        event.set()
    assert time.monotonic() - began < 30  # far below the poll interval


async def test_a_runner_that_is_told_to_stop_finishes_what_it_has_in_hand(store):
    began = asyncio.Event()

    @rollout
    async def agent(task):
        began.set()
        await asyncio.sleep(0.2)
        return 1.0

    queued = [await store.enqueue_rollout(n) for n in range(3)]
    async with at_work(Runner(tracer=DummyTracer()), agent, store) as event:
        await began.wait()
        event.set()
    assert [each.status for each in await store.query_rollouts(rollout_id_in=[r.rollout_id for r in queued])] == [
        "succeeded",
        "queuing",
        "queuing",
    ]


async def test_max_rollouts_counts_what_earlier_processes_finished(store):
    class Event(threading.Event):
        finished_before = 2
        counts = []

        def finished(self, count):
            self.counts.append(count)

    event = Event()
    for n in range(5):
        await store.enqueue_rollout(n)
    runner = Runner(tracer=DummyTracer(), max_rollouts=4)
    with runner.run_context(agent=Doubling(), store=store):
        await asyncio.wait_for(runner.iter(event=event), 30)
    assert (await store.statistics())["rollouts_by_status"]["succeeded"] == 2
    assert event.counts == [1, 2]


async def test_nothing_is_left_after_the_context(store):
    before = own_threads()
    await run_tasks(Doubling(), list(range(5)), runner=Runner(tracer=DummyTracer(), concurrency=3), store=store)
    deadline = time.monotonic() + 10
    while own_threads() - before and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert own_threads() <= before


def test_worker_names_are_unique(store):
    assert worker_name(0) == worker_name(0)
    assert worker_name(0) != worker_name(1)
    one, two = Runner(tracer=DummyTracer()), Runner(tracer=DummyTracer())
    with one.run_context(agent=Doubling(), store=store), two.run_context(agent=Doubling(), store=store):
        assert one.worker_name != two.worker_name


@pytest.mark.parametrize(
    ("setting", "value"), [("concurrency", 0), ("max_rollouts", 0), ("heartbeat_interval", -1), ("concurrency", "two")]
)
def test_a_setting_that_cannot_work_is_refused(setting, value):
    with raises(ConfigError, setting):
        Runner(**{setting: value})


async def test_a_runner_without_store_or_agent_says_so():
    with raises(ConfigError, "run_context"):
        await Runner(tracer=DummyTracer()).execute(None)


async def test_the_worker_reports_its_slots_and_counts(store):
    runner = Runner(tracer=DummyTracer(), concurrency=3, heartbeat_interval=0.05)
    queued = [await store.enqueue_rollout(n, config=RolloutConfig()) for n in range(3)]
    async with at_work(runner, Doubling(), store):
        await finished(store, queued)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            worker = await store.get_worker_by_id(runner.worker_name)
            if worker is not None and worker.heartbeat_stats["finished"] == 3:
                break
            await asyncio.sleep(0.02)
    assert worker.heartbeat_stats["slots"] == 3
    assert worker.heartbeat_stats["finished"] == 3
