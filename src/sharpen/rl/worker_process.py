"""A worker process, as the vector environment sees it.

It is a fresh interpreter in a session of its own that never runs the user's script: what it needs travels with
cloudpickle over the inherited socket. Ctrl-C reaches only the trainer, and whatever a simulator started over there
ends with the worker.
"""

import contextlib
import io
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError, EpisodeError, TransportError, WorkerDiedError
from .env_set import Note
from .worker_link import FAILED, Job, Link, LinkClosed, Work, surroundings

END_SECONDS = 3.0  # for closing the environments of a worker


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
        _ours.add(self)

    @property
    def pid(self) -> int:
        return self._process.pid

    def give(self, work: bytes) -> None:
        self.send(0, pickle.dumps(Job(**surroundings(), work=work)))

    def send(self, kind: int, rest: bytes = b"") -> None:
        try:
            self.link.send(kind, rest)
        except LinkClosed:
            raise self._death() from None

    def receive(self) -> list[Note]:
        """The notes of a round; an error over there is raised here, with its traceback."""
        try:
            kind, rest = self.link.receive()
        except LinkClosed:
            raise self._death() from None
        if kind == FAILED:
            raise self._failure(rest)
        notes: list[Note] = pickle.loads(rest) if rest else []
        return notes

    def _failure(self, rest: bytes) -> EpisodeError:
        words, trace, packed = pickle.loads(rest)
        error = EpisodeError(f"{words}\n\nThe traceback of worker {self.number} (process {self.pid}):\n{trace}")
        with contextlib.suppress(Exception):  # an error that cannot travel is shown by its traceback
            error.__cause__ = pickle.loads(packed)
        return error

    def _death(self) -> WorkerDiedError:
        self.end()
        return WorkerDiedError(f"worker {self.number} (process {self.pid}) {_how_it_ended(self._process.returncode)}")

    def hang_up(self) -> None:
        """Let the worker end by itself."""
        self.link.close()
        _ours.discard(self)

    def end(self) -> None:
        """Wait for the end, and see to it, also of whatever the worker has started."""
        if self._process.returncode is None:
            has_ended(self.pid, END_SECONDS)
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        """End the worker, and whatever it has started, at once."""
        self.hang_up()
        # Until it is reaped, its number belongs to nobody else: the group that is killed is its own.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def has_ended(pid: int, seconds: float) -> bool:
    """Wait for the end of a child without reaping it; False when the time is over."""
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


def _how_it_ended(code: int | None) -> str:
    if code is None:
        return "does not answer any more"
    if code >= 0:
        return f"ended by itself with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"


_ours: "weakref.WeakSet[WorkerProcess]" = weakref.WeakSet()


def _let_go_after_fork() -> None:
    """A fork of this process holds no worker: otherwise they would not notice when this process has gone."""
    for worker in list(_ours):
        worker.link.close()


os.register_at_fork(after_in_child=_let_go_after_fork)


def _interpreter() -> list[str]:
    if not sys.executable:
        raise ConfigError("this program does not know its Python interpreter (sys.executable): use 'dummy'")
    # -P: a file in the user's folder must not take the place of a module that the worker imports at its start.
    return [sys.executable, *subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]


def _environment() -> dict[str, str]:
    """A worker finds this package where its parent found it, and its small arrays need one thread."""
    here, before = str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")
    path = here + os.pathsep + before if before else here
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path}


def pack(work: Work, seeds: object) -> bytes:
    """The environments of a worker as bytes. Their seeds stay here: they are given out with each episode."""
    import cloudpickle  # type: ignore[import-untyped]

    class Packer(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, thing: Any) -> str | None:
            return "seeds" if thing is seeds and seeds is not None else None

    file = io.BytesIO()
    try:
        Packer(file).dump(work)
    except Exception as error:
        raise TransportError(
            f"the environment cannot travel to a worker process: {type(error).__name__}: {error}; "
            "create what cannot be pickled inside the simulator, or use finite_env_type='dummy'"
        ) from error
    return file.getvalue()


def unpack(data: bytes) -> Work:
    """The environments, in the worker."""

    class Unpacker(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Sequence[Any]:
            return ()

    work: Work = Unpacker(io.BytesIO(data)).load()
    return work
