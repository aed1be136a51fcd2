"""Finished rollouts reach whoever waits for them: once, whenever they finish, and an error instead of silence."""

import asyncio
from typing import Any

import pytest

from sharpen import InMemoryLightningStore
from sharpen.types import EnqueueRolloutRequest, Rollout
from tests.algorithm.internals import FinishedRollouts
from tests.algorithm.workers import until, working
from tests.errors import raises


def requests(*ids: str) -> list[EnqueueRolloutRequest]:
    return [EnqueueRolloutRequest(each, rollout_id=each) for each in ids]


async def reward_of(rollout: Rollout) -> float | None:
    return rollout.reward


async def test_each_expected_rollout_is_read_once_when_it_is_finished() -> None:
    store, reads = InMemoryLightningStore(), []

    async def read(rollout: Rollout) -> float | None:
        reads.append(rollout.rollout_id)
        return rollout.reward

    finished = FinishedRollouts(store, read)
    async with finished.following(), working(store, lambda task: float(len(task))):
        finished.expect(["a", "bb"])
        finished.take(await store.enqueue_many_rollouts(requests("a", "bb", "ccc")))
        assert await asyncio.gather(finished.result("bb"), finished.result("a")) == [2.0, 1.0]
    assert sorted(reads) == ["a", "bb"]  # nobody waits for the third


async def test_one_that_was_finished_before_is_taken_as_the_store_gives_it() -> None:
    store = InMemoryLightningStore()
    async with working(store, lambda task: 0.5):
        await store.enqueue_many_rollouts(requests("old"))
        await until(lambda: _is_finished(store, "old"))
    finished = FinishedRollouts(store, reward_of)
    async with finished.following():
        finished.expect(["old"])
        finished.take(await store.enqueue_many_rollouts(requests("old")))
        assert await finished.result("old") == 0.5
        assert finished.is_done("old")


async def test_one_that_is_not_finished_is_not_done() -> None:
    store = InMemoryLightningStore()
    finished = FinishedRollouts(store, reward_of)
    async with finished.following():
        finished.expect(["a"])
        finished.take(await store.enqueue_many_rollouts(requests("a")))
        assert not finished.is_done("a")
        finished.forget("a")
        assert finished.is_done("a")


async def test_who_waits_gets_the_error_of_reading() -> None:
    store = InMemoryLightningStore()

    async def read(rollout: Rollout) -> float:
        raise ValueError(f"cannot read {rollout.rollout_id}")

    finished = FinishedRollouts(store, read)
    async with finished.following(), working(store, lambda task: 1.0):
        finished.expect(["a"])
        await store.enqueue_many_rollouts(requests("a"))
        with pytest.raises(ValueError):
            await finished.result("a")


async def test_nobody_waits_for_ever_when_the_store_cannot_be_followed() -> None:
    class Failing(InMemoryLightningStore):
        async def finished_rollouts(self, **settings: Any) -> Any:
            await asyncio.sleep(0)
            raise ConnectionError("the store is gone")

    finished = FinishedRollouts(Failing(), reward_of)
    async with finished.following():
        finished.expect(["a"])
        with raises(ConnectionError, "the store is gone"):
            await finished.result("a")
        with raises(ConnectionError, "the store is gone"):
            finished.expect(["b"])


async def test_giving_up_waiting_takes_nothing_from_another_who_waits() -> None:
    store = InMemoryLightningStore()
    finished = FinishedRollouts(store, reward_of)
    async with finished.following():
        finished.expect(["a"])
        one, other = (asyncio.ensure_future(finished.result("a")) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        async with working(store, lambda task: 1.0):
            await store.enqueue_many_rollouts(requests("a"))
            assert await other == 1.0


async def _is_finished(store: InMemoryLightningStore, rollout_id: str) -> bool:
    found = await store.get_rollout_by_id(rollout_id)
    return found is not None and found.is_finished
