"""What every tracer promises, with and without OpenTelemetry."""

import asyncio
import pickle
from enum import IntEnum
from typing import Any

import cloudpickle
import pytest

from sharpen.emitter import emit_message, emit_reward
from sharpen.errors import InvalidInputError
from sharpen.store import InMemoryLightningStore
from sharpen.tracer import DummyTracer, OtelTracer, Tracer, activate, active_tracer
from sharpen.types import Span, TraceStatus
from tests.errors import raises

from ..store.scenes import claim_new
from .scenes import ListSink, encoded, named, names, recorded


@pytest.fixture(params=[OtelTracer, DummyTracer, Tracer], ids=lambda kind: kind.__name__)
def tracer(request: pytest.FixtureRequest) -> Tracer:
    made: Tracer = request.param()
    return made


async def test_a_trace_collects_what_is_created_in_it(tracer: Tracer) -> None:
    async with tracer.trace_context("attempt"):
        core = tracer.create_span("step", {"a": 1}, timestamp=5.0, status=TraceStatus("OK"))
    [span] = tracer.get_last_trace()
    assert (span.name, span.attributes, span.status) == ("step", {"a": 1}, TraceStatus("OK"))
    assert (span.start_time, span.end_time, span.sequence_id) == (5.0, 5.0, 0)
    assert (core.name, core.attributes, core.start_time, core.end_time) == ("step", {"a": 1}, 5.0, 5.0)


async def test_all_spans_of_an_attempt_share_its_ids_and_one_trace_id(tracer: Tracer) -> None:
    sink = ListSink()
    async with tracer.trace_context(store=sink, rollout_id="ro-1", attempt_id="at-1"):
        tracer.create_span("one")
        with tracer.operation_context("two"):
            tracer.create_span("three")
    assert {(span.rollout_id, span.attempt_id) for span in sink.spans} == {("ro-1", "at-1")}
    assert len({span.trace_id for span in sink.spans}) == 1
    assert len({span.span_id for span in sink.spans}) == 3


async def test_a_sink_gets_each_span_the_moment_it_ends(tracer: Tracer) -> None:
    sink = ListSink()
    async with tracer.trace_context(store=sink, rollout_id="ro-1", attempt_id="at-1"):
        with tracer.operation_context("outer"):
            tracer.create_span("inner")
            assert names(sink.spans) == ["inner"]
        assert names(sink.spans) == ["inner", "outer"]


async def test_a_plain_store_gets_all_spans_at_the_end_also_when_the_agent_fails(tracer: Tracer) -> None:
    store = InMemoryLightningStore()
    claimed = await claim_new(store)
    ids = {"rollout_id": claimed.rollout_id, "attempt_id": claimed.attempt.attempt_id}

    async def attempt() -> None:
        async with tracer.trace_context(store=store, **ids):
            emit_reward(0.5)
            assert len(await store.query_spans(claimed.rollout_id)) == 0
            raise RuntimeError("agent")

    with raises(RuntimeError, "agent"):
        await attempt()
    stored = await store.query_spans(claimed.rollout_id)
    assert [span.attributes["sharpen.reward.0.value"] for span in stored] == [0.5]


async def test_a_store_without_ids_is_refused(tracer: Tracer) -> None:
    with raises(InvalidInputError, "attempt_id"):
        async with tracer.trace_context(store=ListSink(), rollout_id="ro-1"):
            raise AssertionError("not reached")


async def test_the_store_of_the_worker_is_used_where_a_trace_names_none(tracer: Tracer) -> None:
    store = InMemoryLightningStore()
    claimed = await claim_new(store)
    async with tracer.lifespan(store) as same:
        assert same is tracer
        async with tracer.trace_context(rollout_id=claimed.rollout_id, attempt_id=claimed.attempt.attempt_id):
            tracer.create_span("step")
    assert [span.name for span in await store.query_spans(claimed.rollout_id)] == ["step"]


async def test_operations_are_parents_of_what_happens_inside(tracer: Tracer) -> None:
    async with tracer.trace_context():
        with tracer.operation_context("outer", {"a": 1}) as outer:
            outer.set_attributes({"b": 2})
            with tracer.operation_context("inner"):
                tracer.create_span("leaf")
        tracer.create_span("after")
    spans = tracer.get_last_trace()
    outer_span, inner = named(spans, "outer"), named(spans, "inner")
    assert outer_span.parent_id is None
    assert outer_span.attributes == {"a": 1, "b": 2}
    assert inner.parent_id == outer_span.span_id
    assert named(spans, "leaf").parent_id == inner.span_id
    assert named(spans, "after").parent_id is None


async def test_times_of_an_operation_can_be_given(tracer: Tracer) -> None:
    async with tracer.trace_context():
        with tracer.operation_context("step", start_time=10.5, end_time=11.25):
            pass
    [span] = tracer.get_last_trace()
    assert (span.start_time, span.end_time) == (10.5, 11.25)


