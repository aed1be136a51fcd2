"""Child processes, as their parent sees them: what all have in common, `CommandProcess` for any program, the watcher.

A child has a separate session: Ctrl-C in the terminal reaches only the parent, and whatever a child has started is
killed with it. No child outlives this process, however that ends, unless it was started to do so: a Python process
(`python_process.py`) notices that its socket closes, and one that cannot notice it is ended by the watcher, one small
process for all of them; each command runs under a separate watcher. `exited` is settled exactly once, when the child
and its group are gone.
"""

import abc
import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import IO, Any, TypedDict, Unpack

from ..errors import ConfigError, SharpenError, text_of
from . import watcher

log = logging.getLogger(__name__)
EndStep = tuple[signal.Signals | None, float]
"""A request to end, and the seconds until the next, firmer one; None asks the child over its socket."""

MAX_OUTPUT_BYTES = 1 << 20
LAST_LINES, MAX_LAST_CHARACTERS = 20, 2_000
LAST_OUTPUT_SECONDS = 2.0  # for what is in the pipes when everybody has ended
PROBE_SECONDS = 0.1
LAUNCHER_SECONDS = 15.0  # for the watcher of a command to end it, beyond the grace


class ProcessError(SharpenError, RuntimeError):
    """A child process that could not be started, did not become ready in time, or ended too early."""


@dataclass(frozen=True)
class Failure:
    """An exception that ended a child, or kept it from starting."""

    kind: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        return cls(type(error).__name__, text_of(error), "".join(traceback.format_exception(error)))

    @property
    def last_line(self) -> str:
        return self.traceback.strip().splitlines()[-1]


@dataclass(frozen=True)
class ExitReport:
    """How a child ended. `code` is negative for a signal, as in `subprocess`."""

    code: int
    last_lines: str = ""
    failure: Failure | None = None

    def describe(self) -> str:
        """The exit code or the signal, in words."""
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return f"killed by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"killed by signal {-self.code}"

    def __str__(self) -> str:
        words = self.last_lines if self.failure is None else self.failure.traceback.rstrip()
        hint = " (the system does this when memory runs out)" if self.code == -signal.SIGKILL else ""
        return f"{self.describe()}{hint}" + (f"; its last output:\n{words}" if words else "")


class ChildOptions(TypedDict, total=False):
    """How any child is started. `stdout` and `stderr` are what `subprocess` takes; with PIPE they are captured: of
    each, `max_output_bytes` are kept, and `on_line` is called with every line, on another thread."""

    stdin: int | IO[bytes]
    stdout: int | IO[bytes] | None
    stderr: int | IO[bytes] | None
    env: Mapping[str, str] | None
    cwd: str | os.PathLike[str] | None
    max_output_bytes: int
    on_line: Callable[[str], None] | None


class Output:
    """What a child writes to a pipe. Of more than `max_bytes`, the beginning and the end are kept."""

    def __init__(self, max_bytes: int = MAX_OUTPUT_BYTES, on_line: Callable[[str], None] | None = None) -> None:
        self._half, self._on_line = max_bytes // 2, on_line
        self._head, self._tail, self._line = bytearray(), bytearray(), b""
        self.size_bytes = 0

    def read(self, pipe: IO[bytes]) -> None:
        """Take in everything until nobody holds the pipe any more."""
        with pipe:
            while data := os.read(pipe.fileno(), 65536):
                self._feed(data)

    def _feed(self, data: bytes) -> None:
        self.size_bytes += len(data)
        if self._on_line is not None:
            *lines, rest = (self._line + data).split(b"\n")
            self._line = rest[-self._half :]
            for line in lines:
                self._on_line(line.decode("utf-8", "replace").rstrip())
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._half:  # not at every piece, since each time moves what is kept
            del self._tail[: len(self._tail) - self._half]

    @property
    def left_out_bytes(self) -> int:
        return max(self.size_bytes - len(self._head) - self._half, 0)

    @property
    def text(self) -> str:
        """What was kept, with a line in the place of what was not."""
        tail = self._tail[-self._half :]
        parts = [self._head, tail] if self.left_out_bytes else [self._head + tail]
        mark = f"\n[{self.left_out_bytes} bytes left out]\n"
        return mark.join(part.decode("utf-8", "replace") for part in parts)

    @property
    def last_lines(self) -> str:
        """The end, for a message."""
        return "\n".join(self.text[-MAX_LAST_CHARACTERS:].rstrip().splitlines()[-LAST_LINES:])


