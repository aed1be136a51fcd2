"""Child processes, as their parent sees them: `PythonProcess`, a fresh interpreter, and `CommandProcess`, any program.

A child has a separate session: Ctrl-C in the terminal reaches only the parent, and whatever a child has started is
killed with it. No child outlives this process, however that ends, unless it was started to do so: a Python process
notices that its socket closes, and one that cannot notice it is ended by the watcher, one small process for all of
them; each command runs under a separate watcher. `exited` is settled exactly once, when the child and its group are
gone.
"""

import abc
import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypedDict, Unpack

from ..errors import ConfigError, SharpenError
from . import watcher
from .parent import (
    FAILED,
    JOB,
    JOB_TAKEN,
    MESSAGE,
    READY,
    SIGN_OF_LIFE,
    STOP,
    Channel,
    ChannelClosed,
    ChannelError,
    Data,
    Failure,
    Frame,
    Job,
)

log = logging.getLogger(__name__)
EndStep = tuple[signal.Signals | None, float]
"""A request to end, and the seconds until the next, firmer one; None asks the child over its socket."""

MAX_OUTPUT_BYTES = 1 << 20
LAST_LINES, MAX_LAST_CHARACTERS = 20, 2_000
LAST_OUTPUT_SECONDS = 2.0  # for what is in the pipes when everybody has ended
LOOK_SECONDS = 0.5  # the most that one look at a silent child may count
PROBE_SECONDS = 0.1
LAUNCHER_SECONDS = 15.0  # for the watcher of a command to end it, beyond the grace


class ProcessError(SharpenError, RuntimeError):
    """A child process that could not be started, did not become ready in time, or ended too early."""


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


@dataclass(frozen=True)
class OrphanRule:
    """What the watcher does to a child once this process was killed: the seconds until SIGTERM and until SIGKILL.

    A later stage begins when no child of the stages before it is left.
    """

    term_seconds: float = 5.0
    kill_seconds: float = 10.0
    stage: int = 0


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


class ChildProcess(abc.ABC):
    """A child of this process, from its start to its end; for any thread. `name` is what messages call it."""

    exited: "Future[ExitReport]"
    """Settled when the child has ended and been reaped."""

    def __init__(
        self, name: str, before: Sequence[str], after: Sequence[str], files: Sequence[int], options: ChildOptions
    ) -> None:
        """Start a command with the number of a socket between `before` and `after`."""
        self.name = name
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, **options}
        outputs = given.pop("max_output_bytes", MAX_OUTPUT_BYTES), given.pop("on_line", None)
        self.stdout, self.stderr = Output(*outputs), Output(*outputs)
        """What was captured."""
        self._socket, theirs = socket.socketpair()
        try:
            with theirs:
                command = [*before, str(theirs.fileno()), *after]
                files = [theirs.fileno(), *files]
                self._process = subprocess.Popen(command, pass_fds=files, start_new_session=True, **given)
        except BaseException:
            self._socket.close()
            raise
        self.exited = Future()
        self.exited.set_running_or_notify_cancel()  # nobody who waits for it can cancel it
        self._reading = threading.Thread(target=self._read_outputs, name=f"sharpen-{name}-output", daemon=True)
        self._reading.start()

    def _start_waiting(self) -> None:
        _children.add(self)
        threading.Thread(target=self._wait, name=f"sharpen-{self.name}", daemon=True).start()

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
        self._reading.join(LAST_OUTPUT_SECONDS)  # somebody who has left the group may hold a pipe open
        self.exited.set_result(ExitReport(code, self.last_lines, failure))

    def _read_outputs(self) -> None:
        with selectors.DefaultSelector() as selector:
            for pipe, output in ((self._process.stdout, self.stdout), (self._process.stderr, self.stderr)):
                if pipe is not None:
                    selector.register(pipe, selectors.EVENT_READ, (pipe, output))
            while selector.get_map():
                for key, _ in selector.select():
                    pipe, output = key.data
                    data = os.read(key.fd, 65536)
                    output.feed(data)
                    if not data:
                        selector.unregister(pipe)
                        pipe.close()


