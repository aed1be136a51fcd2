"""`sharpen runner` when the store that it works for goes away."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .projects import write

URL = "http://127.0.0.1:{port}"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Starts `sharpen ...`; its errors go to a file of the name that is given."""
    started: list[subprocess.Popen[str]] = []
    environment = {**os.environ, "SHARPEN_RUNS": str(tmp_path / "runs"), "XDG_STATE_HOME": str(tmp_path / "state")}

    def begin(name: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "sharpen.cli", *arguments]
        with open(tmp_path / name, "w") as errors:
            process = subprocess.Popen(command, stdout=errors, stderr=errors, text=True, env=environment, cwd=tmp_path)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def said(file: Path, words: str, *, seconds: float = 30.0) -> bool:
    end = time.monotonic() + seconds
    while words not in file.read_text():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
def test_a_runner_says_that_its_store_is_gone_and_ends_at_once(
    start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    config = str(write(tmp_path / "project"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = start("store.txt", "store", "serve", str(tmp_path / "store.db"), "--port", str(port))
    runner = start("runner.txt", "runner", config, "--store", f"http://127.0.0.1:{port}")
    told = tmp_path / "runner.txt"
    assert said(told, "connected to the store"), told.read_text()
    store.send_signal(signal.SIGINT)
    store.wait(30)
    assert said(told, f"the store at http://127.0.0.1:{port} is not responding", seconds=10)
    began = time.monotonic()
    runner.send_signal(signal.SIGINT)
    assert runner.wait(30) == 130
    assert time.monotonic() - began < 3.0, told.read_text()
    assert "did not stop within" not in told.read_text()
