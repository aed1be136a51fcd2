"""The algorithm as an actor: it runs elsewhere, and the run goes on as if it ran here."""

import asyncio

import pytest

from sharpen import Trainer
from sharpen.algorithm import Baseline
from sharpen.errors import ConfigError, RunError
from sharpen.store import InMemoryLightningStore, SQLiteStore
from tests.errors import raises
from tests.execution.internals import AlgorithmActor

from ..bundles import Work
from ..processes import notes
from .conftest import node_with
from .scenes import FOUND_THERE, SMALL, execute, node_here, strategy

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


class Elsewhere:
    """Enqueues where it is, and waits."""

    async def __call__(self, store, event):
        rollout = await store.enqueue_rollout("a", metadata={"node": node_here()})
        await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])


class Failing:
    async def __call__(self, store, event):
        raise LookupError("nothing to learn")


class Waiting:
    """Waits until it is cancelled, and says so."""

    def __init__(self, folder):
        self.folder = folder

    async def __call__(self, store, event):
        (self.folder / "begun-1").touch()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            (self.folder / f"cancelled-{event.is_set()}").touch()
            raise


class Dying:
    async def __call__(self, store, event):
        import os

        os._exit(1)


def nodes_of(store) -> list[str]:
    return [each.metadata["node"] for each in asyncio.run(store.query_rollouts())]


def test_it_runs_on_the_node_of_the_program_unless_it_asks_for_resources():
    store = InMemoryLightningStore()
    execute(Elsewhere(), Work(), store, algorithm="actor")
    execute(Elsewhere(), Work(), store, algorithm="actor", algorithm_resources={"right": 1})
    assert nodes_of(store) == [node_with("head"), node_with("right")]


def test_its_error_reaches_the_caller_as_it_is():
    with raises(LookupError, "nothing to learn") as raised:
        execute(Failing(), Work(), InMemoryLightningStore(), algorithm="actor")
    assert "in the algorithm's actor" in raised.value.__notes__[0]


def test_it_is_cancelled_when_the_run_is_stopped(tmp_path):
    own = strategy(algorithm="actor")

    async def main():
        running = asyncio.create_task(
            asyncio.to_thread(own.execute, Waiting(tmp_path), Work(), InMemoryLightningStore())
        )
        while not notes(tmp_path, "begun"):
            await asyncio.sleep(0.05)
        own.stop()
        await running

    asyncio.run(main())
    assert len(notes(tmp_path, "cancelled")) == 1


def test_its_death_is_an_error_that_says_how_to_go_on():
    with pytest.raises(RunError):
        execute(Dying(), Work(), InMemoryLightningStore(), algorithm="actor")


def test_a_trainer_has_the_results_of_an_algorithm_elsewhere_and_goes_on_with_it(tmp_path):
    given = {"type": "ray", "runner_resources": SMALL, "runtime_env": FOUND_THERE, "algorithm": "actor"}
    trainer = Trainer(strategy=given, algorithm=Baseline(), run_dir=tmp_path / "run")
    result = trainer.fit(lambda task: float(task), [1, 2, 3])
    assert (result.status, result.metrics["reward_mean"]) == ("succeeded", 2.0)
    again = Trainer(strategy=given, algorithm=Baseline(), run_dir=tmp_path / "run")
    assert again.fit(lambda task: float(task), [1, 2, 3], resume=tmp_path / "run").status == "succeeded"
    store = SQLiteStore(tmp_path / "run" / "store.db")
    assert len(asyncio.run(store.query_rollouts())) == 3
    asyncio.run(store.close())


def test_a_folder_that_its_node_does_not_see_is_refused(tmp_path):
    missing = tmp_path / "of-another-machine" / ".mark"
    answer = asyncio.run(AlgorithmActor().prepare(*_nothing(str(missing))))
    assert "run_dir" in answer["traceback"]
    assert ConfigError.__name__ in answer["traceback"]


def _nothing(mark: str):
    from tests.execution.internals import ActorContext, Reach
    from tests.store.internals import ServerAddress

    return (
        ActorContext(ServerAddress("http://127.0.0.1:1", "t"), {}),
        [mark],
        ("", Reach("", "")),
        (b"", b""),
    )
