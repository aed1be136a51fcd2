"""The trace follows the attempt through tasks, threads and sync code, and attempts never mix."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest
from opentelemetry import trace as otel

from sharpen.emitter import emit_message, get_message_value, operation
from sharpen.tracer import DummyTracer, OtelTracer, Tracer
from tests.tracer.internals import last_trace

from .scenes import ListSink, named

TRACERS = [OtelTracer(), DummyTracer()]


def bodies(sink: ListSink) -> list[str | None]:
    return [get_message_value(span) for span in sink.spans if get_message_value(span) is not None]


def in_thread(function: Callable[..., Any], *args: Any) -> None:
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def in_thread_subclass(function: Callable[..., Any], *args: Any) -> None:
    class Own(threading.Thread):
        def run(self) -> None:
            function(*args)

    own = Own()
    own.start()
    own.join()


def in_timer(function: Callable[..., Any], *args: Any) -> None:
    timer = threading.Timer(0, function, args)
    timer.start()
    timer.join()


def in_pool(function: Callable[..., Any], *args: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        pool.submit(function, *args).result()


def in_pool_map(function: Callable[..., Any], *args: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(function, *[[arg] for arg in args]))


def in_nested_threads(function: Callable[..., Any], *args: Any) -> None:
    in_thread(in_pool, function, *args)


SYNC_WAYS = [in_thread, in_thread_subclass, in_timer, in_pool, in_pool_map, in_nested_threads]


async def to_thread(function: Callable[..., Any], *args: Any) -> None:
    await asyncio.to_thread(function, *args)


async def to_executor(function: Callable[..., Any], *args: Any) -> None:
    await asyncio.get_running_loop().run_in_executor(None, function, *args)


async def to_task(function: Callable[..., Any], *args: Any) -> None:
    async def call() -> None:
        await asyncio.sleep(0)
        function(*args)

    await asyncio.create_task(call())


async def to_callback(function: Callable[..., Any], *args: Any) -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon(lambda: (function(*args), done.set()))
    await done.wait()


ASYNC_WAYS = [to_thread, to_executor, to_task, to_callback]


@pytest.mark.parametrize("tracer", TRACERS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("way", SYNC_WAYS, ids=lambda way: way.__name__)
async def test_the_trace_follows_threads(tracer: Tracer, way: Callable[..., None]) -> None:
    sink = ListSink()
    async with tracer.trace_context(store=sink, rollout_id="ro", attempt_id="at"):
        way(emit_message, "from there")
    assert bodies(sink) == ["from there"]


@pytest.mark.parametrize("tracer", TRACERS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("way", ASYNC_WAYS, ids=lambda way: way.__name__)
async def test_the_trace_follows_tasks(tracer: Tracer, way: Callable[..., Any]) -> None:
    sink = ListSink()
    async with tracer.trace_context(store=sink, rollout_id="ro", attempt_id="at"):
        await way(emit_message, "from there")
    assert bodies(sink) == ["from there"]


@pytest.mark.parametrize("tracer", TRACERS, ids=lambda each: type(each).__name__)
async def test_a_span_in_a_thread_has_the_operation_that_started_the_thread_as_parent(tracer: Tracer) -> None:
    sink = ListSink()
    async with tracer.trace_context(store=sink, rollout_id="ro", attempt_id="at"):
        with tracer.operation_context("work"):
            in_pool(tracer.create_span, "in pool")
            in_thread(tracer.create_span, "in thread")
    work = named(sink.spans, "work")
    assert {span.parent_id for span in sink.spans if span is not work} == {work.span_id}


async def test_opentelemetry_spans_of_a_thread_belong_to_the_attempt() -> None:
    tracer, sink = OtelTracer(), ListSink()

    def work() -> None:
        with otel.get_tracer("agent").start_as_current_span("in thread"):
            pass

    async with tracer.trace_context(store=sink, rollout_id="ro", attempt_id="at"):
        in_thread(work)
    assert [span.rollout_id for span in sink.spans] == ["ro"]


async def test_a_pool_that_outlives_an_attempt_does_not_keep_it() -> None:
    tracer, first, second = DummyTracer(), ListSink(), ListSink()
    with ThreadPoolExecutor(1) as pool, tracer.lifespan():
        submit_outside = contextvars.Context().run
        async with tracer.trace_context(store=first, rollout_id="ro-1", attempt_id="at-1"):
            pool.submit(emit_message, "first").result()
        # The pool's thread was started inside the attempt, and serves others now.
        assert submit_outside(pool.submit, last_trace.get).result() is None
        async with tracer.trace_context(store=second, rollout_id="ro-2", attempt_id="at-2"):
            pool.submit(emit_message, "second").result()
    assert (bodies(first), bodies(second)) == (["first"], ["second"])


def test_threads_and_pools_are_untouched_before_and_after() -> None:
    start, submit = threading.Thread.start, ThreadPoolExecutor.submit
    with DummyTracer().lifespan(), OtelTracer().lifespan():
        assert threading.Thread.start is not start
        assert ThreadPoolExecutor.submit is not submit
    assert threading.Thread.start is start
    assert ThreadPoolExecutor.submit is submit


def test_outside_an_attempt_threads_begin_with_an_empty_context_as_ever() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    variable.set("set")
    seen: list[str] = []
    with DummyTracer().lifespan():
        in_thread(lambda: seen.append(variable.get()))
        in_pool(lambda: seen.append(variable.get()))
    assert seen == ["unset", "unset"]


def test_somebody_elses_wrapper_around_thread_start_survives(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    with DummyTracer().lifespan():
        ours = threading.Thread.start

        def theirs(thread: threading.Thread) -> None:
            started.append(thread.name)
            ours(thread)

        monkeypatch.setattr(threading.Thread, "start", theirs)
    for _ in range(2):
        with DummyTracer().lifespan():
            assert threading.Thread.start is theirs
            in_thread(lambda: None)
    assert len(started) == 2


def test_a_thread_still_cannot_be_started_twice() -> None:
    def agent() -> None:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError):
            thread.start()

    DummyTracer().trace_run(agent)


# -- a hundred attempts at once ----------------------------------------------------------------------

ATTEMPTS = 100


async def _attempt(number: int, tracer: Tracer, everybody_is_here: asyncio.Barrier) -> ListSink:
    sink, label = ListSink(), f"attempt {number}"
    way: Callable[..., Any] = [*SYNC_WAYS, *ASYNC_WAYS][number % (len(SYNC_WAYS) + len(ASYNC_WAYS))]

    @operation(name=label)
    def work(step: int) -> None:
        emit_message(f"{label} step {step}")
        with otel.get_tracer("agent").start_as_current_span(label):
            emit_message(f"{label} inside {step}")

    async with tracer.trace_context(store=sink, rollout_id=f"ro-{number}", attempt_id=f"at-{number}"):
        await everybody_is_here.wait()
        for step in range(3):
            await asyncio.sleep(0)
            if way in ASYNC_WAYS:
                await way(work, step)
            else:
                await asyncio.to_thread(way, work, step)
        assert tracer.get_last_trace() == sink.spans
    return sink


@pytest.mark.parametrize("kind", ["one tracer for all", "one tracer each", "mixed tracers"])
async def test_a_hundred_attempts_at_once_never_mix(kind: str) -> None:
    shared = OtelTracer()
    makers: dict[str, Callable[[int], Tracer]] = {
        "one tracer for all": lambda number: shared,
        "one tracer each": lambda number: OtelTracer(),
        "mixed tracers": lambda number: DummyTracer() if number % 2 else OtelTracer(),
    }
    barrier = asyncio.Barrier(ATTEMPTS)
    tracers = [makers[kind](number) for number in range(ATTEMPTS)]
    sinks = await asyncio.gather(*(_attempt(number, tracers[number], barrier) for number in range(ATTEMPTS)))
    for number, sink in enumerate(sinks):
        assert {span.rollout_id for span in sink.spans} == {f"ro-{number}"}
        assert len({span.trace_id for span in sink.spans}) == 1
        assert all((body or "").startswith(f"attempt {number} ") for body in bodies(sink))
        assert len(bodies(sink)) == 6
        ids = {span.span_id for span in sink.spans}
        assert all(span.parent_id in ids for span in sink.spans if span.parent_id is not None)
    assert len({span.trace_id for sink in sinks for span in sink.spans}) == ATTEMPTS
    assert len({span.span_id for sink in sinks for span in sink.spans}) == sum(len(sink.spans) for sink in sinks)


def test_attempts_in_threads_with_event_loops_of_their_own_never_mix() -> None:
    tracer, sinks = OtelTracer(), [ListSink() for _ in range(20)]

    async def attempt(number: int) -> None:
        async with tracer.trace_context(store=sinks[number], rollout_id=f"ro-{number}", attempt_id="at"):
            for _ in range(5):
                await asyncio.to_thread(emit_message, str(number))

    with tracer.lifespan(), ThreadPoolExecutor(len(sinks)) as pool:
        list(pool.map(lambda number: asyncio.run(attempt(number)), range(len(sinks))))
    assert [bodies(sink) for sink in sinks] == [[str(number)] * 5 for number in range(len(sinks))]
