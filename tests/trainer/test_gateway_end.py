"""The gateway of a run outlives the attempts that use it: whatever ends the run, none of them fails for its absence."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from sharpen import LLM, SQLiteStore, algo, llm_rollout
from sharpen.llm_proxy import LLMProxy
from sharpen.semconv import SHARPEN_LLM_CALL
from sharpen.trainer import Trainer
from tests.errors import raises
from tests.llm_proxy.scripted import Reply, ScriptedUpstream

from .scenes import until

RUN = """
import json, sys
from openai import OpenAI
from sharpen import LLM, Trainer, llm_rollout

@llm_rollout
def agent(task: int, llm: LLM) -> float:
    with OpenAI(base_url=llm.endpoint, api_key="none", max_retries=0) as client:
        for turn in range(3):
            said = {"role": "user", "content": f"{task} {turn}"}
            client.chat.completions.create(model=llm.model, messages=[said])
    return 1.0

if __name__ == "__main__":
    models = [{"name": "main", "model": "scripted", "base_url": sys.argv[1], "engine": "none"}]
    gateway = {"model_list": models, **json.loads(sys.argv[3])}
    algorithm = {"type": "Baseline", "train_split": 1}
    trainer = Trainer(strategy=json.loads(sys.argv[2]), algorithm=algorithm, llm_proxy=gateway)
    result = trainer.fit(agent, range(8), resume=sys.argv[4] if len(sys.argv) > 4 else None)
    print(result.metrics["rollouts"], result.metrics.get("failed", 0), result.metrics["reward_mean"])
"""
TWO_RUNNERS = '{"type": "cs", "n_runners": 2}'
MAIN_RUNNER = '{"type": "cs", "main_process": "runner"}'
THREADS = '{"type": "shm", "n_runners": 2, "main_thread": "algorithm"}'


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    """Answers so slowly that agents are in a call nearly all the time."""
    with ScriptedUpstream(default_reply=Reply("four", delay_seconds=0.2)) as running:
        yield running


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "run.py"
    file.write_text(RUN)
    return file


def statuses(runs: Path) -> Counter[str]:
    (folder,) = runs.iterdir()
    store = SQLiteStore(folder / "store.db")
    found = Counter(str(each.status) for each in asyncio.run(store.query_rollouts()))
    asyncio.run(store.close())
    return found


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def children_of(pid: int) -> set[int]:
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("number", "strategy", "gateway"),
    [
        (signal.SIGINT, TWO_RUNNERS, "{}"),
        pytest.param(signal.SIGTERM, TWO_RUNNERS, "{}", marks=pytest.mark.slow),
        (signal.SIGKILL, TWO_RUNNERS, "{}"),
        pytest.param(signal.SIGKILL, TWO_RUNNERS, '{"launch_mode": "thread"}', marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, TWO_RUNNERS, '{"launch_mode": "thread"}', marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, MAIN_RUNNER, "{}", marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, THREADS, "{}", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_ended_by_a_signal_fails_no_rollout_and_goes_on(
    upstream: ScriptedUpstream, script: Path, runs: Path, number: signal.Signals, strategy: str, gateway: str
) -> None:
    command = [sys.executable, str(script), upstream.base_url, strategy, gateway]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
        until(lambda: len(upstream.requests) >= 4)
        children = children_of(first.pid)
        first.send_signal(number)
    until(lambda: not any(map(is_alive, children)))
    found = statuses(runs)
    assert found["failed"] == 0, found
    assert found["queuing"] + found["requeuing"] > 0, found
    done = subprocess.run([*command, "last"], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["8", "0", "1.0"], done.stderr
    assert statuses(runs) == {"succeeded": 8}


def test_the_gateway_of_a_killed_program_serves_on_for_a_moment_and_then_frees_its_port(
    upstream: ScriptedUpstream, script: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, str(script), upstream.base_url, TWO_RUNNERS, f'{{"port": {port}}}']
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as program:
        until(lambda: len(upstream.requests) >= 4)
        children = children_of(program.pid)
        program.kill()
    killed = time.monotonic()
    asked = len(upstream.requests)
    until(lambda: len(upstream.requests) > asked)  # a call that was made after the end of the parent
    until(lambda: not is_open(port))
    with socket.create_server(("127.0.0.1", port)):
        assert 1.5 < time.monotonic() - killed < 6
    until(lambda: not any(map(is_alive, children)))
    assert time.monotonic() - killed < 10


@llm_rollout
def ask_thrice(task: str, llm: LLM) -> float:
    with OpenAI(base_url=llm.endpoint, api_key="none", max_retries=0) as client:
        for turn in range(3):
            said: Any = {"role": "user", "content": f"{task} {turn}"}
            client.chat.completions.create(model=llm.model, messages=[said])
    return 1.0


@pytest.mark.parametrize("strategy", ["shm", "cs"])
@pytest.mark.parametrize("launch_mode", ["process", "thread"])
@pytest.mark.parametrize("fails", [True, False])
def test_attempts_under_way_when_the_algorithm_ends_still_find_their_gateway(
    upstream: ScriptedUpstream, strategy: str, launch_mode: Any, fails: bool
) -> None:
    models = [{"name": "main", "model": "scripted", "base_url": upstream.base_url, "engine": "none"}]
    proxy = LLMProxy(model_list=models, launch_mode=launch_mode)

    @algo
    async def leave(store: Any) -> None:
        await store.enqueue_rollout("one", rollout_id="ro-one")
        while not upstream.requests:
            await asyncio.sleep(0.01)
        if fails:
            raise LookupError("nothing learnt")

    trainer = Trainer(algorithm=leave, llm_proxy=proxy, strategy=strategy)
    if fails:
        with raises(LookupError, "nothing learnt"):
            trainer.fit(ask_thrice)
    else:
        assert trainer.fit(ask_thrice).status == "succeeded"
    (rollout,) = asyncio.run(trainer.store.query_rollouts())
    assert (rollout.status, rollout.reward) == ("succeeded", 1.0)
    assert len(asyncio.run(trainer.store.query_spans("ro-one", name=SHARPEN_LLM_CALL))) == 3
    assert not proxy.is_running()