async def test_an_operation_that_fails_is_an_error_with_its_exception(tracer: Tracer) -> None:
    async with tracer.trace_context():
        with pytest.raises(KeyError), tracer.operation_context("step"):
            raise KeyError("where")
    [span] = tracer.get_last_trace()
    assert span.status == TraceStatus("ERROR", "KeyError: 'where'")
    [event] = span.events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "KeyError"
    assert event.attributes["exception.message"] == "'where'"
    assert "test_tracers.py" in event.attributes["exception.stacktrace"]


async def test_a_cancelled_operation_is_recorded_without_an_error(tracer: Tracer) -> None:
    async with tracer.trace_context():
        with pytest.raises(asyncio.CancelledError), tracer.operation_context("step"):
            raise asyncio.CancelledError
    [span] = tracer.get_last_trace()
    assert span.status.status_code == "UNSET"


async def test_a_status_and_an_exception_can_be_set_by_hand(tracer: Tracer) -> None:
    async with tracer.trace_context():
        with tracer.operation_context("step") as operation:
            operation.record_exception(ValueError("odd"))
            operation.set_status("ERROR", "odd")
    [span] = tracer.get_last_trace()
    assert span.status == TraceStatus("ERROR", "odd")
    assert span.events[0].attributes["exception.message"] == "odd"


async def test_the_last_trace_can_be_read_inside_the_trace_and_stays_after_it(tracer: Tracer) -> None:
    assert tracer.get_last_trace() == []
    async with tracer.trace_context():
        tracer.create_span("first")
        assert names(tracer.get_last_trace()) == ["first"]
    async with tracer.trace_context():
        pass
    assert tracer.get_last_trace() == []


async def test_another_task_does_not_see_the_trace_of_this_one(tracer: Tracer) -> None:
    async def other() -> list[Span]:
        return tracer.get_last_trace()

    task = asyncio.create_task(other())
    async with tracer.trace_context():
        tracer.create_span("mine")
        assert await task == []


async def test_a_trace_inside_a_trace_keeps_its_spans_to_itself(tracer: Tracer) -> None:
    outer, inner = ListSink(), ListSink()
    async with tracer.trace_context(store=outer, rollout_id="ro-1", attempt_id="at-1"):
        async with tracer.trace_context(store=inner, rollout_id="ro-2", attempt_id="at-2"):
            emit_message("inner")
        assert names(tracer.get_last_trace()) == ["sharpen.message"]
        emit_message("outer")
    assert [span.attributes["sharpen.message.body"] for span in inner.spans] == ["inner"]
    assert [span.attributes["sharpen.message.body"] for span in outer.spans] == ["outer"]


async def test_an_agent_that_is_left_behind_writes_nothing_more(tracer: Tracer) -> None:
    sink, go_on = ListSink(), asyncio.Event()

    async def lingering() -> None:
        with tracer.operation_context("begun in time"):
            await go_on.wait()
            tracer.create_span("late")

    async with tracer.trace_context(store=sink, rollout_id="ro-1", attempt_id="at-1"):
        left = asyncio.create_task(lingering())
        await asyncio.sleep(0)
        tracer.create_span("in time")
    go_on.set()
    await left
    assert names(sink.spans) == ["in time"]
    assert names(tracer.get_last_trace()) == ["in time"]


async def test_outside_a_trace_spans_are_only_built(tracer: Tracer) -> None:
    assert tracer.create_span("alone", {"a": 1}).attributes == {"a": 1}
    with tracer.operation_context("alone") as operation:
        operation.set_attributes({"a": 1})
    assert tracer.get_last_trace() == []


async def test_emitters_write_to_the_tracer_of_the_trace_and_to_none_after_it(tracer: Tracer) -> None:
    assert active_tracer() is None
    async with tracer.trace_context():
        assert active_tracer() is tracer
        with activate(None):
            assert active_tracer() is None
        assert active_tracer() is tracer
    assert active_tracer() is None


def test_a_function_is_traced_by_one_call(tracer: Tracer) -> None:
    def add(a: int, *, b: int) -> int:
        emit_reward(a + b)
        return a + b

    assert tracer.trace_run(add, 1, b=2) == 3
    assert tracer.get_last_trace()[0].attributes["sharpen.reward.0.value"] == 3.0


def test_a_traced_function_may_fail_and_keeps_its_spans(tracer: Tracer) -> None:
    def fail() -> None:
        emit_message("before")
        raise ValueError("no")

    with pytest.raises(ValueError):
        tracer.trace_run(fail)
    assert names(tracer.get_last_trace()) == ["sharpen.message"]
    assert active_tracer() is None


async def test_a_coroutine_function_is_traced_by_one_call(tracer: Tracer) -> None:
    async def add(a: int, b: int) -> int:
        await asyncio.sleep(0)
        emit_reward(a + b)
        return a + b

    assert await tracer.trace_run_async(add, 1, b=2) == 3
    assert len(tracer.get_last_trace()) == 1


def test_a_tracer_of_the_users_own_whose_trace_waits_is_told_to_use_the_async_way() -> None:
    from collections.abc import AsyncIterator
    from contextlib import asynccontextmanager

    class Waiting(Tracer):
        @asynccontextmanager
        async def trace_context(self, name: str | None = None, **kwargs: Any) -> AsyncIterator[Any]:
            await asyncio.sleep(0)
            yield self

    with raises(RuntimeError, "trace_run_async"):
        Waiting().trace_run(print)


