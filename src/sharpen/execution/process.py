"""A child process, as its parent sees it.

A child is a fresh interpreter in a session of its own: Ctrl-C in the terminal reaches only the parent, and everything
that an agent started over there can be killed with it. Parent and child share one socket. When it closes, the other
side has gone, however it went.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from . import jobs

READ_BYTES = 65536
POLL_SECONDS = 0.05
READ_PAUSE_SECONDS = 0.05  # reports of a busy runner are read together


class ChildProcess:
    """One child that waits for its job, works, and ends."""

    def __init__(self, role: jobs.Role) -> None:
        self.role = role
        self.was_spare = False
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*_interpreter(), "-m", "sharpen.execution.child", str(theirs.fileno()), role],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # a child that waits holds nobody's pipe open
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env=_environment(),
                )
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._link = ours
        self._lock = threading.Lock()
        self._is_gone = self._has_job = False
        _ours.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def give(self, job: bytes, payload: bytes = b"", files: Sequence[int] = ()) -> None:
        """Send the job. A child that has ended meanwhile does not take it: its end tells."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            with _outputs() as outputs:
                socket.send_fds(self._link, [jobs.LENGTHS.pack(len(job), len(payload))], [*outputs, *files])
            await loop.sock_sendall(self._link, job)
            await loop.sock_sendall(self._link, payload)
            self._has_job = True

    def ask_to_stop(self) -> None:
        if not self._has_job:
            self.kill()  # it has done nothing yet
            return
        with contextlib.suppress(OSError):
            self._link.send(jobs.STOP)

    async def listen(self, hear: Callable[[dict[str, Any]], None]) -> int:
        """Give every message to `hear` until the process has ended; its exit code, as `subprocess` tells it."""
        ended = _when_ended(self)
        reading = asyncio.create_task(self._read(hear))
        try:
            code = await ended
        except asyncio.CancelledError:
            self.kill()  # nobody looks after it any more
            raise
        finally:
            reading.cancel()
            rest = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(rest[0], Exception):
            raise rest[0]
        self._drain(hear)
        self._close()
        return code

    async def _read(self, hear: Callable[[dict[str, Any]], None]) -> None:
        loop, self._rest = asyncio.get_running_loop(), b""
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(self._link, READ_BYTES):
                self._hear(data, hear)
                await asyncio.sleep(READ_PAUSE_SECONDS if data.startswith(b'{"finished"') else 0)

    def _drain(self, hear: Callable[[dict[str, Any]], None]) -> None:
        """What the child said last."""
        with contextlib.suppress(OSError):  # BlockingIOError: somebody else still holds the other end
            while data := self._link.recv(READ_BYTES):
                self._hear(data, hear)

    def _hear(self, data: bytes, hear: Callable[[dict[str, Any]], None]) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            hear(json.loads(line))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child alone."""
        with self._lock:
            if not self._is_gone:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)

    def kill(self) -> None:
        """End the child, and whatever it has started, at once."""
        with self._lock:
            if not self._is_gone and self._process.returncode is None:
                self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for the end; what the child has started ends with it."""
        self._wait_for_end()
        with self._lock:
            self._kill_group()
            code = self._process.wait()
            self._is_gone = True
        return code

    def _wait_for_end(self) -> None:
        """Where the system allows it, the child is not reaped yet: its number, and so its group, is nobody else's."""
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            return
        while self._process.poll() is None:
            time.sleep(POLL_SECONDS)

    def discard(self) -> None:
        """End a child that has no job."""
        self.kill()
        self.reap()
        self._close()

    def _close(self) -> None:
        _ours.discard(self)
        self._link.close()


_ours: "weakref.WeakSet[ChildProcess]" = weakref.WeakSet()


def _let_go_after_fork() -> None:
    """A fork of this process holds no child: otherwise its children would not notice when this process has gone."""
    for child in list(_ours):
        child._close()


os.register_at_fork(after_in_child=_let_go_after_fork)


def _when_ended(child: ChildProcess) -> "asyncio.Future[int]":
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()

    def settle(code: int) -> None:
        if not future.done():
            future.set_result(code)

    def wait() -> None:
        code = child.reap()
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(settle, code)

    threading.Thread(target=wait, name=f"sharpen-child-{child.pid}", daemon=True).start()
    return future


def _interpreter() -> list[str]:
    if not sys.executable:
        raise ConfigError("this program does not know its Python interpreter (sys.executable): use strategy='shm'")
    # -P: a file in the user's folder must not take the place of a module that the child imports at its start.
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]


def _environment() -> dict[str, str]:
    """A child finds this package where its parent found it. What the agent sees comes with the job."""
    here = str(Path(__file__).parents[2])
    before = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": here + os.pathsep + before if before else here}


@contextlib.contextmanager
def _outputs() -> Iterator[list[int]]:
    """Standard output and error of this process, as they are now; nowhere, where they are closed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        yield [number if _is_open(number) else nowhere for number in (1, 2)]
    finally:
        os.close(nowhere)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
