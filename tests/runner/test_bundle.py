"""What travels to a runner works there, and loads no more than a runner needs."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from sharpen.execution import ThreadingEvent
from sharpen.litagent import as_agent
from sharpen.runner import LitAgentRunner
from sharpen.store import InMemoryLightningStore
from sharpen.tracer import OtelTracer
from tests.runner.internals import RunnerBundle

MAX_FILES = 80
FORBIDDEN = {"algorithm", "archive", "callbacks", "cli", "dashboard", "llm", "loggers", "trainer"}

# The agent writes which of our modules its process has loaded to the file that is its task.
AGENT = """
import json, sys
from sharpen import emit_reward, rollout

@rollout
def agent(task):
    emit_reward(0.5)
    with open(task, "w") as file:
        json.dump([name for name in sys.modules if name.split(".")[0] == "sharpen"], file)
    return 1.0
"""
RUN = """
from sharpen import Trainer

if __name__ == "__main__":
    Trainer(algorithm="Baseline", n_runners=1, dashboard=False).fit(agent, [sys.argv[1]])
"""
SHARED_MEMORY = """
import asyncio
from sharpen import InMemoryLightningStore, LitAgentRunner, SharedMemoryExecutionStrategy
from sharpen.runner.base import RunnerBundle

async def algorithm(store, event):
    rollout = await store.enqueue_rollout(sys.argv[1])
    await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])

store = InMemoryLightningStore()
SharedMemoryExecutionStrategy().execute(algorithm, RunnerBundle(agent, LitAgentRunner(), []), store)
asyncio.run(store.close())
"""
CONFIG = "agent: agent.py:agent\nalgorithm: Baseline\ntrain_dataset: [modules.json]\n"


def travelled(bundle: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(bundle))


async def run_one(bundle: RunnerBundle) -> float | None:
    store, event = InMemoryLightningStore(), ThreadingEvent()
    rollout = await store.enqueue_rollout(4)
    task = asyncio.create_task(bundle(store, 0, event))
    (finished,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
    event.set()
    await task
    return finished.reward


async def test_a_bundle_runs_agents_also_after_a_journey() -> None:
    bundle = RunnerBundle(as_agent(lambda task: task * 2.0), LitAgentRunner(tracer=OtelTracer()), [])
    assert await run_one(bundle) == 8
    assert await run_one(travelled(bundle)) == 8


async def test_a_bundle_leaves_its_own_runner_as_it_is() -> None:
    runner = LitAgentRunner(tracer=OtelTracer())
    await run_one(RunnerBundle(as_agent(lambda task: 1.0), runner, []))
    assert (runner.agent, runner.store, runner.worker_id) == (None, None, None)


def test_the_parts_of_a_bundle_have_the_names_that_users_know() -> None:
    agent, runner = as_agent(lambda task: 1.0), LitAgentRunner()
    assert RunnerBundle(agent, runner, []).parts() == {"agent": agent, "runner": runner, "hooks": []}


# -- the modules of a runner process -----------------------------------------------------------------


class Folder:
    """Where programs run, and where an agent leaves the names of the modules that its process has loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        own = {"SHARPEN_RUNS": str(self.path / "runs"), "XDG_STATE_HOME": str(self.path / "state")}
        with open(self.path / "output.txt", "a") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=output,
                stderr=output,
                text=True,
                env={**os.environ, **own},
                cwd=self.path,
            )
        self._started.append(process)
        return process

    def run(self, *arguments: str) -> None:
        assert self.start(*arguments).wait(60) == 0, (self.path / "output.txt").read_text()

    def run_program(self, text: str) -> None:
        (self.path / "program.py").write_text(text)
        self.run("program.py", str(self.path / "modules.json"))

    def modules(self) -> set[str]:
        return set(json.loads((self.path / "modules.json").read_text()))

    def rooms(self) -> set[str]:
        return {name.split(".")[1] for name in self.modules() if "." in name}

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    opened = Folder(tmp_path)
    yield opened
    opened.end()


def test_a_runner_process_loads_few_modules_and_nothing_of_the_algorithm(folder: Folder) -> None:
    folder.run_program(AGENT + RUN)
    assert "runner" in folder.rooms()
    assert folder.rooms() & FORBIDDEN == set()
    assert len(folder.modules()) <= MAX_FILES, sorted(folder.modules())


def test_runners_started_separately_load_no_more(folder: Folder) -> None:
    (folder.path / "agent.py").write_text(AGENT)
    (folder.path / "config.yaml").write_text(CONFIG)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cli = ("-m", "sharpen.cli")
    runner = folder.start(*cli, "runner", "config.yaml", "--store", f"http://127.0.0.1:{port}", "--n-runners", "1")
    folder.run(*cli, "algorithm", "config.yaml", "--port", str(port))
    runner.send_signal(signal.SIGINT)
    runner.wait(30)
    assert folder.rooms() & FORBIDDEN == set()
    assert len(folder.modules()) <= MAX_FILES, sorted(folder.modules())


def test_a_strategy_of_threads_without_a_trainer_loads_nothing_of_the_algorithm(folder: Folder) -> None:
    folder.run_program(AGENT + SHARED_MEMORY)
    assert "runner" in folder.rooms()
    assert folder.rooms() & FORBIDDEN == set()
