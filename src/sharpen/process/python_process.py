"""Fresh interpreters as children, from both sides, and the channel of frames between them.

`PythonProcess` is the child as its parent sees it, `Parent` the parent as the child sees it. A child runs one of our
modules, never the user's script. Its job comes over an inherited socket: secrets and pickled objects travel no other
way. A child whose parent has gone, however it ended, is notified once and ends within a bounded time; one that cannot
notice it is ended by the parent's watcher.

A frame is a marker, a kind, a length and that many bytes. Frames arrive whole and in order, whichever thread sends.
A side that waits to send keeps receiving, so two large frames that cross do not block each other. When the other side
has gone, `ChannelClosed` is raised once everything it had sent was received.
"""

import array
import asyncio
import contextlib
import dataclasses
import io
import itertools
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Unpack

from ..errors import SharpenError
from ..logging import LogSettings, apply_settings, current_settings
from .child import ChildOptions, ChildProcess, ExitReport, Failure, OrphanRule, ProcessError, interpreter, watched

Data = bytes | bytearray
Frame = tuple[int, Data]

# Kinds of frames. A message belongs to the user of the channel; parent and child use the others among themselves.
MESSAGE, SIGN_OF_LIFE, STOP, READY, FAILED, JOB, JOB_TAKEN = range(7)

SIGN_SECONDS = 0.5
LOOK_SECONDS = 0.5  # the most that one look at a silent child may count
ORPHAN_SECONDS = 30.0  # longer than the parent's watcher takes: after that it was killed too
TERMINATE_SECONDS = 5.0
EXIT_SECONDS = 3.0
BUSY_SECONDS, BUSY_WAKES = 0.05, 20  # an event loop woken so often in quick succession receives frames together

_HEADER = struct.Struct("!2sBQ")
_MARK = b"\xf5\x9d"  # not valid text, so something printed into the socket is recognized at once
_MAX_FRAME_BYTES = 1 << 40
_MAX_FILES = 16
_MAX_VIEWS = 512
_SLICE_SECONDS = 0.05  # how long a sender keeps a receiver on another thread waiting


class ChannelError(SharpenError, ConnectionError):
    """The other side sent something that is not a frame."""


class ChannelClosed(ChannelError):
    """The other side has gone."""


@dataclass(frozen=True)
class ProcessContext:
    """What makes a child behave like the process that started it, also one that was started ahead."""

    path: list[str]
    folder: str
    environment: dict[str, str]
    arguments: list[str]
    log: LogSettings

    @classmethod
    def current(cls) -> "ProcessContext":
        return cls(list(sys.path), os.getcwd(), dict(os.environ), list(sys.argv), current_settings())

    def apply(self, role: str) -> None:
        """Make this process like the one described; its log lines carry the role."""
        sys.path[:] = self.path
        sys.argv[:] = self.arguments
        os.chdir(self.folder)
        for name in set(os.environ) - set(self.environment):
            del os.environ[name]
        os.environ.update(self.environment)
        apply_settings(self.log, role=role)


@dataclass(frozen=True)
class Job:
    """What a child is to do: options that JSON can hold, a binary payload, and open files."""

    options: dict[str, Any]
    payload: Data = b""
    files: Sequence[int] = ()
    context: ProcessContext = field(default_factory=ProcessContext.current)


# -- the channel -------------------------------------------------------------------------------------


