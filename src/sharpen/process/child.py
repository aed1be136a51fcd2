"""Child processes, as their parent sees them: what all have in common, and `PythonProcess`.

A child has a session of its own: Ctrl-C in the terminal reaches only the parent, and whatever a child has started is
killed with it. No child outlives this process, however that ends, unless it was started to do so: a Python process
notices that its socket closes, and one that cannot notice it is ended by the watcher, one small process for all of
them; a command runs under a launcher. `exited` is settled exactly once, when the child and its group are gone.
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
from . import channel as frames, watcher
from .channel import Channel, ChannelClosed, ChannelError, Data, Frame
from .parent import Failure, Job

log = logging.getLogger(__name__)
EndStep = tuple[signal.Signals | None, float]
"""A request to end, and the seconds until the next, firmer one; None asks the child over its socket."""

MAX_OUTPUT_BYTES = 1 << 20
LAST_LINES, MAX_LAST_CHARACTERS = 20, 2_000
LAST_OUTPUT_SECONDS = 2.0  # for what is in the pipes when everybody has ended
BUSY_SECONDS, BUSY_MESSAGES = 0.05, 20  # after so many in quick succession, messages are received together
LOOK_SECONDS = 0.5  # the most that one look at a silent child may count
PROBE_SECONDS = 0.1


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

    A later stage begins when nobody of the stages before it is left.
    """

    term_seconds: float = 5.0
    kill_seconds: float = 10.0
    stage: int = 0


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
        head, tail = (bytes(each).decode("utf-8", "replace") for each in (self._head, self._tail[-self._half :]))
        return f"{head}\n[{self.left_out_bytes} bytes left out]\n{tail}" if self.left_out_bytes else head + tail

    @property
    def last_lines(self) -> str:
        """The end, for a message."""
        return "\n".join(self.text[-MAX_LAST_CHARACTERS:].rstrip().splitlines()[-LAST_LINES:])


class ChildOptions(TypedDict, total=False):
    """How any child is started. `stdout` and `stderr` are what `subprocess` takes; with PIPE they are captured."""

    stdin: int | IO[bytes]
    stdout: int | IO[bytes] | None
    stderr: int | IO[bytes] | None
    env: Mapping[str, str] | None
    cwd: str | os.PathLike[str] | None


