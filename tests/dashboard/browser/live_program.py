"""A real run in processes of its own, whose store serves the dashboard; a test tells it when to go on."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec

from .conftest import REPOSITORY

TOKEN = "token-of-the-live-run"
PATIENCE_SECONDS = 60.0


class LiveProgram:
    """The algorithm with the store; runners come when they are started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.dashboard = f"http://127.0.0.1:{self.port}/dashboard"
        self.run = f"{self.dashboard}/runs/live"
        self._children: list[subprocess.Popen[bytes]] = []
        self._start("algorithm")
        self.wait_until_served()

    def _start(self, role: str) -> None:
        module = "tests.dashboard.browser.programs.live_run"
        environment = {**os.environ, "SHARPEN_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
        with open(self.folder / f"{role}.output", "wb") as output:
            self._children.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, role, str(self.folder), str(self.port)],
                    cwd=REPOSITORY, env=environment, stdout=output, stderr=output, start_new_session=True,
                )
            )  # fmt: skip

    def start_runners(self) -> None:
        self._start("runner")

    def sign(self, name: str) -> None:
        (self.folder / name).touch()

    def wait_until_served(self) -> None:
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return
            output = (self.folder / "algorithm.output").read_text()
            assert self._children[0].poll() is None, output[-3000:]
            assert time.monotonic() < end, output[-3000:]
            time.sleep(0.05)

    def status_of(self, rollout_id: str) -> str:
        """As the store knows it, through the exports of the pages."""
        request = urllib.request.Request(
            f"{self.run}/rollouts/{rollout_id}.json", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return str(msgspec.json.decode(answer.read())["status"])

    def wait_for(self, rollout_id: str) -> None:
        """Until the store has it."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self.status_of(rollout_id)
                return
            except urllib.error.HTTPError as error:
                if error.code != 404 or time.monotonic() > end:
                    raise
            time.sleep(0.05)

    def stop(self) -> None:
        for child in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait(20)


@contextlib.contextmanager
def live_program(folder: Path) -> Iterator[LiveProgram]:
    started = LiveProgram(folder)
    try:
        yield started
    finally:
        started.stop()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
