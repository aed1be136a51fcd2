"""A worker process of a vector environment, and the messages between both.

A worker is a new interpreter in a separate session. It never runs the user's script: what it needs is sent with
cloudpickle over a socket that it inherits. Ctrl-C reaches only the trainer, and whatever a simulator has started ends
with the worker.

A message is a header, rows of fixed size that both sides know, and for what is rare a pickled rest. It is sent and
received with one system call each. When the socket closes, the other side has ended, for whatever reason.
"""

import contextlib
import io
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ConfigError, EpisodeError, TransportError, WorkerDiedError
from ..logging import LogSettings, current_settings
from .env_set import Note, Settings
from .trees import Array

END_SECONDS = 3.0  # for closing the environments of a worker
HEADER = struct.Struct("<QB")  # bytes of the rest, kind
ROUND, OPEN, DONE, FAILED = range(4)
BUFFER_BYTES = 1 << 20  # a round of small rows never waits for the reader


class WorkerProcess:
    """One worker, from its start to its end."""

    def __init__(self, number: int, shared: int | None) -> None:
        self.number = number
        ours, theirs = socket.socketpair()
        files = [theirs.fileno()] if shared is None else [theirs.fileno(), shared]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*_interpreter(), "-m", "sharpen.rl.worker", *map(str, files)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=files,
                    start_new_session=True,
                    env=_environment(),
                )
            except BaseException:
                ours.close()
                raise
        self.link = Link(ours)
        _workers.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send_work(self, work: bytes) -> None:
        """Send a worker its environments, with what it takes over from this process."""
        log = current_settings()
        job = Job(list(sys.path), os.getcwd(), dict(os.environ), list(sys.argv), log, work)
        self.send(0, pickle.dumps(job))

    def send(self, kind: int, rest: bytes = b"") -> None:
        try:
            self.link.send(kind, rest)
        except LinkClosed:
            raise self._death() from None

    def receive(self) -> list[Note]:
        """Return the notes of a round; an error of the worker is raised here, with its traceback."""
        try:
            kind, rest = self.link.receive()
        except LinkClosed:
            raise self._death() from None
        if kind == FAILED:
            raise self._failure(rest)
        notes: list[Note] = pickle.loads(rest) if rest else []
        return notes

    def _failure(self, rest: bytes) -> EpisodeError:
        message, trace, packed = pickle.loads(rest)
        error = EpisodeError(f"{message}\n\nTraceback of worker {self.number} (process {self.pid}):\n{trace}")
        with contextlib.suppress(Exception):  # an error that cannot be unpickled is in the traceback
            error.__cause__ = pickle.loads(packed)
        return error

    def _death(self) -> WorkerDiedError:
        self.end()
        return WorkerDiedError(f"worker {self.number} (process {self.pid}) {_describe_exit(self._process.returncode)}")

    def hang_up(self) -> None:
        """Close the connection, on which the worker ends by itself."""
        self.link.close()
        _workers.discard(self)

    def end(self) -> None:
        """Wait for the end of the worker; kill it and whatever it has started if that takes too long."""
        if self._process.returncode is None:
            has_ended(self.pid, END_SECONDS)
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        """Kill the worker and whatever it has started."""
        self.hang_up()
        # Until the worker is reaped its pid is not reused, so this kills its own process group.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def has_ended(pid: int, seconds: float) -> bool:
    """Wait for the end of a child without reaping it; return False after `seconds`."""
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError), os.fdopen(os.pidfd_open(pid)) as handle:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
    end = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "no longer answers"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", perhaps because memory ran out" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


_workers: "weakref.WeakSet[WorkerProcess]" = weakref.WeakSet()


def _close_after_fork() -> None:
    """Close the sockets in a fork: with them open, workers would not notice the end of this process."""
    for worker in list(_workers):
        worker.link.close()


os.register_at_fork(after_in_child=_close_after_fork)


def _interpreter() -> list[str]:
    if not sys.executable:
        raise ConfigError("sys.executable is empty, so no worker process can be started: use 'dummy'")
    # -P: a file in the user's folder must not shadow a module that the worker imports at its start.
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]