@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps])
async def test_a_tracer_travels_to_other_processes_also_while_it_works(tracer: Tracer, dump: Any) -> None:
    async with tracer.lifespan(InMemoryLightningStore()):
        copy = pickle.loads(dump(tracer))
    assert type(copy) is type(tracer)
    assert names(recorded(copy, lambda: emit_message("there"))) == ["sharpen.message"]


def test_a_worker_may_be_torn_down_twice_or_without_having_started(tracer: Tracer) -> None:
    tracer.teardown_worker(0)
    tracer.init()
    tracer.init_worker(0)
    tracer.teardown_worker(0)
    tracer.teardown_worker(0)
    tracer.teardown()
    assert names(recorded(tracer, lambda: emit_message("still works"))) == ["sharpen.message"]


def test_span_ids_do_not_follow_a_seed_of_the_agent_nor_change_its_random_numbers(tracer: Tracer) -> None:
    import random

    def agent() -> float:
        random.seed(7)
        tracer.create_span("step")
        with tracer.operation_context("work"):
            pass
        return random.random()

    random.seed(7)
    expected = random.random()
    assert tracer.trace_run(agent) == expected
    first = {span.span_id for span in tracer.get_last_trace()}
    tracer.trace_run(agent)
    assert not first & {span.span_id for span in tracer.get_last_trace()}


async def test_names_and_statuses_can_always_be_written(tracer: Tracer) -> None:
    async with tracer.trace_context():
        tracer.create_span("odd \ud800", status=TraceStatus("ERROR", "odd \ud800"))
        with raises(ValueError, "odd"), tracer.operation_context("odd \ud800"):
            raise ValueError("odd \ud800")
    assert encoded(tracer.get_last_trace()).count("odd") >= 4


def test_a_coroutine_function_is_refused_where_it_would_not_be_awaited(tracer: Tracer) -> None:
    async def agent() -> None: ...

    with raises(InvalidInputError, "trace_run_async"):
        tracer.trace_run(agent)


class Level(IntEnum):
    HIGH = 3


class Opaque:
    """Something that JSON cannot hold."""


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("lone \ud800 half", "lone ��� half"),
        (b"bytes", "bytes"),
        ((1, 2), [1, 2]),
        ({"a": {"b": (1,)}}, {"a": {"b": [1]}}),
        (None, None),
        (Level.HIGH, 3),
        (float("inf"), "inf"),
        (Opaque(), "<tests.tracer.test_tracers.Opaque>"),
    ],
)
async def test_only_values_that_a_store_can_write_are_recorded(tracer: Tracer, value: Any, kept: Any) -> None:
    async with tracer.trace_context():
        tracer.create_span("step", {"value": value})
    [span] = tracer.get_last_trace()
    assert span.attributes == {"value": kept}


def test_without_content_operations_keep_their_inputs_to_themselves() -> None:
    def agent() -> None:
        tracer = active_tracer()
        assert tracer is not None
        tracer.create_span("emitted", {"sharpen.operation.input": "secret", "kept": 1})
        with tracer.operation_context("work", {"sharpen.operation.output": "secret", "kept": 2}):
            pass

    for tracer in (OtelTracer(capture_content=False), _without_content(DummyTracer())):
        spans = recorded(tracer, agent)
        assert [span.attributes for span in spans] == [{"kept": 1}, {"kept": 2}]


def _without_content(tracer: Tracer) -> Tracer:
    tracer.capture_content = False
    return tracer


def test_a_trace_says_who_recorded_it() -> None:
    spans = recorded(DummyTracer(), lambda: emit_message("hi"))
    assert spans[0].resource.attributes["sharpen.tracer.name"] == "DummyTracer"


async def test_a_dummy_tracer_sees_nothing_of_opentelemetry() -> None:
    from opentelemetry import trace

    async with OtelTracer().lifespan():
        tracer = DummyTracer()
        async with tracer.trace_context():
            with trace.get_tracer("agent").start_as_current_span("unseen") as span:
                assert not span.is_recording()
                tracer.create_span("seen")
        assert [(span.name, span.parent_id) for span in tracer.get_last_trace()] == [("seen", None)]


async def test_a_function_may_be_an_operation_each_time_it_is_called(tracer: Tracer) -> None:
    @tracer.operation_context("work", {"a": 1})
    def work() -> int:
        tracer.create_span("inside")
        return 7

    async with tracer.trace_context("attempt"):
        assert [work(), work()] == [7, 7]
    first, work_1, second, work_2 = tracer.get_last_trace()
    assert names([first, work_1, second, work_2]) == ["inside", "work", "inside", "work"]
    assert (first.parent_id, second.parent_id) == (work_1.span_id, work_2.span_id)
    assert work_1.span_id != work_2.span_id


def test_a_stop_iteration_of_a_traced_function_reaches_its_caller(tracer: Tracer) -> None:
    with pytest.raises(StopIteration):
        tracer.trace_run(next, iter(()))
