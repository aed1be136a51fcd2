"""How many runners there are: by the queue, within bounds."""

import asyncio
import contextlib

import pytest

from sharpen.store import InMemoryLightningStore
from tests.execution.internals import Bounds, Scaler


class Crew:
    """Runners that are numbers: those that start, and those that are ready with their names."""

    def __init__(self, ready: int, starting: int = 0) -> None:
        self.ready = {number: f"worker-{number}" for number in range(ready)}
        self.waiting = set(range(ready, ready + starting))

    def count(self) -> int:
        return len(self.ready) + len(self.waiting)

    def at_work(self) -> dict[int, str]:
        return dict(self.ready)

    def starting(self) -> set[int]:
        return set(self.waiting)

    def add(self, count: int) -> int:
        self.waiting |= set(range(self.count(), self.count() + count))
        return count

    def let_go(self, worker_ids) -> None:
        for number in worker_ids:
            self.ready.pop(number, None)
            self.waiting.discard(number)


async def looked(crew, store, looks=1, **bounds) -> Crew:
    scaler = Scaler(crew, Bounds(**{"low": 1, "high": 5, "idle_seconds": 0.0, **bounds}), lambda: _given(store))
    for _ in range(looks):
        await scaler._look(store)
    return crew


@contextlib.asynccontextmanager
async def _given(store):
    yield store


async def queue(count: int) -> InMemoryLightningStore:
    store = InMemoryLightningStore()
    for number in range(count):
        await store.enqueue_rollout(number)
    return store


@pytest.mark.parametrize(
    ("waiting", "starting", "slots", "more"), [(2, 0, 1, 2), (9, 0, 1, 4), (2, 1, 1, 1), (2, 2, 1, 0), (9, 0, 4, 3)]
)
async def test_every_rollout_that_waits_brings_a_runner_unless_one_is_on_its_way(waiting, starting, slots, more):
    crew = await looked(Crew(1, starting), await queue(waiting), slots=slots)
    assert crew.count() == 1 + starting + more


async def test_a_runner_with_work_in_hand_stays_and_those_without_go_down_to_the_least():
    store = await queue(1)
    await store.dequeue_rollout(worker_id="worker-2")
    crew = await looked(Crew(4), store)
    assert crew.ready.keys() == {2}


async def test_those_that_still_wait_for_a_place_go_first():
    crew = await looked(Crew(2, starting=2), await queue(0), low=2)
    assert crew.ready.keys() == {0, 1}
    assert not crew.waiting


async def test_nobody_goes_before_it_has_idled_for_its_time():
    store = await queue(1)
    crew = await looked(Crew(3), store, looks=2, idle_seconds=60)
    assert len(crew.ready) == 3


async def test_work_in_between_begins_the_time_anew():
    store, crew = InMemoryLightningStore(), Crew(2)
    scaler = Scaler(crew, Bounds(0, 5, idle_seconds=0.2), lambda: _given(store))
    await scaler._look(store)
    await asyncio.sleep(0.25)
    rollout = await store.start_rollout("a", worker_id="worker-1")
    await store.complete_attempt(rollout.rollout_id, rollout.attempt.attempt_id, reward=1.0)
    await scaler._look(store)
    assert crew.ready.keys() == {1}
