"""A child process, as its parent sees it.

A child is a fresh interpreter in a session of its own: Ctrl-C in the terminal reaches only the parent, and everything
that an agent started over there can be killed with it. Parent and child share one socket. When it closes, the other
side has gone, however it went. A child that cannot notice it is ended by a watcher: one small process for all
children of this one.
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
# What runners are given once this process was killed: to finish what they have in hand, and until they are killed.
ORPHAN_TERM_SECONDS, ORPHAN_KILL_SECONDS = 5.0, 10.0


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
                self._have_watched()
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        self._link = ours
        self._lock = threading.Lock()
        self._is_gone = self._has_job = False
        _ours.add(self)

    def _have_watched(self) -> None:
        """A child that no watcher knows could outlive this process, so it ends at once."""
        try:
            _watcher.add(self.pid, self.role)
        except BaseException:
            self._kill_group()
            self._process.wait()
            raise

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
            _watcher.remove(self.pid)
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


class _Watcher:
    """The process that ends the children of this one if it is killed. It lives while there are children."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: dict[int, jobs.Role] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def add(self, pid: int, role: jobs.Role) -> None:
        with self._lock:
            self._children[pid] = role
            try:
                self._tell(f"+{pid} {role}\n")
            except BaseException:
                del self._children[pid]
                raise

    def remove(self, pid: int) -> None:
        with self._lock:
            if self._children.pop(pid, None) is not None:
                self._tell(f"-{pid}\n")

    def _tell(self, line: str) -> None:
        """A watcher that has died, or does not read, is replaced."""
        if not self._children:
            self._stop()
            return
        try:
            if self._process is not None:
                os.write(self._pipe, line.encode())
                return
        except OSError:
            self._stop()
        self._start()

    def _start(self) -> None:
        theirs, self._pipe = os.pipe()
        try:
            seconds = map(str, (ORPHAN_TERM_SECONDS, ORPHAN_KILL_SECONDS))
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("watcher.py")), str(theirs), *seconds],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs],
                start_new_session=True,  # whoever kills the group of this process does not kill it
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(theirs)
        os.set_blocking(self._pipe, False)
        for pid, role in self._children.items():
            os.write(self._pipe, f"+{pid} {role}\n".encode())

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            os.close(self._pipe)
            self._process = None

    def forget(self) -> None:
        """In a fork of this process: the watcher belongs to the other one."""
        if self._process is not None:
            os.close(self._pipe)
        self._lock, self._children, self._process = threading.Lock(), {}, None


_ours: "weakref.WeakSet[ChildProcess]" = weakref.WeakSet()
_watcher = _Watcher()


def _let_go_after_fork() -> None:
    """A fork of this process holds no child: otherwise its children would not notice when this process has gone."""
    _watcher.forget()
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
