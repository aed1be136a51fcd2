"""All roles as processes of their own, started with the commands and the environment of the systemd units."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharpen import SQLiteStore
from sharpen.types import Rollout

from ..store.processes import free_port
from .model_server import ModelServer, model_server
from .units import Unit, variables_of

DEPLOY = Path(__file__).parents[2] / "deploy"
N_TASKS = 30
SECRETS = {
    "SHARPEN_TOKEN": "token-of-the-roles-1",
    "SHARPEN_GATEWAY_TOKEN": "token-of-the-gateway-2",
    "UPSTREAM_API_KEY": "key-of-the-models-3",
}


class Machine:
    """A machine with the units of `deploy/systemd`: its folders lie in one, and its ports are free ones."""

    def __init__(self, folder: Path, model_url: str) -> None:
        self.folder, self.state = folder, folder / "lib"
        self.store_file = self.state / "sharpen" / "store.db"
        self._files = self._environment_files(model_url)
        self.running: dict[str, subprocess.Popen[str]] = {}
        self._make_project()

    def _environment_files(self, model_url: str) -> dict[str, str]:
        store, gateway = free_port(), free_port()
        given = {
            **SECRETS,
            "SHARPEN_STORE_FILE": str(self.store_file),
            "SHARPEN_STORE_PORT": str(store),
            "SHARPEN_STORE_URL": f"http://127.0.0.1:{store}",
            "SHARPEN_GATEWAY_PORT": str(gateway),
            "SHARPEN_GATEWAY_URL": f"http://127.0.0.1:{gateway}",
        }
        found = {}
        for path in (DEPLOY / "systemd").glob("*.env.example"):
            names = variables_of(path.read_text())
            lines = [f"{name}={given.get(name, value)}" for name, value in names.items()]
            found[f"/etc/sharpen/{path.name.removesuffix('.example')}"] = "\n".join(lines)
        found["/etc/sharpen/gateway.env"] += f"\nUPSTREAM_URL={model_url}"
        return found

    def _make_project(self) -> None:
        """The project of the examples, with tasks of our own, and a lease that does not keep a test waiting."""
        project = self.folder / "srv"
        project.mkdir()
        self.store_file.parent.mkdir(parents=True)
        for name in ("agent.py", "gateway.yaml"):
            shutil.copy(DEPLOY / name, project)
        config = (DEPLOY / "config.yaml").read_text()
        assert "unresponsive_seconds: 30" in config
        (project / "config.yaml").write_text(config.replace("unresponsive_seconds: 30", "unresponsive_seconds: 3"))
        tasks = [{"question": f"What is {n} * 7?", "answer": str(n * 7)} for n in range(N_TASKS)]
        (project / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))

    def start(self, name: str) -> None:
        """`systemctl start NAME`; a template has its instance in its name."""
        template = f"{name.partition('@')[0]}@" if "@" in name else name
        unit = Unit(DEPLOY / "systemd" / f"{template}.service")
        environment = unit.environment(self._files, str(self.state))
        words = [sys.executable, "-m", "sharpen.cli", *unit.command(environment)[1:]]
        with open(self.log(name), "a") as log:
            self.running[name] = subprocess.Popen(
                words,
                env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **environment},
                cwd=self.folder / "srv",
                stdout=log,
                stderr=log,
                text=True,
            )

    def kill(self, name: str) -> None:
        """`systemctl kill --signal KILL NAME`: of all its processes."""
        process = self.running[name]
        for pid in [*descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> int:
        """`systemctl stop NAME`; the exit code."""
        self.running[name].send_signal(signal.SIGTERM)
        return self.running[name].wait(30)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with model_server(SECRETS["UPSTREAM_API_KEY"], seconds=0.2) as server:
        yield server


@pytest.fixture
def machine(tmp_path: Path, model: ModelServer) -> Iterator[Machine]:
    made = Machine(tmp_path, model.url)
    yield made
    for process in made.running.values():
        process.kill()
        process.wait()


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    children = [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()]
    return [each for child in children for each in (*descendants(child), child)]


def eventually(is_true: Callable[[], bool], *, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, f"this did not become true within {seconds:g} s"
        time.sleep(0.05)


async def rollouts_and_spans(path: Path) -> list[tuple[Rollout, list[str], list[str]]]:
    """Every rollout with the states of its attempts, and the names of the spans of the one that succeeded."""
    store = SQLiteStore(path, read_only=True)
    try:
        found = []
        for rollout in await store.query_rollouts():
            attempts = await store.query_attempts(rollout.rollout_id)
            good = [each.attempt_id for each in attempts if each.status == "succeeded"]
            spans = await store.query_spans(rollout.rollout_id, attempt_id=good[-1]) if good else []
            found.append((rollout, [each.status for each in attempts], [span.name for span in spans]))
        return found
    finally:
        await store.close()


@pytest.mark.slow
def test_a_run_survives_the_death_of_a_runner_and_of_the_store(machine: Machine, model: ModelServer) -> None:
    roles = ("sharpen-runner@1", "sharpen-runner@2", "sharpen-gateway", "sharpen-store", "sharpen-algorithm")
    for name in roles:  # each waits for those that it needs
        machine.start(name)
    for name in roles:
        line = Path(f"/proc/{machine.running[name].pid}/cmdline").read_text()
        assert not any(secret in line for secret in SECRETS.values())
    eventually(lambda: len(model.asked) >= 6 and len(model.in_flight) == 2)  # both runners are in a call
    machine.kill("sharpen-runner@1")
    machine.kill("sharpen-store")
    asked = len(model.asked)
    machine.start("sharpen-store")
    machine.start("sharpen-runner@1")
    told = machine.log("sharpen-algorithm").read_text
    assert machine.running["sharpen-algorithm"].wait(120) == 0, told()
    assert len(model.asked) > asked

    for name in ("sharpen-runner@1", "sharpen-runner@2", "sharpen-gateway", "sharpen-store"):
        assert machine.stop(name) == 143, machine.log(name).read_text()
    found = asyncio.run(rollouts_and_spans(machine.store_file))
    assert len(found) == N_TASKS
    assert sum(len(attempts) for _, attempts, _ in found) == N_TASKS + 1  # that of the dead runner was tried again
    for rollout, attempts, spans in found:
        assert rollout.status == "succeeded"
        assert attempts.count("succeeded") == 1
        assert "sharpen.llm_call" in spans
        assert "sharpen.reward" in spans
    assert "reward_mean: 1" in told()
    assert len(model.asked) <= N_TASKS + 4  # what was under way was asked again, and nothing else
    for name in roles:
        text = machine.log(name).read_text()
        assert "Traceback" not in text
        assert not any(secret in text for secret in SECRETS.values())


@pytest.mark.slow
def test_an_algorithm_that_was_killed_goes_on_and_a_gateway_comes_back(machine: Machine, model: ModelServer) -> None:
    for name in ("sharpen-store", "sharpen-gateway", "sharpen-runner@1", "sharpen-algorithm"):
        machine.start(name)
    eventually(lambda: len(model.asked) >= 6)
    machine.kill("sharpen-algorithm")
    assert machine.stop("sharpen-gateway") == 143
    machine.start("sharpen-gateway")
    machine.start("sharpen-algorithm")
    told = machine.log("sharpen-algorithm").read_text
    assert machine.running["sharpen-algorithm"].wait(120) == 0, told()
    assert "resuming the run in" in told()
    found = asyncio.run(rollouts_and_spans(machine.store_file))
    assert len(found) == N_TASKS
    assert {rollout.status for rollout, _, _ in found} == {"succeeded"}
    assert all("sharpen.llm_call" in spans for _, _, spans in found)
    assert len(list((machine.state / "sharpen" / "runs").iterdir())) == 1
