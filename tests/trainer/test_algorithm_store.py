"""The store as an algorithm sees it: all of it, with the trainer's configuration filled in."""

import asyncio
import threading
from typing import Any

import pytest

from sharpen.store import InMemoryLightningStore, LightningStore
from sharpen.types import EnqueueRolloutRequest, RolloutConfig
from tests.errors import raises
from tests.store.internals import METHODS
from tests.trainer.internals import AlgorithmStore

CONFIG = RolloutConfig(max_attempts=5)


class Watched(InMemoryLightningStore):
    """Notes which of its own methods are called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []
        self.flavour = "vanilla"

    def __getattribute__(self, name: str) -> Any:
        if name in METHODS:
            self.called.append(name)
        return super().__getattribute__(name)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "enqueue_rollout": {"input": 1},
    "enqueue_many_rollouts": {"requests": [EnqueueRolloutRequest(1)]},
    "start_rollout": {"input": 1},
    "dequeue_rollout": {},
    "query_workers": {},
    "statistics": {},
    "prune": {"older_than": 10},
    "update_worker": {"worker_id": "w"},
}


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
async def test_a_call_reaches_the_same_method_of_the_store(name: str) -> None:
    store = Watched()
    await getattr(AlgorithmStore(store, CONFIG), name)(**ARGUMENTS[name])
    assert store.called[0] == name


def test_every_method_of_the_contract_is_passed_on() -> None:
    assert not [name for name in METHODS if getattr(AlgorithmStore, name) is getattr(LightningStore, name)]


async def test_a_configuration_is_filled_in_only_where_there_is_none() -> None:
    store, own = InMemoryLightningStore(), RolloutConfig(timeout_seconds=1)
    face = AlgorithmStore(store, CONFIG)
    rollouts = [
        await face.enqueue_rollout(1),
        await face.enqueue_rollout(1, config=own),
        *await face.enqueue_many_rollouts([EnqueueRolloutRequest(1), EnqueueRolloutRequest(1, config=own)]),
        await face.start_rollout(1),
        await face.start_rollout(1, config=own),
    ]
    assert [rollout.config for rollout in rollouts] == [CONFIG, own] * 3


async def test_what_is_the_stores_own_can_be_reached() -> None:
    face = AlgorithmStore(Watched(), CONFIG)
    assert face.flavour == "vanilla"
    assert face.capabilities["thread_safe"]
    with raises(AttributeError, "flavor"):
        _ = face.flavor


async def test_an_algorithm_cannot_close_the_store_of_the_run() -> None:
    store = InMemoryLightningStore()
    await AlgorithmStore(store, CONFIG).close()
    assert (await store.enqueue_rollout(1)).status == "queuing"


def test_a_loop_that_waits_in_it_can_be_woken() -> None:
    face = AlgorithmStore(InMemoryLightningStore(), CONFIG)
    turns = 0

    class Counting(asyncio.SelectorEventLoop):
        def _run_once(self) -> None:
            nonlocal turns
            super()._run_once()  # type: ignore[misc]
            turns += 1

    def wait() -> None:
        with asyncio.Runner(loop_factory=Counting) as runner:
            runner.run(face.finished_rollouts(wait_seconds=5))

    thread = threading.Thread(target=wait)
    thread.start()
    while not face._waiting:
        pass
    before = turns
    while turns <= before:
        face.wake_waiting()
    asyncio.run(face.cancel_rollouts([asyncio.run(face.enqueue_rollout(1)).rollout_id]))
    thread.join()
    assert not face._waiting