class Channel:
    """One end of a stream socket, which it owns, for any number of threads, or for one event loop."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self.files: list[int] = []
        """The open files that came with the frames."""
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._frames: deque[Frame] = deque()
        self._header, self._kind = bytearray(_HEADER.size), MESSAGE
        self._body: bytearray | None = None  # of the frame whose header has arrived
        self._missing = memoryview(self._header)
        self._error: ChannelError | None = None
        self._has_loop = False  # then only the event loop receives

    # -- sending -------------------------------------------------------------------------------------

    def send(
        self, *parts: Data | memoryview, kind: int = MESSAGE, files: Sequence[int] = (), lossy: bool = False
    ) -> bool:
        """Send the parts as one frame, without joining them; the open files travel with it.

        A lossy frame is left out if nothing of it can be sent at once; False is returned then.

        Raises:
            ChannelClosed: The other side has gone.
        """
        body = [memoryview(part).cast("B") for part in parts if len(part)]
        views = deque([memoryview(_HEADER.pack(_MARK, kind, sum(map(len, body)))), *body])
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        if not self._sending.acquire(blocking=not lossy):
            return False
        try:
            while views:
                try:
                    count = self._end.sendmsg(itertools.islice(views, _MAX_VIEWS), ancillary)
                except BlockingIOError:
                    if lossy:
                        return False
                    self._wait_to_send()
                    continue
                except OSError as error:
                    raise _closed(error) from None
                ancillary, lossy = [], False  # what has begun is sent to its end
                while views and count >= len(views[0]):
                    count -= len(views.popleft())
                if count:
                    views[0] = views[0][count:]
            return True
        finally:
            self._sending.release()

    def _wait_to_send(self) -> None:
        """Wait until the other side takes more, and receive meanwhile: it may be waiting for us in the same way."""
        receives = self._error is None and not self._has_loop and self._receiving.acquire(blocking=False)
        try:
            events = _poll(self._end, select.POLLOUT | (select.POLLIN if receives else 0), _SLICE_SECONDS)
            if receives and events & select.POLLIN:
                self._read()
        finally:
            if receives:
                self._receiving.release()

    # -- receiving -----------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> Frame | None:
        """Return the next frame, or None if none came in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._receiving.acquire(timeout=_left(deadline)):
            return None
        try:
            while not self._frames:
                if self._error is not None:
                    raise self._error
                if not self._read() and self._error is None and not _poll(self._end, select.POLLIN, _left(deadline)):
                    return None
            return self._frames.popleft()
        finally:
            self._receiving.release()

    async def receive_all(self, on_frame: Callable[[Frame], None]) -> NoReturn:
        """Call `on_frame` with every frame, in the event loop, until `ChannelClosed` ends it."""
        self._has_loop = True
        loop, number, arrived = asyncio.get_running_loop(), self._end.fileno(), asyncio.Event()
        woken_at, num_quick = 0.0, 0
        while True:
            while (frame := self.receive(0)) is not None:
                on_frame(frame)
                await asyncio.sleep(0)  # however many there are, the loop's other tasks have their turn
            arrived.clear()
            loop.add_reader(number, arrived.set)
            try:
                await arrived.wait()
            finally:
                loop.remove_reader(number)
            before, woken_at = woken_at, time.monotonic()
            num_quick = num_quick + 1 if woken_at - before <= 2 * BUSY_SECONDS else 0
            if num_quick >= BUSY_WAKES:
                await asyncio.sleep(BUSY_SECONDS)

    def take(self, kind: int) -> Data | None:
        """Return the first frame of a kind among those that have arrived, if there is one; the others stay."""
        with self._receiving:
            while self._error is None and self._read():
                pass
            found = next((frame for frame in self._frames if frame[0] == kind), None)
            if found is None:
                return None
            self._frames.remove(found)
            return found[1]

    def peek_kind(self) -> int | None:
        """Return the kind of the next frame, None if there is none yet. The frame stays where it is."""
        try:
            start = self._end.recv(_HEADER.size, socket.MSG_PEEK)
        except BlockingIOError:
            return None
        except OSError as error:
            raise _closed(error) from None
        if not start:
            raise _closed()
        return start[2] if start.startswith(_MARK) and len(start) > 2 else None

    def _read(self) -> bool:
        """Receive more of the next frame in its place; return False if nothing has arrived, or nothing will."""
        try:
            count, ancillary, _, _ = self._end.recvmsg_into([self._missing], _FILES_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._error = _closed(error)
            return False
        if not count:
            self._error = _closed()
            return False
        for _, _, numbers in ancillary:
            self.files += array.array("i", numbers)
        self._missing = self._missing[count:]
        if not self._missing and self._body is None:
            mark, self._kind, length = _HEADER.unpack(self._header)
            if mark != _MARK or length > _MAX_FRAME_BYTES:
                received = bytes(self._header)
                with contextlib.suppress(OSError):
                    received += self._end.recv(40)
                self._error = ChannelError(f"expected a frame, but received {received!r}")
                return False
            self._body = bytearray(length)
            self._missing = memoryview(self._body)
        if not self._missing and self._body is not None:
            self._frames.append((self._kind, self._body))
            self._body, self._missing = None, memoryview(self._header)
        return True

    def close(self) -> None:
        """Close the socket; the other side and whoever waits here notice."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


_FILES_BYTES = socket.CMSG_SPACE(_MAX_FILES * array.array("i").itemsize)


def _closed(error: OSError | None = None) -> ChannelClosed:
    return ChannelClosed("the other process has gone" + ("" if error is None else f" ({error.strerror})"))


def _left(deadline: float | None) -> float:
    """The seconds until the deadline; -1 without one, which locks and `poll` take as no limit."""
    return -1 if deadline is None else max(0.0, deadline - time.monotonic())


def _poll(end: socket.socket, events: int, seconds: float) -> int:
    """Wait for events, and return those that happened. A socket that was closed meanwhile has an error."""
    if end.fileno() < 0:
        return select.POLLNVAL
    waiting = select.poll()
    waiting.register(end, events)
    happened = waiting.poll(seconds * 1000)
    return happened[0][1] if happened else 0


# -- the child as its parent sees it -----------------------------------------------------------------


class PythonProcess(ChildProcess):
    """A fresh interpreter that runs a module, with a channel of frames in both directions.

    The module gets the number of its socket as first argument (`Parent.inherited`).

    Args:
        module: The module to run, as `python -m` would.
        arguments: Its further arguments.
        name: What messages and threads call the child.
        orphan: What becomes of it if this process is killed; None lets it live.
        options: How it is started.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        name: str,
        orphan: OrphanRule | None = OrphanRule(),  # noqa: B008 - a frozen value
        **options: Unpack[ChildOptions],
    ) -> None:
        # -P: a file in the user's folder must not take the place of a module that the child imports at its start.
        flags = [*subprocess._args_from_interpreter_flags(), "-P"]  # type: ignore[attr-defined]
        options["env"] = _environment(options.get("env") or os.environ)
        super().__init__(name, [interpreter(), *flags, "-m", module], arguments, options)
        self._channel = Channel(self._socket)
        self._lock, self._is_reaped = threading.Lock(), False
        self.failure: Failure | None = None
        """The exception that the child has reported."""
        self.has_job = self.has_taken_job = self.is_ready = False
        self._has_signed = self._says_debugged = False
        self._silent_seconds, self._looked_at = 0.0, time.monotonic()
        try:
            if orphan is not None:
                watched.add(self.pid, orphan)
        except BaseException:  # without a watcher it could outlive this process
            self.kill()
            self._process.wait()
            self._channel.close()
            raise
        self._start_waiting()

    # -- messages ------------------------------------------------------------------------------------

    def send(self, *parts: Data | memoryview) -> None:
        """Send a message.

        Raises:
            ChannelClosed: The child has gone.
        """
        self._channel.send(*parts)

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
        while (frame := self._channel.receive(None if deadline is None else _left(deadline))) is not None:
            self._note(frame)
            if frame[0] == kind:
                return frame[1]
        return None

    def send_job(self, job: Job) -> None:
        """Send the job; a child that has ended meanwhile does not take it. From then on it writes to the standard
        output and error that this process has now."""
        # The standard library's JSON keeps values that are not valid text, as an environment may hold.
        header = json.dumps({"options": job.options, "context": dataclasses.asdict(job.context)}).encode()
        with contextlib.suppress(ChannelError), open(os.devnull, "wb") as null:
            outputs = [number if _is_open(number) else null.fileno() for number in (1, 2)]
            self._channel.send(header, b"\0", job.payload, kind=JOB, files=[*outputs, *job.files])
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
            self._channel.send(kind=STOP, lossy=True)

    def signal(self, number: signal.Signals) -> None:
        with self._lock:
            if not self._is_reaped:
                self._send_signal(number)

    def _send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if number == signal.SIGKILL else os.kill)(self.pid, number)

    def close(self) -> None:
        """Let go of the channel: a child that still runs takes it as the end of its parent."""
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
            watched.remove(self.pid)
            code = self._process.wait()
            self._is_reaped = True
        if (found := self._channel.take(FAILED)) is not None:
            self._note((FAILED, found))
        self._settle(code, self.failure)


