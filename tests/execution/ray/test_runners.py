"""Runners as actors: they work where they were placed, with the store reached over the network."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sharpen import Trainer
from sharpen.errors import ConfigError, RunnersExhaustedError, RunnerStartError, TransportError
from sharpen.execution import RayExecutionStrategy
from sharpen.store import InMemoryLightningStore, LightningStoreClient, LightningStoreServer, SQLiteStore
from tests.errors import raises

from ..bundles import Enqueue, Work
from ..processes import eventually
from .conftest import node_with
from .scenes import FOUND_THERE, SMALL, Agents, execute, mark, node_here, strategy

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]
PROGRAMS = Path(__file__).parent / "programs"


def test_a_run_ends_with_the_rewards_of_all_rollouts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"type": "ray", "runner_resources": SMALL, "runtime_env": FOUND_THERE}
    result = Trainer(strategy=given, n_runners=2, algorithm="baseline").fit(lambda task: task / 2, list(range(10)))
    assert result.status == "succeeded"
    assert result.metrics["succeeded"] == 10
    assert result.metrics["reward_mean"] == 2.25


@pytest.mark.parametrize("side", ["left", "right"])
def test_runners_are_placed_by_a_resource_of_the_cluster(side):
    where = node_with(side)
    algorithm = Enqueue("a", "b")
    execute(
        algorithm,
        Agents(lambda task: float(node_here() == where)),
        store := InMemoryLightningStore(),
        runner_resources={side: 1, "CPU": 0},
    )
    assert algorithm.statuses == ["succeeded"] * 2
    assert {each.reward for each in asyncio.run(store.query_rollouts())} == {1.0}


def test_a_place_that_no_node_has_is_an_error_in_words():
    with raises(RunnerStartError, 0, 64, "runner_resources", 0.5):
        execute(Enqueue("a"), Work(), InMemoryLightningStore(), runner_resources={"GPU": 64}, placement_timeout=0.5)


def test_runners_that_find_no_room_wait_while_the_others_work():
    algorithm = Enqueue(*"abcd")
    execute(algorithm, Work(), InMemoryLightningStore(), runner_resources={"left": 5, "CPU": 0}, n_runners=2)
    assert algorithm.statuses == ["succeeded"] * 4


def test_the_store_of_somebody_else_is_used_as_it_is():
    async def run():
        server = LightningStoreServer(InMemoryLightningStore(), token="t")
        await server.start()
        client, algorithm = LightningStoreClient(server.endpoint, "t"), Enqueue("a")
        await asyncio.to_thread(execute, algorithm, Work(), client)
        await client.close()
        await server.stop()
        return algorithm.statuses

    assert asyncio.run(run()) == ["succeeded"]


def test_an_address_that_no_other_node_could_reach_is_refused():
    with raises(ConfigError, "server_host", "0.0.0.0"):
        execute(Enqueue("a"), Work(), InMemoryLightningStore(), server_host="0.0.0.0")


def test_another_cluster_than_the_one_that_is_connected_is_refused():
    with pytest.raises(ConfigError):
        execute(Enqueue("a"), Work(), InMemoryLightningStore(), address="10.1.2.3:6379")


def test_a_folder_in_the_runtime_environment_is_for_whoever_connects(tmp_path):
    with raises(ConfigError, "ray.init"):
        execute(Enqueue("a"), Work(), InMemoryLightningStore(), runtime_env={"working_dir": str(tmp_path)})


def test_an_interrupted_run_goes_on_without_repeating_what_is_done(tmp_path):
    given = {"type": "ray", "runner_resources": SMALL, "runtime_env": FOUND_THERE, "graceful_timeout": 15.0}
    tasks = [{"number": number, "seconds": 0.2, "file": str(tmp_path / "done")} for number in range(16)]

    def trainer() -> Trainer:
        return Trainer(strategy=given, algorithm="baseline", run_dir=tmp_path / "run")

    first = trainer()
    with ThreadPoolExecutor() as pool:
        fitting = pool.submit(first.fit, mark, tasks)
        eventually(lambda: len(_lines(tmp_path / "done")) >= 3, "some are done")
        first.stop()
        assert fitting.result().status == "interrupted"
    assert trainer().fit(mark, tasks, resume=tmp_path / "run").status == "succeeded"
    assert sorted(int(line.split()[0]) for line in _lines(tmp_path / "done")) == list(range(16))


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_an_agent_that_cannot_travel_is_refused_before_anything_starts():
    import threading

    lock = threading.Lock()
    with pytest.raises(TransportError):
        execute(Enqueue("a"), Agents(lambda task: lock), InMemoryLightningStore())


def test_runners_that_reach_their_limit_are_an_error_while_rollouts_wait(tmp_path):
    store = SQLiteStore(tmp_path / "store.db")
    with raises(RunnersExhaustedError, 1, "max_rollouts"):
        execute(Enqueue(*"abc"), Work(max_rollouts=2), store)
    assert asyncio.run(store.statistics())["rollouts_by_status"]["succeeded"] == 2
    asyncio.run(store.close())


def test_a_run_is_stopped_from_another_thread():
    own = strategy()

    async def algorithm(store, event):
        await store.enqueue_rollout("a")
        own.stop()
        await asyncio.sleep(600)

    own.execute(algorithm, Work(), InMemoryLightningStore())


def test_modules_beside_a_program_travel_to_other_nodes_with_all_they_import(cluster, tmp_path):
    """The files are gone from the program's folder when the agent imports what it needs."""
    for file in (PROGRAMS / "beside").iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    command = [sys.executable, "script.py", cluster.address]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "succeeded 21.0", done.stdout


def test_the_environment_of_ray_reaches_the_agents():
    def agent(task):
        import os

        return float(os.environ["WANTED"])

    algorithm, store = Enqueue("a"), InMemoryLightningStore()
    execute(algorithm, Agents(agent), store, runtime_env={**FOUND_THERE, "env_vars": {"WANTED": "7"}})
    assert asyncio.run(store.query_rollouts())[0].reward == 7.0


def test_a_strategy_is_found_by_its_name_and_by_its_path():
    for name in ("ray", "RayExecutionStrategy", "sharpen.execution.RayExecutionStrategy"):
        assert isinstance(Trainer(strategy=name, n_runners=3).strategy, RayExecutionStrategy)
    made = Trainer(strategy={"type": "ray", "max_runners": 8}, n_runners=3).strategy
    assert (made.min_runners, made.n_runners, made.max_runners) == (3, 3, 8)
