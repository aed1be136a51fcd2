"""The algorithm of a run travels, and leaves behind what belongs to one process."""

import asyncio
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from sharpen.algorithm import Algorithm
from sharpen.execution import ThreadingEvent
from sharpen.store import InMemoryLightningStore
from sharpen.types import PromptTemplate, RolloutConfig
from tests.trainer.internals import AlgorithmBundle, RunPlan

from ..algorithm.workers import until


def travelled(bundle: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(bundle))


class Noting(Algorithm[Any]):
    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        await self.get_store().enqueue_rollout(train_dataset)


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def algorithm_bundle(algorithm: Any, trainer: Any = None, **more: Any) -> AlgorithmBundle:
    parts: dict[str, Any] = {"train_dataset": "train", "rollout_config": RolloutConfig(max_attempts=9), **more}
    return AlgorithmBundle(RunPlan(run_dir=Path.cwd(), algorithm=algorithm, **parts), trainer)


async def test_an_algorithm_bundle_runs_also_after_a_journey() -> None:
    class SomeTrainer:
        pass

    trainer = SomeTrainer()
    for bundle in (algorithm_bundle(Noting(), trainer), travelled(algorithm_bundle(Noting(), trainer))):
        store = InMemoryLightningStore()
        await bundle(store, ThreadingEvent())
        (rollout,) = await store.query_rollouts()
        assert (rollout.input, rollout.config.max_attempts) == ("train", 9)


async def test_the_prompt_of_the_agent_travels_with_the_bundle() -> None:
    class Looking(Algorithm[Any]):
        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            assert self.agent_prompt is not None
            await self.get_store().enqueue_rollout(self.agent_prompt.template)

    bundle = travelled(algorithm_bundle(Looking(), agent_prompt=PromptTemplate("own")))
    store = InMemoryLightningStore()
    await bundle(store, ThreadingEvent())
    assert [rollout.input for rollout in await store.query_rollouts()] == ["own"]


async def test_a_bundle_without_an_algorithm_waits_for_the_event() -> None:
    event = ThreadingEvent()
    task = asyncio.create_task(algorithm_bundle(None)(InMemoryLightningStore(), event))
    await asyncio.sleep(0.3)
    assert not task.done()
    event.set()
    await task


async def test_a_bundle_can_be_cancelled_from_another_thread() -> None:
    class Endless(Algorithm[Any]):
        has_begun = False

        async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
            self.has_begun = True
            await asyncio.sleep(600)

    algorithm = Endless()
    bundle = algorithm_bundle(algorithm)

    async def has_begun() -> bool:
        return algorithm.has_begun

    task = asyncio.create_task(bundle(InMemoryLightningStore(), ThreadingEvent()))
    await until(has_begun)
    await asyncio.to_thread(bundle.cancel)
    await asyncio.wait([task])
    assert task.cancelled()
    bundle.cancel()  # nothing runs any more