class ChildProcess(abc.ABC):
    """A child of this process, from its start to its end; for any thread. `name` is what messages call it.

    Of a captured output, `max_output_bytes` are kept, and `on_line` is called with every line, on another thread.
    """

    exited: "Future[ExitReport]"
    """Settled when the child has ended and been reaped."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        files: Sequence[int],
        options: ChildOptions,
        *,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        given: ChildOptions = {"stdin": subprocess.DEVNULL, **options}
        self._process = subprocess.Popen(command, pass_fds=files, start_new_session=True, **given)
        self._lock = threading.Lock()
        self._is_reaped = False
        self.exited = Future()
        self.exited.set_running_or_notify_cancel()  # nobody who waits for it can cancel it
        self.stdout, self.stderr = (Output(max_output_bytes, on_line) for _ in range(2))
        """What was captured."""
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
            if self.exited.done():
                raise
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
                log.warning("%s has not ended within %g s: sending %s", self.name, before, _request_name(request))
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
        """Send a signal to the child, if it has not ended."""

    @abc.abstractmethod
    def kill(self) -> None:
        """End the child, and whatever it has started, at once."""

    @abc.abstractmethod
    def abandon(self) -> None:
        """In a fork of this process: the child belongs to the other one."""

    # -- what its threads do -------------------------------------------------------------------------

    @abc.abstractmethod
    def _wait(self) -> None:
        """Wait for the end, see to it that nothing is left, and settle `exited`."""

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
        max_output_bytes: How much of a captured output is kept.
        on_line: Called, on another thread, with every line of a captured output.
        options: How it is started.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        name: str,
        files: Sequence[int] = (),
        orphan: OrphanRule | None = OrphanRule(),  # noqa: B008 - a frozen value
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        on_line: Callable[[str], None] | None = None,
        **options: Unpack[ChildOptions],
    ) -> None:
        ours, theirs = socket.socketpair()
        # -P: a file in the user's folder must not take the place of a module that the child imports at its start.
        flags = [*subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]
        command = [interpreter(), *flags, "-m", module, str(theirs.fileno()), *arguments]
        options["env"] = _environment(options.get("env") or os.environ)
        files = [theirs.fileno(), *files]
        with theirs, closed_on_error(ours):
            super().__init__(name, command, files, options, max_output_bytes=max_output_bytes, on_line=on_line)
            self._have_watched(orphan)
        self._channel = Channel(ours)
        self.failure: Failure | None = None
        """The exception that the child has reported."""
        self.has_job = self.has_taken_job = self.is_ready = False
        self._has_signed = self._says_debugged = False
        self._silent_seconds, self._looked_at = 0.0, time.monotonic()
        self._start_waiting()

    def _have_watched(self, orphan: OrphanRule | None) -> None:
        """A child that the watcher does not know could outlive this process, so it ends at once."""
        try:
            if orphan is not None:
                _watcher.add(self.pid, orphan)
        except BaseException:
            self._kill_group()
            self._process.wait()
            raise

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
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            frame = self._channel.receive(None if deadline is None else max(0.0, deadline - time.monotonic()))
            if frame is None:
                return None
            if (message := self._handle(frame)) is not None:
                return message

    def send_job(self, job: Job, *, shares_outputs: bool = True) -> None:
        """Send the job; a child that has ended meanwhile does not take it. `shares_outputs` lets it write to the
        standard output and error that this process has now."""
        with contextlib.suppress(ChannelError), _outputs(shares_outputs) as outputs:
            self._channel.send(job.header(has_outputs=bool(outputs)), kind=frames.JOB, files=[*outputs, *job.files])
            self._channel.send(job.payload)
            self.has_job = True

    def wait_ready(self, timeout: float) -> Data:
        """Wait for the child's word that it is ready, and return what came with it; one that is late is ended.

        Raises:
            ProcessError: It was not ready in time, or ended before. The message holds its last output.
        """
        deadline = time.monotonic() + timeout
        try:
            while (frame := self._channel.receive(max(0.0, deadline - time.monotonic()))) is not None:
                self._handle(frame)
                if frame[0] == frames.READY:
                    return frame[1]
        except ChannelError as error:
            self.kill()
            report = self.exited.result()
            if report.failure is None and not isinstance(error, ChannelClosed):
                report = dataclasses.replace(report, failure=Failure.of(error))
            raise ProcessError(f"{self.name} ended before it was ready: {report}") from error
        raise self._not_ready(timeout)

    async def listen(self, on_message: Callable[[Data], None]) -> ExitReport:
        """Call `on_message` with every message until the child has ended, and return how it ended.

        A child that sends something else than frames is killed. So is one whose listener is cancelled or fails.
        """
        exited, reading = asyncio.wrap_future(self.exited), asyncio.create_task(self._receive_all(on_message))
        both: list[asyncio.Future[Any]] = [exited, reading]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and reading.exception() is not None:
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
        if isinstance(error, ChannelError):
            self.failure = self.failure or Failure.of(error)
        with contextlib.suppress(ChannelError):
            while (message := self.receive(0)) is not None:
                on_message(message)
        self.close()
        return dataclasses.replace(report, failure=self.failure)

    async def _receive_all(self, on_message: Callable[[Data], None]) -> None:
        received_at, num_quick = 0.0, 0
        with contextlib.suppress(ChannelClosed):
            while True:
                frame = await self._channel.receive_async()
                if (message := self._handle(frame)) is not None:
                    on_message(message)
                now = time.monotonic()
                num_quick = num_quick + 1 if now - received_at <= 2 * BUSY_SECONDS else 0
                received_at = now
                if num_quick >= BUSY_MESSAGES and not self._channel.has_frames:
                    await asyncio.sleep(BUSY_SECONDS)

    def _handle(self, frame: Frame) -> Data | None:
        """Return a message; note everything else."""
        kind, data = frame
        if kind == frames.MESSAGE:
            return data
        if kind == frames.SIGN_OF_LIFE:
            self._has_signed, self._says_debugged = True, bool(data)
        elif kind == frames.JOB_TAKEN:
            self.has_taken_job = self._has_signed = True
        elif kind == frames.READY:
            self.is_ready = True
        elif kind == frames.FAILED:
            self.failure = Failure(**json.loads(data))
        return None

    # -- signs of life -------------------------------------------------------------------------------

    def is_silent(self, seconds: float) -> bool:
        """Whether a child that shows life has given no sign for so long since it took its job.

        To be asked several times a second: only time in which this process ran counts, so a parent that was paused, or
        a machine that was suspended, says nothing about the child. A child in a debugger is never silent.
        """
        now = time.monotonic()
        passed, self._looked_at = min(now - self._looked_at, LOOK_SECONDS), now
        self._silent_seconds += passed
        if self._has_signed or not self.has_taken_job:
            self._silent_seconds, self._has_signed = 0.0, False
        return self._silent_seconds >= seconds and not self._says_debugged and not is_traced(self.pid)

    # -- the end -------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        with contextlib.suppress(ChannelError):
            self._channel.send(kind=frames.STOP, timeout=0)

    def signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._is_reaped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)

    def kill(self) -> None:
        with self._lock:
            if not self._is_reaped:
                self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let go of the channel: a child that still runs takes it as the end of its parent."""
        _children.discard(self)
        self._channel.close()

    def discard(self) -> None:
        """Kill the child and let go of it."""
        self.kill()
        self.exited.result()
        self.close()

    def abandon(self) -> None:
        self._channel.abandon()

    def _wait(self) -> None:
        """Where the system allows it, the child is reaped last: until then its number, and so its group, is its own."""
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with self._lock:
            self._kill_group()
            _watcher.remove(self.pid)
            code = self._process.wait()
            self._is_reaped = True
        if (found := self._channel.take(frames.FAILED)) is not None:
            self.failure = Failure(**json.loads(found))
        self._settle(code, self.failure)


