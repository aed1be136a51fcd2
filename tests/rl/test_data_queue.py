"""The data queue: each item exactly `repeat` times, over processes, in an order that a seed fixes."""

import multiprocessing
import os
import threading
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sharpen.errors import ConfigError
from sharpen.rl import DataQueue, QueueError
from tests.errors import raises


@given(n=st.integers(0, 30), repeat=st.integers(0, 4), shuffle=st.booleans(), workers=st.integers(0, 3))
def test_each_item_comes_exactly_as_often_as_wanted(n: int, repeat: int, shuffle: bool, workers: int) -> None:
    with DataQueue(list(range(n)), repeat, shuffle, workers) as queue:
        got = list(queue)
        assert queue.done()
    assert Counter(got) == Counter({item: repeat for item in range(n) if repeat})
    if not shuffle:
        assert got == list(range(n)) * repeat


def test_a_seed_fixes_the_order_and_every_round_has_another_one() -> None:
    def order(seed: int) -> list[int]:
        with DataQueue(range(20), repeat=2, seed=seed) as queue:
            return list(queue)

    assert order(1) == order(1)
    assert order(1) != order(2)
    assert sorted(order(1)[:20]) == list(range(20))
    assert order(1)[:20] != order(1)[20:]


def test_a_queue_without_end_gives_for_ever() -> None:
    with DataQueue([1, 2, 3], repeat=-1) as queue:
        assert Counter(next(queue) for _ in range(300)) == {1: 100, 2: 100, 3: 100}
        assert not queue.done()


def test_an_empty_queue_without_end_is_over_at_once() -> None:
    with DataQueue([], repeat=-1) as queue:
        assert list(queue) == []


@given(split=st.integers(0, 40))
def test_a_saved_cursor_goes_on_where_it_was(split: int) -> None:
    with DataQueue(range(10), repeat=4, seed=3) as queue:
        whole = list(queue)
    first: DataQueue[int] = DataQueue(range(10), repeat=4, seed=3, producer_num_workers=2)
    with first:
        got = [next(first) for _ in range(split)]
    second: DataQueue[int] = DataQueue(range(10), repeat=4, seed=999)
    second.load_state_dict(first.state_dict())
    with second:
        assert got + list(second) == whole


def test_put_and_mark_as_done() -> None:
    with DataQueue([1, 2], shuffle=False) as queue:
        queue.put(7)
        assert [queue.get(), queue.get()] == [7, 1]
        queue.mark_as_done()
        assert queue.done()
        assert list(queue) == []


def test_a_queue_that_is_not_open_says_how_to_open_it() -> None:
    queue: DataQueue[int] = DataQueue([1])
    with pytest.raises(QueueError):
        iter(queue)
    with queue, pytest.raises(QueueError):
        queue.activate()
    with raises(ConfigError, "repeat", -2):
        DataQueue([1], repeat=-2)


def consume(queue: Any, results: Any) -> None:
    results.put((os.getpid(), list(queue)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_several_processes_share_the_items(method: str) -> None:
    context: Any = multiprocessing.get_context(method)
    results = context.Queue()
    with DataQueue(list(range(200)), repeat=2) as queue:
        processes = [context.Process(target=consume, args=(queue, results)) for _ in range(3)]
        for process in processes:
            process.start()
        here = list(queue)
        there = [results.get(timeout=60) for _ in processes]
        for process in processes:
            process.join()
    got = here + [item for _, items in there for item in items]
    assert Counter(got) == Counter(dict.fromkeys(range(200), 2))
    assert len({pid for pid, _ in there}) == 3
    assert not [thread for thread in threading.enumerate() if "sharpen-queue" in thread.name]


def ask_late(queue: Any, event: Any, results: Any) -> None:
    event.wait()
    try:
        next(queue)
    except QueueError as error:
        results.put(str(error))


def test_a_consumer_of_a_closed_queue_is_told_that_its_producer_is_alive() -> None:
    context: Any = multiprocessing.get_context("fork")
    results, event = context.Queue(), context.Event()
    with DataQueue([1, 2]) as queue:
        process = context.Process(target=ask_late, args=(queue, event, results))
        process.start()
    event.set()
    assert f"its producer, process {os.getpid()}, is alive" in results.get(timeout=60)
    process.join()


class Slow:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        threading.Event().wait(1.0)
        return index


def test_a_consumer_that_waits_too_long_is_told_who_loads() -> None:
    with (
        DataQueue(Slow(), shuffle=False, producer_num_workers=1, wait_seconds=0.05) as queue,  # type: ignore[arg-type]
        raises(QueueError, 1, 0),
    ):
        next(queue)


def test_closing_takes_no_time() -> None:
    began = time.monotonic()
    for _ in range(20):
        with DataQueue(range(100), repeat=-1, producer_num_workers=1) as queue:
            next(queue)
    assert time.monotonic() - began < 2.0
