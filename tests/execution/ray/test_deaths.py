"""Actors and nodes that die in the middle of their work: nothing is lost, and nothing completes twice."""

import asyncio
import logging
from collections import Counter
from pathlib import Path

import pytest

from sharpen.errors import RunError, RunnerStartError
from sharpen.store import InMemoryLightningStore, SQLiteStore
from sharpen.types import RolloutConfig
from tests.errors import raises

from ..bundles import SIGKILL, Enqueue, Work
from ..processes import notes
from .conftest import all_actors, node_with
from .scenes import Agents, attempts_of, execute, mark

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]
MANY = RolloutConfig(max_attempts=10, retry_condition=["unresponsive"], unresponsive_seconds=30)


@pytest.mark.parametrize("task", [{"exit once": 3}, {"kill once": SIGKILL}], ids=["exit", "kill"])
def test_a_runner_that_dies_is_started_again_and_its_rollout_tried_again(tmp_path, task, caplog):
    algorithm, store = Enqueue(task, "b"), InMemoryLightningStore()
    before = all_actors().keys()
    execute(algorithm, Work(folder=tmp_path), store)
    assert len(all_actors().keys() - before) == 2
    assert algorithm.statuses == ["succeeded"] * 2
    assert attempts_of(store, algorithm.rollouts[0].rollout_id) == ["unresponsive", "succeeded"]
    assert len(notes(tmp_path, "start")) == 2
    assert "was lost with runner 0" in caplog.text


def test_a_runner_whose_code_fails_is_started_again_with_its_traceback_in_the_log(caplog):
    algorithm = Enqueue({"raise once": "a bad day"}, "b")
    execute(algorithm, Work(), InMemoryLightningStore())
    assert algorithm.statuses == ["succeeded"] * 2
    assert "ValueError: a bad day" in caplog.text


def test_a_saturated_runner_is_replaced():
    algorithm = Enqueue({"wear once": "threads hang"}, "b")
    execute(algorithm, Work(), InMemoryLightningStore())
    assert algorithm.statuses == ["succeeded"] * 2


def test_a_runner_that_always_dies_ends_the_run_in_words():
    async def runner(store, worker_id, event):
        raise ValueError("never")

    with raises(RunnerStartError, 5, "ValueError"):
        execute(Enqueue("a"), runner, InMemoryLightningStore())


def test_an_agent_that_always_kills_its_runner_fails_its_rollout_only():
    algorithm = Enqueue({"exit": 3}, "b")
    execute(algorithm, Work(), InMemoryLightningStore(), n_runners=2)
    assert algorithm.statuses == ["failed", "succeeded"]


def test_a_node_that_is_killed_loses_nothing_and_nothing_completes_twice(cluster, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    doomed = cluster.add_node(num_cpus=1, resources={"mortal": 2})
    cluster.add_node(num_cpus=1, resources={"mortal": 2})
    lines = tmp_path / "done"
    tasks = [{"number": number, "seconds": 0.3, "file": str(lines)} for number in range(40)]
    algorithm = Doomed(cluster, doomed, lines, *tasks, config=MANY)
    store = SQLiteStore(tmp_path / "store.db")
    execute(algorithm, Agents(mark), store, n_runners=3, runner_resources={"mortal": 1, "CPU": 0})
    assert algorithm.statuses == ["succeeded"] * 40
    assert {rollout.reward for rollout in algorithm.rollouts} == set(map(float, range(40)))
    lost = [attempts_of(store, rollout.rollout_id) for rollout in algorithm.rollouts]
    assert all(statuses[-1] == "succeeded" and set(statuses[:-1]) <= {"unresponsive"} for statuses in lost)
    assert "was lost with runner" in caplog.text
    # An agent on the killed node may have written its line and died before its outcome was stored: no more than one
    # for each runner that was there. The store counts each rollout once, whatever agents wrote.
    written = Counter(line.split()[0] for line in lines.read_text().splitlines())
    assert set(written) == {str(number) for number in range(40)}
    assert sum(written.values()) - 40 <= 2
    asyncio.run(store.close())


def test_a_lost_place_in_a_full_cluster_is_waited_for_while_the_others_work(cluster, tmp_path):
    doomed = cluster.add_node(num_cpus=1, resources={"narrow": 1})
    cluster.add_node(num_cpus=1, resources={"narrow": 1})
    lines = tmp_path / "done"
    # Long enough that a runner which only asks again and again would have failed for good.
    tasks = [{"number": number, "seconds": 0.5, "file": str(lines)} for number in range(24)]
    algorithm = Doomed(cluster, doomed, lines, *tasks, config=MANY)
    place = {"narrow": 1, "CPU": 0}
    execute(algorithm, Agents(mark), InMemoryLightningStore(), n_runners=2, runner_resources=place)
    assert algorithm.statuses == ["succeeded"] * 24


class Doomed(Enqueue):
    """Kills a node once some rollouts are done."""

    def __init__(self, cluster, node, lines: Path, *tasks, config):
        super().__init__(*tasks, config=config)
        self._cluster, self._node, self._lines = cluster, node, lines

    async def __call__(self, store, event):
        killing = asyncio.create_task(self._kill())
        await super().__call__(store, event)
        await killing

    async def _kill(self):
        while not self._lines.exists() or not self._has_worked():
            await asyncio.sleep(0.05)
        await asyncio.to_thread(self._cluster.remove_node, self._node, allow_graceful=False)

    def _has_worked(self) -> bool:
        return self._node.node_id in self._lines.read_text()


def test_a_lost_place_that_no_other_node_has_ends_the_run_in_words(cluster):
    only = cluster.add_node(num_cpus=1, resources={"single": 1})
    assert node_with("single")

    async def algorithm(store, event):
        rollout = await store.enqueue_rollout({"sleep": 600}, config=MANY)
        while (await store.query_rollouts(rollout_ids=[rollout.rollout_id]))[0].status != "preparing":
            await asyncio.sleep(0.05)
        await asyncio.to_thread(cluster.remove_node, only, allow_graceful=False)
        await asyncio.sleep(600)

    place = {"runner_resources": {"single": 1, "CPU": 0}, "placement_timeout": 1.0}
    with raises(RunError, 0, 1):
        execute(algorithm, Work(), InMemoryLightningStore(), **place)