class PythonProcess(ChildProcess):
    """A fresh interpreter that runs a module, with a channel of frames in both directions.

    The module gets the number of its socket as first argument (`Parent.inherited`).

    Args:
        module: The module to run, as `python -m` would.
        arguments: Its further arguments.
        name: What messages and threads call the child.
        files: Open files that it inherits under their numbers.
        orphan: What becomes of it if this process is killed; None lets it live.
        options: How it is started.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        name: str,
        files: Sequence[int] = (),
        orphan: OrphanRule | None = OrphanRule(),  # noqa: B008 - a frozen value
        **options: Unpack[ChildOptions],
    ) -> None:
        # -P: a file in the user's folder must not take the place of a module that the child imports at its start.
        flags = [*subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]
        options["env"] = _environment(options.get("env") or os.environ)
        super().__init__(name, [_interpreter(), *flags, "-m", module], arguments, files, options)
        self._channel = Channel(self._socket)
        self._lock, self._is_reaped = threading.Lock(), False
        self.failure: Failure | None = None
        """The exception that the child has reported."""
        self.has_job = self.has_taken_job = self.is_ready = False
        self._has_signed = self._says_debugged = False
        self._silent_seconds, self._looked_at = 0.0, time.monotonic()
        try:
            if orphan is not None:
                _watcher.add(self.pid, orphan)
        except BaseException:  # without a watcher it could outlive this process
            self.kill()
            self._process.wait()
            self._channel.close()
            raise
        self._start_waiting()

    # -- messages ------------------------------------------------------------------------------------

    def send(self, *parts: Data | memoryview, timeout: float | None = None) -> None:
        """Send a message; what the child has not taken after `timeout` seconds leaves with the next one.

        Raises:
            ChannelClosed: The child has gone.
        """
        self._channel.send(*parts, timeout=timeout)

    def receive(self, timeout: float | None = None) -> Data | None:
        """Return the next message, or None if none came in time.

        Raises:
            ChannelClosed: The child has gone, and every message was received.
            ChannelError: The child has sent something that is not a frame.
        """
        return self._receive(MESSAGE, timeout)

    def _receive(self, kind: int, timeout: float | None) -> Data | None:
        """Return the next frame of a kind, or None if none came in time; those before it are noted."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            frame = self._channel.receive(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if frame is None:
                return None
            self._note(frame)
            if frame[0] == kind:
                return frame[1]

    def send_job(self, job: Job, *, shares_outputs: bool = True) -> None:
        """Send the job; a child that has ended meanwhile does not take it. `shares_outputs` lets it write to the
        standard output and error that this process has now."""
        with contextlib.suppress(ChannelError), open(os.devnull, "wb") as null:
            outputs = [number if _is_open(number) else null.fileno() for number in (1, 2)] if shares_outputs else []
            self._channel.send(job.header(has_outputs=shares_outputs), kind=JOB, files=[*outputs, *job.files])
            self._channel.send(job.payload)
            self.has_job = True

    def wait_ready(self, timeout: float) -> Data:
        """Wait until the child reports that it is ready, and return what came with it; one that is late is ended.

        Raises:
            ProcessError: It was not ready in time, or ended before. The message holds its last output.
        """
        try:
            found = self._receive(READY, timeout)
        except ChannelError as error:
            self.kill()
            report = self.exited.result()
            if report.failure is None and not isinstance(error, ChannelClosed):
                report = dataclasses.replace(report, failure=Failure.of(error))
            raise ProcessError(f"{self.name} ended before it was ready: {report}") from error
        if found is None:
            raise self._not_ready(timeout)
        return found

    async def listen(self, on_message: Callable[[Data], None]) -> ExitReport:
        """Call `on_message` with every message until the child has ended, and return how it ended.

        A child that sends something else than frames is killed. So is one whose listener is cancelled or fails.
        """

        def on_frame(frame: Frame) -> None:
            self._note(frame)
            if frame[0] == MESSAGE:
                on_message(frame[1])

        exited, reading = asyncio.wrap_future(self.exited), asyncio.create_task(self._channel.receive_all(on_frame))
        both: list[asyncio.Future[Any]] = [exited, reading]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and not isinstance(reading.exception(), ChannelClosed):
                self.kill()
            report = await exited
        except asyncio.CancelledError:
            self.kill()
            raise
        finally:
            reading.cancel()
            (error,) = await asyncio.gather(reading, return_exceptions=True)
        if isinstance(error, Exception) and not isinstance(error, ChannelError):
            raise error
        if isinstance(error, ChannelError) and not isinstance(error, ChannelClosed):
            self.failure = self.failure or Failure.of(error)
        with contextlib.suppress(ChannelError):
            while (message := self.receive(0)) is not None:
                on_message(message)
        self.close()
        return dataclasses.replace(report, failure=self.failure)

    def _note(self, frame: Frame) -> None:
        """Note what a frame says about the child."""
        kind, data = frame
        if kind == SIGN_OF_LIFE:
            self._has_signed, self._says_debugged = True, bool(data)
        elif kind == JOB_TAKEN:
            self.has_taken_job = self._has_signed = True
        elif kind == READY:
            self.is_ready = True
        elif kind == FAILED:
            self.failure = Failure(**json.loads(data))

    def is_silent(self, seconds: float) -> bool:
        """Whether a child that shows life has given no sign for so long since it took its job.

        To be asked several times a second: only time in which this process ran counts, so a parent that was paused, or
        a machine that was suspended, says nothing about the child. A child in a debugger is never silent.
        """
        now = time.monotonic()
        self._silent_seconds += min(now - self._looked_at, LOOK_SECONDS)
        self._looked_at = now
        if self._has_signed or not self.has_taken_job:
            self._silent_seconds, self._has_signed = 0.0, False
        return self._silent_seconds >= seconds and not self._says_debugged and not is_traced(self.pid)

    # -- the end -------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        with contextlib.suppress(ChannelError):
            self._channel.send(kind=STOP, timeout=0)

    def signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._is_reaped:
                self._send_signal(number)

    def _send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if number == signal.SIGKILL else os.kill)(self.pid, number)

    def close(self) -> None:
        """Let go of the channel: a child that still runs takes it as the end of its parent."""
        _children.discard(self)
        self._channel.close()

    def discard(self) -> None:
        """Kill the child and let go of it."""
        self.kill()
        self.exited.result()
        self.close()

    def _wait(self) -> None:
        """Where the system allows it, the child is reaped last: until then its number, and so its group, is its own."""
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with self._lock:
            self._send_signal(signal.SIGKILL)
            _watcher.remove(self.pid)
            code = self._process.wait()
            self._is_reaped = True
        if (found := self._channel.take(FAILED)) is not None:
            self._note((FAILED, found))
        self._settle(code, self.failure)


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
            super().__init__(name or command[0], _watcher_command(), words, (), captured)
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


