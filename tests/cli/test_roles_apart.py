"""`sharpen algorithm` and `sharpen runner`: one training in several processes."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharpen.cli import main
from sharpen.runs import RunFolder

CONFIG = """\
agent: agent.py:squares
algorithm: Baseline
train_dataset: [1, 2, 3, 4]
val_dataset: [5]
n_runners: 2
"""
AGENT = "def squares(task: int) -> float:\n    return float(task**2)\n"

Text = pytest.CaptureFixture[str]


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "config.yaml").write_text(CONFIG)
    return str(tmp_path / "config.yaml")


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def runner(config: str, port: int, tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    url = f"http://127.0.0.1:{port}"
    process = start(tmp_path, "runner", config, "--store", url, "--n-runners", "1")
    yield process
    process.kill()
    process.communicate()


def start(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "SHARPEN_RUNS": str(folder / "runs"), "XDG_STATE_HOME": str(folder / "state")}
    return subprocess.Popen(
        [sys.executable, "-m", "sharpen.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
    )


def ended(process: "subprocess.Popen[str]", number: int) -> int:
    process.send_signal(number)
    process.communicate(timeout=30)
    return process.returncode


@pytest.mark.slow
def test_the_algorithm_serves_the_store_of_its_run_to_a_runner(
    config: str, port: int, tmp_path: Path, runner: "subprocess.Popen[str]"
) -> None:
    algorithm = start(tmp_path, "algorithm", config, "--port", str(port), "--json")
    out, told = algorithm.communicate(timeout=60)
    assert algorithm.returncode == 0, told
    found = json.loads(out)
    assert found["metrics"]["reward_mean"] == 11.0
    assert [(each["mode"], each["mean"]) for each in found["scores"]] == [("val", 25.0), ("train", 7.5)]
    assert (Path(found["run_dir"]) / "store.db").is_file()
    assert (Path(found["run_dir"]) / "train.yaml").is_file()
    assert ended(runner, signal.SIGINT) == 130


def test_an_algorithm_takes_a_free_port_where_0_is_asked_for(config: str, tmp_path: Path) -> None:
    """Ctrl-C ends it, as no runner comes."""
    algorithm = start(tmp_path, "algorithm", config, "--port", "0")
    try:
        assert algorithm.stderr is not None
        told = ""
        while "http://127.0.0.1:" not in told:
            assert algorithm.poll() is None, told
            told = algorithm.stderr.readline()
        assert ":4747" not in told
        assert ended(algorithm, signal.SIGINT) == 130
    finally:
        algorithm.kill()
        algorithm.communicate()


@pytest.mark.slow
def test_an_algorithm_waits_for_its_store_and_outlives_it(
    config: str, port: int, tmp_path: Path, runner: "subprocess.Popen[str]"
) -> None:
    """Every server brings a token of its own, which all of them find."""
    algorithm = start(tmp_path, "algorithm", config, "--store", f"http://127.0.0.1:{port}", "--json")
    assert algorithm.stderr is not None
    while "waiting for a store server" not in algorithm.stderr.readline():
        assert algorithm.poll() is None
    serving = ("store", "serve", str(tmp_path / "shared.db"), "--port", str(port), "--json")
    first = start(tmp_path, *serving)
    while "starting the run" not in algorithm.stderr.readline():
        assert algorithm.poll() is None
    first.kill()
    first.communicate()
    second = start(tmp_path, *serving)
    out, told = algorithm.communicate(timeout=60)
    assert algorithm.returncode == 0, told
    assert json.loads(out)["metrics"]["reward_mean"] == 11.0
    assert ended(second, signal.SIGTERM) == 143


@pytest.mark.slow
def test_both_roles_work_with_a_store_that_outlives_them(
    config: str, port: int, tmp_path: Path, runner: "subprocess.Popen[str]"
) -> None:
    store = start(tmp_path, "store", "serve", str(tmp_path / "shared.db"), "--port", str(port), "--json")
    assert store.stdout is not None
    url = json.loads(store.stdout.readline())["url"]
    for _ in range(2):  # a second algorithm finds the same runner
        algorithm = start(tmp_path, "algorithm", config, "--store", url)
        out, told = algorithm.communicate(timeout=60)
        assert algorithm.returncode == 0, told
        assert "val/reward_mean: 25" in out
        assert "sharpen runs show " in out
    assert ended(runner, signal.SIGTERM) == 143
    assert ended(store, signal.SIGTERM) == 143


def test_a_runner_needs_an_address_that_it_can_reach(config: str, capsys: Text) -> None:
    assert main(["runner", config, "--store", "https://store.example"]) == 2
    assert "https://store.example" in capsys.readouterr().err
    assert main(["runner", config, "--store", "127.0.0.1:4747"]) == 2
    assert "such as http://127.0.0.1:4747" in capsys.readouterr().err
    assert main(["runner", config, "--n-runners", "0"]) == 2
    assert "n_runners is 0" in capsys.readouterr().err


def test_an_algorithm_without_a_store_points_to_the_one_that_is_served(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Text
) -> None:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["algorithm", config, "--port", str(taken.getsockname()[1])]) == 1
    assert "--store" in capsys.readouterr().err


def test_an_algorithm_has_one_store(config: str, capsys: Text) -> None:
    assert main(["algorithm", config, "--store", "http://127.0.0.1:4747", "--port", "1"]) == 2
    assert "--host and --port" in capsys.readouterr().err


def test_an_algorithm_goes_on_with_a_run_of_agents_only(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Text
) -> None:
    monkeypatch.setenv("SHARPEN_RUNS", str(tmp_path / "runs"))
    simulated = RunFolder.create(run_dir=tmp_path / "runs" / "simulated")
    simulated.write_config({"kind": "simulator", "components": {}})
    simulated.release()
    assert main(["algorithm", config, "--resume", "last"]) == 3
    assert "kind 'agents'" in capsys.readouterr().err


def test_roles_are_for_agents(tmp_path: Path, capsys: Text) -> None:
    (tmp_path / "config.yaml").write_text("kind: fine-tuning\nmodel: x\n")
    for role in ("runner", "algorithm"):
        assert main([role, str(tmp_path)]) == 2
        assert "config.yaml" in capsys.readouterr().err