class ChildProcess(abc.ABC):
    """A child of this process, from its start to its end; for any thread. `name` is what messages call it."""

    exited: "Future[ExitReport]"
    """Settled when the child has ended and been reaped."""

    def __init__(self, name: str, before: Sequence[str], after: Sequence[str], options: ChildOptions) -> None:
        """Start a command with the number of a socket between `before` and `after`."""
        self.name = name
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, **options}
        outputs = given.pop("max_output_bytes", MAX_OUTPUT_BYTES), given.pop("on_line", None)
        self.stdout, self.stderr = Output(*outputs), Output(*outputs)
        """What was captured."""
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                number = theirs.fileno()
                command = [*before, str(number), *after]
                self._process = subprocess.Popen(command, pass_fds=[number], start_new_session=True, **given)
        except BaseException:
            self._socket.close()
            raise
        self.exited = Future()
        self.exited.set_running_or_notify_cancel()  # nobody who waits for it can cancel it
        pipes = (self._process.stdout, self.stdout), (self._process.stderr, self.stderr)
        self._reading = [self._thread(output.read, pipe) for pipe, output in pipes if pipe is not None]

    def _thread(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, name=f"sharpen-{self.name}", daemon=True)
        thread.start()
        return thread

    def _start_waiting(self) -> None:
        _children.add(self)
        self._thread(self._wait)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return not self.exited.done()

    @property
    def last_lines(self) -> str:
        """The last lines that were captured, of standard error if it has any."""
        return self.stderr.last_lines or self.stdout.last_lines

    def wait(self, timeout: float | None = None) -> ExitReport | None:
        """Wait for the end and return how the child ended, or None if it still runs."""
        try:
            return self.exited.result(timeout)
        except TimeoutError:
            return None

    def wait_until(self, is_ready: Callable[[], bool], timeout: float) -> None:
        """Ask again and again whether the child is ready; one that is not in time is ended.

        Raises:
            ProcessError: It was not ready in time, or ended before. The message holds its last output.
        """
        deadline = time.monotonic() + timeout
        while not is_ready():
            if time.monotonic() > deadline:
                raise self._not_ready(timeout)
            if (report := self.wait(PROBE_SECONDS)) is not None:
                raise ProcessError(f"{self.name} ended before it was ready: {report}")

    def _not_ready(self, timeout: float) -> ProcessError:
        self.kill()
        self.exited.result()
        words = f"; its last output:\n{self.last_lines}" if self.last_lines else ""
        return ProcessError(f"{self.name} was not ready within {timeout:g} s{words}")

    # -- the end -------------------------------------------------------------------------------------

    def end(self, *steps: EndStep) -> ExitReport:
        """Ask for the end, step by step more firmly, then kill the child with its group; return how it ended."""
        for seconds in self._escalate(steps):
            if self.wait(seconds) is not None:
                break
        return self.exited.result()

    async def end_async(self, *steps: EndStep) -> ExitReport:
        """Like `end`, without blocking the event loop."""
        exited = asyncio.wrap_future(self.exited)
        for seconds in self._escalate(steps):
            if (await asyncio.wait([exited], timeout=seconds))[0]:
                break
        return await exited

    def _escalate(self, steps: Sequence[EndStep]) -> Iterator[float]:
        """Make one request after the other, and yield how long to wait for its effect."""
        before = None
        for request, seconds in steps:
            if before is not None:
                words = "a request to stop" if request is None else request.name
                log.warning("%s has not ended within %g s: sending %s", self.name, before, words)
            if request is None:
                self.ask_to_stop()
            else:
                self.signal(request)
            yield seconds
            before = seconds
        if before is not None:
            log.warning("%s has not ended within %g s: sending SIGKILL", self.name, before)
        self.kill()

    @abc.abstractmethod
    def ask_to_stop(self) -> None:
        """Ask the child to end when it has finished what it is doing."""

    @abc.abstractmethod
    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child, if it has not ended; SIGKILL reaches its whole group."""

    def kill(self) -> None:
        """End the child, and whatever it has started, at once."""
        self.signal(signal.SIGKILL)

    @abc.abstractmethod
    def _wait(self) -> None:
        """Wait for the end, make sure that nothing is left, and settle `exited`; on a separate thread."""

    def _settle(self, code: int, failure: Failure | None = None) -> None:
        deadline = time.monotonic() + LAST_OUTPUT_SECONDS
        for reading in self._reading:  # somebody who has left the group may hold a pipe open
            reading.join(max(0.0, deadline - time.monotonic()))
        self.exited.set_result(ExitReport(code, self.last_lines, failure))


class CommandProcess(ChildProcess):
    """A command, with everything that it starts; also what leaves its process group ends with it.

    It runs under a separate watcher, which ends all of it as soon as the link to this process is shut: on request, or
    because this process has gone, however it ended. A command that cannot be started is a `ProcessError` of `exited`,
    and so of `wait`, `wait_until` and `end`.

    Args:
        command: The program and its arguments.
        name: What messages and threads call it; None is the name of the program.
        grace_seconds: What it has between SIGTERM and SIGKILL when it is asked to stop or this process has gone.
        temporary_folder: A folder of files that is removed if this process dies first.
        options: How it is started; its outputs are captured unless they say otherwise.
    """

    command_pid: int | None = None
    """The process of the command, once it has started; `pid` is that of its watcher."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str | None = None,
        grace_seconds: float = 5.0,
        temporary_folder: str | os.PathLike[str] = "",
        **options: Unpack[ChildOptions],
    ) -> None:
        self._program, self._last_step = command[0], (None, grace_seconds + LAUNCHER_SECONDS)
        words = [str(grace_seconds), os.fspath(temporary_folder), *command]
        captured: ChildOptions = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        try:
            super().__init__(name or command[0], _watcher_command(), words, captured)
        except OSError as error:
            raise self._not_started(error) from error
        self._start_waiting()

    def _not_started(self, error: OSError) -> ProcessError:
        where = f" ({error.filename})" if error.filename else ""
        return ProcessError(f"the program {self._program!r} cannot be started: {error.strerror}{where}")

    def _escalate(self, steps: Sequence[EndStep]) -> Iterator[float]:
        """Without steps: SIGTERM for everybody, SIGKILL after the grace."""
        return super()._escalate(steps or [self._last_step])

    def ask_to_stop(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            self._socket.send(b"%d\n" % number)

    def kill(self) -> None:
        super().kill()
        self.ask_to_stop()

    def _wait(self) -> None:
        said: dict[str, int] = {}
        # A command that hangs in the kernel has `ended None`.
        with contextlib.suppress(OSError, ValueError), self._socket.makefile("rb") as lines:
            for line in lines:
                word, _, number = line.decode().partition(" ")
                said[word] = int(number)
                self.command_pid = said.get("started")
        self._process.wait()
        self._socket.close()
        if "unstarted" in said:
            error = OSError(said["unstarted"], os.strerror(said["unstarted"]))
            found = self._not_started(error)
            found.__cause__ = error
            self.exited.set_exception(found)
            return
        if "ended" not in said and self.command_pid is not None:  # its watcher was killed, and the command with it
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.command_pid, signal.SIGKILL)
        self._settle(said.get("ended", -signal.SIGKILL))