def is_traced(pid: int) -> bool:
    """Whether a debugger such as gdb has the process; False where the system does not say."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in status.splitlines())


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


# -- the parent as its child sees it -----------------------------------------------------------------


class Parent:
    """The parent of this process. Sending to a parent that has gone does nothing."""

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel(end)
        self.stop_requested = threading.Event()
        self.is_gone = False
        self.on_stop: Callable[[], None] = lambda: None
        """Called on another thread when the parent asks this process to stop, or has gone."""
        self.on_gone: Callable[[], None] = lambda: None
        """Called on another thread when the parent has gone, before `on_stop`."""

    @classmethod
    def inherited(cls) -> "Parent":
        """Return the parent that started this program; the first argument is the number of the socket."""
        return cls(socket.socket(fileno=int(sys.argv[1])))

    # -- messages ------------------------------------------------------------------------------------

    def send(self, *parts: Data | memoryview, kind: int = MESSAGE, lossy: bool = False) -> None:
        """Send a message. A lossy one is left out while the parent does not read."""
        with contextlib.suppress(ChannelError):
            self._channel.send(*parts, kind=kind, lossy=lossy)

    def send_ready(self, *parts: Data) -> None:
        """Report to a parent that waits for it that this process is ready to work."""
        self.send(*parts, kind=READY)

    def receive(self, timeout: float | None = None) -> Data | None:
        """Return the next message, None if none came in time; for programs that do not `listen`.

        Raises:
            ChannelClosed: The parent has gone, or asks this process to stop.
        """
        frame = self._channel.receive(timeout)
        if frame is not None and frame[0] == STOP:
            raise ChannelClosed("the parent asks this process to stop")
        return None if frame is None else frame[1]

    def wait_for_job(self, *, idle_seconds: float | None = None) -> Job | None:
        """Wait for the job; None if the parent has gone or has none within the time.

        Standard output and error are then those that the parent has sent, written line by line, as a terminal would
        show them. Whoever does the job applies its context.
        """
        try:
            frame = self._channel.receive(idle_seconds)
        except ChannelError:
            return None
        if frame is None or frame[0] != JOB:
            return None
        header, _, payload = frame[1].partition(b"\0")
        outputs, files = self._channel.files[:2], self._channel.files[2:]
        for number, file in zip((1, 2), outputs, strict=True):
            os.dup2(file, number)
            os.close(file)
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True)
        self.send(kind=JOB_TAKEN)
        found = json.loads(header)
        return Job(found["options"], payload, files, ProcessContext(**found["context"]))

    # -- signs of life and the end -------------------------------------------------------------------

    def listen(
        self,
        on_message: Callable[[Data], None] = lambda _: None,
        *,
        orphan_seconds: float = ORPHAN_SECONDS,
        stops_when_orphaned: bool = True,
    ) -> None:
        """Receive on another thread from now on.

        Args:
            on_message: Called with every message of the parent.
            orphan_seconds: How long this process may run once the parent has gone.
            stops_when_orphaned: Whether the end of the parent counts as a request to stop.
        """

        def listen() -> None:
            with contextlib.suppress(ChannelError):
                while (frame := self._channel.receive()) is not None:
                    kind, data = frame
                    if kind == MESSAGE:
                        on_message(data)
                    elif kind == STOP:
                        self._stop()
            self.is_gone = True
            self.on_gone()
            if stops_when_orphaned:
                self._stop()
            time.sleep(orphan_seconds)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(TERMINATE_SECONDS)
            os.killpg(0, signal.SIGKILL)

        threading.Thread(target=listen, name="sharpen-parent", daemon=True).start()

    def _stop(self) -> None:
        self.stop_requested.set()
        self.on_stop()

    def is_stopping(self) -> bool:
        """Whether the parent asks for a stop or has gone, also if the listening thread has not noticed it yet."""
        if self.stop_requested.is_set() or self.is_gone:
            return True
        try:
            return self._channel.peek_kind() == STOP
        except ChannelClosed:
            return True

    def show_life(self, seconds: float = SIGN_SECONDS) -> None:
        """Send signs of life from another thread until the process ends; they stop if it cannot run Python."""

        def show() -> None:
            while not self.is_gone:
                self.send(b"debugged" if _is_debugged() else b"", kind=SIGN_OF_LIFE, lossy=True)
                time.sleep(seconds)

        threading.Thread(target=show, name="sharpen-signs", daemon=True).start()

    def run(self, work: Callable[["Parent"], int]) -> NoReturn:
        """Do the work and end with its exit code; an exception is reported to the parent.

        The end takes a bounded time, whatever threads are left, and leaves nothing behind if the parent has gone.
        """
        try:
            code = work(self)
        except BaseException as error:  # noqa: BLE001 - the parent shows it
            self.send(json.dumps(dataclasses.asdict(Failure.of(error))).encode(), kind=FAILED)
            code = 1
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                stream.flush()
        if self.is_gone:
            os.killpg(0, signal.SIGKILL)
        late = threading.Timer(EXIT_SECONDS, os._exit, [code])
        late.daemon = True
        late.start()
        sys.exit(code)


def _is_debugged() -> bool:
    """Whether a Python debugger may stop all threads of this process."""
    if "debugpy" in sys.modules or "pydevd" in sys.modules or threading.gettrace() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None
