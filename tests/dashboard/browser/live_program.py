"""A real run in processes of its own, whose store serves the dashboard; a test tells it when to go on."""

import contextlib
import os
import re
import signal
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
        self._log = folder / "live" / "run.log"
        self._children: list[subprocess.Popen[bytes]] = []
        self._start("algorithm")
        try:
            self.port = self._served_port()
        except BaseException:
            self.stop()
            raise
        self.dashboard = f"http://127.0.0.1:{self.port}/dashboard"
        self.run = f"{self.dashboard}/runs/live"

    def _start(self, role: str, *port: str) -> None:
        module = "tests.dashboard.browser.programs.live_run"
        environment = {**os.environ, "SHARPEN_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
        with open(self.folder / f"{role}.output", "wb") as output:
            self._children.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, role, str(self.folder), *port],
                    cwd=REPOSITORY, env=environment, stdout=output, stderr=output, start_new_session=True,
                )
            )  # fmt: skip

    def start_runners(self) -> None:
        self._start("runner", self.port)

    def sign(self, name: str) -> None:
        (self.folder / name).touch()

    def _served_port(self) -> str:
        """The free port that the program has taken, once it answers there."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            with contextlib.suppress(OSError):
                named = re.search(r"runners connect to http://127\.0\.0\.1:(\d+)", self._log.read_text())
                if named is not None:
                    urllib.request.urlopen(f"http://127.0.0.1:{named[1]}/health", timeout=5).close()
                    return named[1]
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

    def wait_for(self, rollout_id: str, status: str | None = None) -> None:
        """Until the store has it, and in this status where one is given."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                found = self.status_of(rollout_id)
                if status in (None, found):
                    return
                assert time.monotonic() < end, f"{rollout_id} is {found}"
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
