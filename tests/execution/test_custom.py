"""Strategies of one's own: written from scratch, or made of others."""

import asyncio

import pytest

from sharpen.execution import (
    ClientServerExecutionStrategy,
    ExecutionStrategy,
    SharedMemoryExecutionStrategy,
    ThreadingEvent,
)
from sharpen.store import InMemoryLightningStore

from .bundles import Enqueue, Work


class Event(ThreadingEvent):
    finished_before = 0

    def finished(self, count: int) -> None:
        self.count = count


class OneLoop(ExecutionStrategy):
    """Everything in one event loop."""

    async def execute(self, algorithm, runner, store):
        event = Event()
        working = asyncio.create_task(runner(store, 0, event))
        await algorithm(store, event)
        event.set()
        await working


class ByTheSize(ExecutionStrategy):
    """Delegates: threads for little work, processes for more."""

    def __init__(self, n_runners: int) -> None:
        self.inner = (
            SharedMemoryExecutionStrategy(n_runners=1) if n_runners == 1 else ClientServerExecutionStrategy(n_runners=2)
        )

    def execute(self, algorithm, runner, store):
        return self.inner.execute(algorithm, runner, store)


class AsyncFace(ByTheSize):
    async def execute(self, algorithm, runner, store):
        super().execute(algorithm, runner, store)


async def test_an_async_strategy_of_ones_own_works():
    algorithm = Enqueue("a", "b")
    await OneLoop().execute(algorithm, Work(), InMemoryLightningStore())
    assert algorithm.statuses == ["succeeded"] * 2


@pytest.mark.parametrize("n_runners", [1, 2])
def test_a_strategy_may_delegate_to_others(n_runners):
    algorithm = Enqueue("a", "b")
    ByTheSize(n_runners).execute(algorithm, Work(), InMemoryLightningStore())
    assert algorithm.statuses == ["succeeded"] * 2


@pytest.mark.parametrize("n_runners", [1, 2])
async def test_an_async_strategy_may_delegate_to_ours(n_runners):
    algorithm = Enqueue("a", "b")
    await AsyncFace(n_runners).execute(algorithm, Work(), InMemoryLightningStore())
    assert algorithm.statuses == ["succeeded"] * 2


def test_a_strategy_that_does_not_say_how_is_an_error():
    with pytest.raises(NotImplementedError):
        ExecutionStrategy().execute(Enqueue(), Work(), InMemoryLightningStore())
