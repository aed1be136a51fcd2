"""Every example runs as its first lines say, in an empty folder, and prints what it promises."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from sharpen import Span, SQLiteStore
from sharpen.semconv import SHARPEN_LLM_CALL

EXAMPLES = Path(__file__).parent.parent / "examples"
TESTED = {
    "apo_custom_algorithm",  # in examples/test_apo_examples.py, with the next four
    "apo_custom_algorithm_trainer",
    "apo_offline",
    "apo_real_api",
    "stand_in_model",
    "calculator_agent",  # in examples/test_calculator_agent.py
    "command_agent",  # in litagent/test_command_training.py
    "composite_strategy",
    "custom_algorithm",
    "custom_components",
    "custom_runner",
    "custom_store",
    "custom_tracer",
    "demo",  # in examples/test_demo.py
    "dev_mode",
    "few_shot_calculator",  # in algorithm/few_shot
    "few_shot_then_grpo",  # in examples/test_few_shot_then_grpo.py
    "gateway_agents_sdk",
    "gateway_anthropic",
    "gateway_langchain",
    "gateway_openai",
    "hooks",
    "local_model",
    "prompts_and_a_killed_runner",
    "rl_cartpole",  # in rl/test_rl_examples.py
    "rl_order_execution",
    "roles_apart",
    "sft_then_grpo",
    "shared_memory",
    "sql_agent",  # in examples/test_sql_agent.py
    "two_turn_calculator",  # in examples/test_two_turn_calculator.py
}


def run(
    name: str, folder: Path, *arguments: str, timeout_seconds: float = 90, **environment: str
) -> subprocess.CompletedProcess[str]:
    clean = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SHARPEN_SPOOL": str(folder / "spool")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=folder,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def the_run(folder: Path) -> Path:
    (found,) = (folder / "runs").iterdir()
    return found


def test_every_example_is_run_by_a_test() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED


@pytest.mark.parametrize("name", sorted(TESTED))
def test_every_example_opens_with_its_purpose_and_its_command(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text("utf-8")
    assert text.startswith('"""')
    assert f"python examples/{name}.py" in text.partition('"""\n\n')[0]


def test_dev_mode(tmp_path: Path) -> None:
    done = run("dev_mode", tmp_path)
    assert done.stdout == "9 rollouts, mean reward 0.78\n"
    assert "mean reward" in done.stderr
    store = SQLiteStore(the_run(tmp_path) / "store.db")
    rewards = Counter(rollout.reward for rollout in asyncio.run(store.query_rollouts(status_in=["succeeded"])))
    assert rewards == {1.0: 7, 0.0: 2}
    asyncio.run(store.close())


def test_custom_components(tmp_path: Path) -> None:
    done = run("custom_components", tmp_path)
    assert done.stdout.split("\n")[::2] == ["valley: 0.8", "lever: 0.6", "stone: 0.2", ""]
    store = SQLiteStore(tmp_path / "training.db")
    assert asyncio.run(store.statistics())["rollouts_by_status"]["succeeded"] == 6
    asyncio.run(store.close())


def test_hooks(tmp_path: Path) -> None:
    lines = run("hooks", tmp_path).stdout.splitlines()
    assert lines == [line for word in ("one", "two", "three") for line in (f"start {word}", f"end {word}: 1 spans")]


def test_custom_runner(tmp_path: Path) -> None:
    out = run("custom_runner", tmp_path).stdout
    started, took = re.findall(r"🚀 rollout (\S+) started", out), re.findall(r"rollout (\S+) took \d\.\d+ s", out)
    assert sorted(started) == sorted(took)
    assert len(set(started)) == 4


def test_shared_memory(tmp_path: Path) -> None:
    assert run("shared_memory", tmp_path).stdout == "mean reward 5.0\n"


@pytest.mark.parametrize(
    ("environment", "strategy"),
    [({}, "ClientServerExecutionStrategy"), ({"DEBUG": "1"}, "SharedMemoryExecutionStrategy")],
)
def test_composite_strategy(tmp_path: Path, environment: dict[str, str], strategy: str) -> None:
    out = run("composite_strategy", tmp_path, **environment).stdout
    assert out == f"running with {strategy}\nmean reward 4.67\n"


def test_custom_tracer(tmp_path: Path) -> None:
    assert run("custom_tracer", tmp_path).stdout == "1 ran in another process\n2 ran in another process\n"


def test_custom_store(tmp_path: Path) -> None:
    assert run("custom_store", tmp_path).stdout == "train: one\ntrain: three\nval: four\n"
    assert not (the_run(tmp_path) / "store.db").exists()