# -- children of a parent that was killed ------------------------------------------------------------


@dataclass(frozen=True)
class OrphanRule:
    """What the watcher does to a child once this process was killed: the seconds until SIGTERM and until SIGKILL.

    A later stage begins when no child of the stages before it is left.
    """

    term_seconds: float = 5.0
    kill_seconds: float = 10.0
    stage: int = 0


class Watcher:
    """The process that ends the children of this one if it is killed. It lives while there are children."""

    _process: "subprocess.Popen[bytes] | None" = None

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin without children, also in a fork of this process: the watcher belongs to the other one."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        self._lock, self._process = threading.Lock(), None
        self._children: dict[int, bytes] = {}

    def add(self, pid: int, rule: OrphanRule) -> None:
        line = f"+{pid} {rule.stage} {rule.term_seconds} {rule.kill_seconds}\n".encode()
        with self._lock:
            self._children[pid] = line
            try:
                self._write(line)
            except BaseException:
                del self._children[pid]
                raise

    def remove(self, pid: int) -> None:
        with self._lock:
            if self._children.pop(pid, None) is not None:
                self._write(b"-%d\n" % pid)

    def _write(self, line: bytes) -> None:
        """Write a line to the watcher; one that has died, or does not read, is replaced."""
        if self._process is not None and self._children:
            with contextlib.suppress(OSError):
                os.write(self._pipe, line)
                return
        if self._process is not None:
            with self._process:  # closes the pipe, and waits
                self._process.kill()
            self._process = None
        if self._children:
            self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            _watcher_command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # whoever kills the group of this process does not kill it
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin.fileno()
        os.write(self._pipe, b"".join(self._children.values()))
        os.set_blocking(self._pipe, False)


def _watcher_command() -> list[str]:
    return [interpreter(), "-I", "-S", watcher.__file__]


def interpreter() -> str:
    """Return the path of the interpreter of this process."""
    if not sys.executable:
        raise ConfigError(
            "this program does not know its Python interpreter (sys.executable), so it cannot start processes: "
            "run everything in one process"
        )
    return sys.executable


_children: "weakref.WeakSet[ChildProcess]" = weakref.WeakSet()
watched = Watcher()
"""The children of this process that end with it."""


def _abandon_all() -> None:
    """A fork of this process holds no child: otherwise children would not notice when this process has gone."""
    watched.forget()
    for child in list(_children):
        if (number := child._socket.detach()) >= 0:  # closing would wait for the thread that reads from it
            os.close(number)
    _children.clear()


os.register_at_fork(after_in_child=_abandon_all)