class _Watcher:
    """The process that ends the children of this one if it is killed. It lives while there are children."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._children: dict[int, OrphanRule] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def add(self, pid: int, rule: OrphanRule) -> None:
        with self._lock:
            self._children[pid] = rule
            try:
                self._write(_watch_line(pid, rule))
            except BaseException:
                del self._children[pid]
                raise

    def remove(self, pid: int) -> None:
        with self._lock:
            if self._children.pop(pid, None) is not None:
                self._write(b"-%d\n" % pid)

    def _write(self, line: bytes) -> None:
        """Tell the watcher; one that has died, or does not read, is replaced."""
        if not self._children:
            self._stop()
            return
        try:
            if self._process is not None:
                os.write(self._pipe, line)
                return
        except OSError:
            self._stop()
        self._start()

    def _start(self) -> None:
        theirs, self._pipe = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", watcher.__file__, str(theirs)],
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
        for pid, rule in self._children.items():
            os.write(self._pipe, _watch_line(pid, rule))

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
        child.abandon()
        _children.discard(child)


os.register_at_fork(after_in_child=_abandon_all)


def is_traced(pid: int) -> bool:
    """Whether a debugger such as gdb has the process; False where the system does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in status.splitlines())


def _request_name(request: signal.Signals | None) -> str:
    return "a request to stop" if request is None else request.name


def _watch_line(pid: int, rule: OrphanRule) -> bytes:
    return f"+{pid} {rule.stage} {rule.term_seconds} {rule.kill_seconds}\n".encode()


def interpreter() -> str:
    if not sys.executable:
        raise ConfigError(
            "this program does not know its Python interpreter (sys.executable), so it cannot start processes: "
            "run everything in one process"
        )
    return sys.executable


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    """A child finds this package where its parent found it."""
    here, before = str(Path(__file__).parents[2]), given.get("PYTHONPATH")
    return {**given, "PYTHONPATH": here + os.pathsep + before if before else here}


@contextlib.contextmanager
def closed_on_error(end: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        end.close()
        raise


@contextlib.contextmanager
def _outputs(are_shared: bool) -> Iterator[list[int]]:
    """Standard output and error of this process as they are now; a null device where they are closed."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        yield [number if _is_open(number) else null for number in (1, 2)] if are_shared else []
    finally:
        os.close(null)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