def _environment() -> dict[str, str]:
    """Return the environment of a worker: it imports this package from here, and its small arrays need one thread."""
    here, before = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")
    path = here + os.pathsep + before if before else here
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}


# -- messages ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """What a worker needs before it can unpickle the user's objects."""

    path: list[str]
    folder: str
    environment: dict[str, str]
    arguments: list[str]
    log: LogSettings
    work: bytes


@dataclass(frozen=True)
class Work:
    """The environments of a worker: rows `start` to `stop` of n."""

    number: int
    observation_space: Any
    action_space: Any
    n: int
    start: int
    stop: int
    factories: list[Any]


@dataclass(frozen=True)
class Opening:
    """The start of a collection; `entropy` seeds the global random numbers of the worker."""

    settings: Settings
    entropy: tuple[int, ...]


def pack(work: Work, seeds: object) -> bytes:
    """Return a worker's environments as bytes. Their seeds are left out: they are sent with each episode."""
    import cloudpickle  # type: ignore[import-untyped]

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, thing: Any) -> str | None:
            return "seeds" if thing is seeds and seeds is not None else None

    file = io.BytesIO()
    try:
        Packer(file).dump(work)
    except Exception as error:
        raise TransportError(
            f"the environment cannot be sent to a worker process: {type(error).__name__}: {error}; "
            "create what cannot be pickled inside the simulator, or use finite_env_type='dummy'"
        ) from error
    return file.getvalue()


def unpack(data: bytes) -> Work:
    """Return the environments, in the worker."""

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Sequence[Any]:
            return ()

    work: Work = Unpacker(io.BytesIO(data)).load()
    return work


class LinkClosed(ConnectionError):
    """The other side has closed the connection."""


class Link:
    """One end of the socket."""

    def __init__(self, end: socket.socket) -> None:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._end = end
        self._header = bytearray(HEADER.size)
        self._sent: list[memoryview] = []
        self._received: list[memoryview] = [memoryview(self._header)]
        self._received_bytes = HEADER.size

    def fix(self, *, sent: Sequence[Array], received: Sequence[Array]) -> None:
        """Let every further message carry these arrays: `sent` is sent along, `received` is written to."""
        self._sent = [_bytes_of(array) for array in sent if array.nbytes]
        self._received = [memoryview(self._header), *(_bytes_of(array) for array in received if array.nbytes)]
        self._received_bytes = sum(view.nbytes for view in self._received)

    def fileno(self) -> int:
        return self._end.fileno()

    def send(self, kind: int, rest: bytes = b"") -> None:
        parts: list[Any] = [HEADER.pack(len(rest), kind), *self._sent]
        if rest:
            parts.append(rest)
        try:
            sent = self._end.sendmsg(parts)
            if sent < sum(len(part) for part in parts):
                self._end.sendall(b"".join(parts)[sent:])
        except OSError as error:
            raise LinkClosed(f"connection closed: {error}") from None

    def receive(self) -> tuple[int, bytes]:
        """Return the kind and the rest; the rows are in their arrays."""
        try:
            got = self._end.recvmsg_into(self._received)[0]
            while 0 < got < self._received_bytes:
                more = self._end.recvmsg_into(_after(self._received, got))[0]
                got = got + more if more else 0
            if got == 0:
                raise LinkClosed("connection closed")
            size, kind = HEADER.unpack(self._header)
            return kind, self._read(size) if size else b""
        except OSError as error:
            raise LinkClosed(f"connection closed: {error}") from None

    def _read(self, size: int) -> bytes:
        data, got = bytearray(size), 0
        view = memoryview(data)
        while got < size:
            more = self._end.recv_into(view[got:])
            if not more:
                raise LinkClosed("connection closed")
            got += more
        return bytes(data)

    def close(self) -> None:
        self._end.close()


def _bytes_of(array: Array) -> memoryview:
    buffer: Any = array
    return memoryview(buffer).cast("B")


def _after(views: Sequence[memoryview], got: int) -> list[memoryview]:
    """Return what is left of some views after the first `got` bytes."""
    left = []
    for view in views:
        if got < view.nbytes:
            left.append(view[got:])
        got = max(0, got - view.nbytes)
    return left
