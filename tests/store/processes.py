"""Real processes for tests: a store server that can be killed, children that run a piece of Python, conditions."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .scenes import PATIENCE_SECONDS


def free_port() -> int:
    """A port that nobody listens on, for a server that comes back under the same address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def eventually(is_true: Callable[[], object], *, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the condition holds."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, f"this did not become true within {seconds:g} s"
        await asyncio.sleep(0.01)


class Child:
    """A process of its own that talks to the test by lines; it never outlives the test."""

    def __init__(self, *arguments: str | Path, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", *map(str, arguments)],  # a folder beside the script may be called as a package is
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def read(self) -> str:
        """The next line that the process printed."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    async def hear(self) -> str:
        """The same without holding up the loop."""
        return await asyncio.to_thread(self.read)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL: the process gets no chance to put anything in order."""
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        code = self._process.wait(PATIENCE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        return code


@contextmanager
def child(*arguments: str | Path, **environment: str) -> Iterator[Child]:
    """A child process that is gone when the block ends."""
    process = Child(*arguments, **environment)
    try:
        yield process
    finally:
        process.kill()


class ServerProcess:
    """`python -m sharpen.store FILE --port PORT`, which can be killed and started again.

    A URL may carry a password, and goes through the environment.
    """

    def __init__(self, database: Path | str) -> None:
        self.database = database
        self.port = free_port()
        self._child: Child | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    async def start(self) -> None:
        """Start it and wait until it answers."""
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        place, port = self.database, ("--port", str(self.port))
        if isinstance(place, Path):
            self._child = Child("-m", "sharpen.store", place, *port)
        else:
            self._child = Child("-m", "sharpen.store", *port, SHARPEN_DATABASE_URL=place)
        assert self._child.read() == self.url

    def kill(self) -> None:
        """SIGKILL it, if it runs."""
        if self._child is not None:
            self._child.kill()

    async def stop(self) -> int:
        """SIGTERM it; its exit code."""
        assert self._child is not None
        self._child.send(signal.SIGTERM)
        return await asyncio.to_thread(self._child.wait)


@contextmanager
def server_process(database: Path | str) -> Iterator[ServerProcess]:
    """A server process that is gone when the block ends; it is not started yet."""
    server = ServerProcess(database)
    try:
        yield server
    finally:
        server.kill()