def test_custom_algorithm(tmp_path: Path) -> None:
    lines = run("custom_algorithm", tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["0.09", "0.09", "1.00", "best:"]
    assert "Answer with the word {word} and nothing else." in lines[-1]


def test_prompts_and_a_killed_runner(tmp_path: Path) -> None:
    done = run("prompts_and_a_killed_runner", tmp_path, "--tasks", "40", "--runners", "2")
    printed = " ".join(done.stdout.split())
    assert "killed with SIGKILL, with a rollout in hand" in printed
    assert "120 of 120 rollouts succeeded in 121 attempts" in printed
    assert (the_run(tmp_path) / "store.db").exists()


def test_roles_apart(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SHARPEN_SPOOL": str(tmp_path / "spool")}

    def start(role: str) -> "subprocess.Popen[str]":
        command = [sys.executable, str(EXAMPLES / "roles_apart.py"), role, "--port", port]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, **pipes)  # type: ignore[call-overload]

    with start("runner") as runner:
        try:
            with start("algorithm") as algorithm:
                out, errors = algorithm.communicate(timeout=90)
        finally:
            for _ in range(2):  # the second one does not wait for a store that has gone
                runner.send_signal(signal.SIGTERM)
                time.sleep(0.5)
        said, _ = runner.communicate(timeout=60)
    assert out.splitlines()[-1] == f"algorithm: succeeded {sum(n * n for n in range(6)) / 6}", errors
    assert sorted(said.splitlines()) == [f"the agent works on {n}" for n in range(6)]
    assert the_run(tmp_path).name.endswith("-baseline")  # one run, and one folder: that of the algorithm


async def calls_in(folder: Path) -> list[Span]:
    """What the gateway of a run recorded."""
    store = SQLiteStore(the_run(folder) / "store.db")
    rollouts = await store.query_rollouts(status_in=["succeeded"])
    found = [await store.query_spans(each.rollout_id, name=SHARPEN_LLM_CALL) for each in rollouts]
    await store.close()
    return [span for spans in found for span in spans]


@pytest.mark.slow
def test_gateway_openai(tmp_path: Path) -> None:
    first, *lines = run("gateway_openai", tmp_path).stdout.splitlines()
    assert first == "6 calls, mean reward 1.00"
    assert [line.partition("  ")[0] for line in lines] == [f"What is {a} + 25?" for a in (17, 17, 40, 40, 58, 58)]
    assert [line.partition(": ")[2] for line in lines[:2]] == ['["add", {"a": 17, "b": 25}]', "The answer is 42."]
    for span in asyncio.run(calls_in(tmp_path)):
        assert span.attributes["sharpen.llm.prompt_token_ids"]
        assert span.attributes["sharpen.llm.engine"] == "vllm"


@pytest.mark.slow
def test_gateway_anthropic(tmp_path: Path) -> None:
    done = run("gateway_anthropic", tmp_path)
    assert done.stdout.splitlines() == [
        "6 calls, $0.00081",
        *(f"What is {a} + 25?  2 calls, $0.00027" for a in (17, 40, 58)),
    ]
    assert "LLM calls: 6; tokens: 120 in, 30 out, $0.0008" in done.stderr
    reasons = [span.attributes["gen_ai.response.finish_reasons"] for span in asyncio.run(calls_in(tmp_path))]
    assert len(reasons) == 6
    assert reasons[::2] != reasons[1::2]


@pytest.mark.slow
def test_gateway_langchain(tmp_path: Path) -> None:
    lines = run("gateway_langchain", tmp_path).stdout.splitlines()
    assert lines == ["The answer is 42.", "The answer is 83.", "again, without a model: The answer is 83."]
    assert len(asyncio.run(calls_in(tmp_path))) == 4


@pytest.mark.slow
def test_gateway_agents_sdk(tmp_path: Path) -> None:
    lines = run("gateway_agents_sdk", tmp_path).stdout.splitlines()
    assert lines == [
        "6 calls, mean reward 1.00",
        *(f"What is {a} + 25? desk calculator calculator" for a in (17, 40)),
    ]
    assert len(asyncio.run(calls_in(tmp_path))) == 6


def test_local_model(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "local_model.py")]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        body = b'{"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}'
        with urllib.request.urlopen(f"{url}/chat/completions", data=body, timeout=30) as answer:
            said = json.load(answer)
        process.terminate()
    assert said["choices"][0]["message"]["content"] == "The answer is hello."


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sft_then_grpo(tmp_path: Path) -> None:
    cache = os.environ.get("SHARPEN_CACHE", str(tmp_path / "cache"))
    done = run("sft_then_grpo", tmp_path, "--quick", timeout_seconds=840, SHARPEN_CACHE=cache, OMP_NUM_THREADS="1")
    _, *lines = done.stdout.splitlines()
    assert [line[:12].strip() for line in lines] == ["before", "after SFT", "after GRPO"]
    assert all(re.match(r" +[01]\.\d\d   [01]\.\d\d to [01]\.\d\d   ", line[12:]) for line in lines)
    base = json.loads((tmp_path / "output" / "grpo" / "adapter_config.json").read_text("utf-8"))
    assert base["target_modules"]
    assert json.loads((tmp_path / "output" / "grpo" / "result.json").read_text("utf-8"))["steps"] == 1
    shutil.rmtree(tmp_path)  # the converted model alone takes 0.5 GB