class Output:
    """What a child writes to a pipe. Of more than `max_bytes`, the beginning and the end are kept."""

    def __init__(self, max_bytes: int = MAX_OUTPUT_BYTES, on_line: Callable[[str], None] | None = None) -> None:
        self._half, self._on_line = max_bytes // 2, on_line
        self._head, self._tail, self._line = bytearray(), bytearray(), b""
        self.size_bytes = 0

    def feed(self, data: bytes) -> None:
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


class _Watcher:
    """The process that ends the children of this one if it is killed. It lives while there are children."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: dict[int, bytes] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1

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
        if self._children and self._process is not None:
            with contextlib.suppress(OSError):
                os.write(self._pipe, line)
                return
        self._stop()
        if self._children:
            self._start()

    def _start(self) -> None:
        theirs, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*_watcher_command(), str(theirs)],
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
        os.write(self._pipe, b"".join(self._children.values()))

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            os.close(self._pipe)
            self._process = None

    def abandon(self) -> None:
        """In a fork of this process: the watcher belongs to the other one."""
        if self._process is not None:
            os.close(self._pipe)
        self._lock, self._children, self._process = threading.Lock(), {}, None


_children: "weakref.WeakSet[ChildProcess]" = weakref.WeakSet()
_watcher = _Watcher()


def _abandon_all() -> None:
    """A fork of this process holds no child: otherwise children would not notice when this process has gone."""
    _watcher.abandon()
    for child in list(_children):
        if (number := child._socket.detach()) >= 0:  # closing would wait for the thread that reads from it
            os.close(number)
    _children.clear()


os.register_at_fork(after_in_child=_abandon_all)


def is_traced(pid: int) -> bool:
    """Whether a debugger such as gdb has the process; False where the system does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in status.splitlines())


def _interpreter() -> str:
    if not sys.executable:
        raise ConfigError(
            "this program does not know its Python interpreter (sys.executable), so it cannot start processes: "
            "run everything in one process"
        )
    return sys.executable


def _watcher_command() -> list[str]:
    return [_interpreter(), "-I", "-S", watcher.__file__]


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """A child finds this package where its parent found it."""
    here, before = str(Path(__file__).parents[2]), given.get("PYTHONPATH")
    return {**given, "PYTHONPATH": here + os.pathsep + before if before else here}


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
