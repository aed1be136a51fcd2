"""The parent process, as its child sees it, and the channel of frames between the two.

A child is a fresh interpreter that runs one of our modules, never the user's script. Its job comes over an inherited
socket: secrets and pickled objects travel no other way. A child whose parent has gone, however it ended, is notified
once and ends within a bounded time; one that cannot notice it is ended by the parent's watcher.

A frame is a marker, a kind, a length and that many bytes. Frames arrive whole and in order, whichever thread sends.
A side that waits to send keeps receiving, so two large frames that cross do not block each other. When the other side
has gone, `ChannelClosed` is raised once everything it had sent was received.
"""

import array
import asyncio
import contextlib
import dataclasses
import io
import json
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..errors import SharpenError
from ..logging import LogSettings, apply_settings, current_settings

Data = bytes | bytearray
Frame = tuple[int, Data]

# Kinds of frames. A message belongs to the user of the channel; parent and child use the others among themselves.
MESSAGE, SIGN_OF_LIFE, STOP, READY, FAILED, JOB, JOB_TAKEN = range(7)

SIGN_SECONDS = 0.5
ORPHAN_SECONDS = 30.0  # longer than the parent's watcher takes: after that it was killed too
TERMINATE_SECONDS = 5.0
EXIT_SECONDS = 3.0
MAX_FILES = 16
BUSY_SECONDS, BUSY_WAKES = 0.05, 20  # an event loop woken so often in quick succession receives frames together

_HEADER = struct.Struct("!2sBQ")
_MARK = b"\xf5\x9d"  # not valid text, so something printed into the socket is recognized at once
_MAX_FRAME_BYTES = 1 << 40
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

    def header(self, *, has_outputs: bool) -> bytes:
        """The job without payload and files; with outputs, the first two files are standard output and error."""
        # The standard library's JSON keeps values that are not valid text, as an environment may hold.
        context = dataclasses.asdict(self.context)
        return json.dumps({"options": self.options, "context": context, "has_outputs": has_outputs}).encode()


@dataclass(frozen=True)
class Failure:
    """An exception that ended a child, or kept it from starting."""

    kind: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        return cls(type(error).__name__, str(error), "".join(traceback.format_exception(error)))

    @property
    def last_line(self) -> str:
        return self.traceback.strip().splitlines()[-1]


class Parent:
    """The parent of this process. Sending to a parent that has gone does nothing."""

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel(end, max_files=MAX_FILES)
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

    def send_failure(self, error: BaseException) -> None:
        """Report the exception that ends this process."""
        self.send(json.dumps(dataclasses.asdict(Failure.of(error))).encode(), kind=FAILED)

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

        Standard output and error are then those that the parent has sent. Whoever does the job applies its context.
        """
        try:
            header = self._channel.receive(idle_seconds)
            payload = None if header is None else self._channel.receive()
        except ChannelError:
            return None
        if header is None or payload is None or header[0] != JOB:
            return None
        found, files = json.loads(header[1]), self._channel.files
        if found["has_outputs"]:
            _use_outputs(files[:2])
            files = files[2:]
        self.send(kind=JOB_TAKEN)
        return Job(found["options"], payload[1], files, ProcessContext(**found["context"]))

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
            orphan_seconds: How long this process may run once the parent has gone; 0 kills it and its group at once.
            stops_when_orphaned: Whether the end of the parent counts as a request to stop.
        """
        arguments = on_message, orphan_seconds, stops_when_orphaned
        threading.Thread(target=self._listen, args=arguments, name="sharpen-parent", daemon=True).start()

    def _listen(self, on_message: Callable[[Data], None], orphan_seconds: float, stops_when_orphaned: bool) -> None:
        with contextlib.suppress(ChannelError):
            while (frame := self._channel.receive()) is not None:
                kind, data = frame
                if kind == MESSAGE:
                    on_message(data)
                elif kind == STOP:
                    self._stop()
        self.is_gone = True
        if orphan_seconds:
            self.on_gone()
            if stops_when_orphaned:
                self._stop()
            time.sleep(orphan_seconds)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(TERMINATE_SECONDS)
        os.killpg(0, signal.SIGKILL)

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
        threading.Thread(target=self._show_life, args=(seconds,), name="sharpen-signs", daemon=True).start()

    def _show_life(self, seconds: float) -> None:
        while not self.is_gone:
            self.send(b"debugged" if _is_debugged() else b"", kind=SIGN_OF_LIFE, lossy=True)
            time.sleep(seconds)

    def run(self, work: Callable[["Parent"], int]) -> NoReturn:
        """Do the work and end with its exit code; an exception is reported to the parent.

        The end takes a bounded time, whatever threads are left, and leaves nothing behind if the parent has gone.
        """
        try:
            code = work(self)
        except BaseException as error:  # noqa: BLE001 - the parent shows it
            self.send_failure(error)
            code = 1
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                stream.flush()
        if self.is_gone:
            os.killpg(0, signal.SIGKILL)
        threading.Thread(target=_exit_late, args=(code,), daemon=True).start()
        sys.exit(code)


def _exit_late(code: int) -> None:
    time.sleep(EXIT_SECONDS)
    os._exit(code)


def _use_outputs(files: Sequence[int]) -> None:
    """Write to these files; line by line, as a terminal would show it."""
    for number, file in zip((1, 2), files, strict=True):
        os.dup2(file, number)
        os.close(file)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)


def _is_debugged() -> bool:
    """Whether a Python debugger may stop all threads of this process."""
    if "debugpy" in sys.modules or "pydevd" in sys.modules or threading.gettrace() is not None:
        return True
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    return monitoring is not None and monitoring.get_tool(monitoring.DEBUGGER_ID) is not None


class Channel:
    """One end of the socket, for any number of threads, or for one event loop.

    Args:
        end: A stream socket, which the channel owns from now on.
        max_files: How many open files may come with one frame; they are collected in `files`.
    """

    def __init__(self, end: socket.socket, *, max_files: int = 0) -> None:
        end.setblocking(False)
        self._end = end
        self._max_file_bytes = socket.CMSG_SPACE(max_files * array.array("i").itemsize) if max_files else 0
        self.files: list[int] = []
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._unsent: list[memoryview] = []
        self._frames: deque[Frame] = deque()
        self._header, self._kind = bytearray(_HEADER.size), MESSAGE
        self._body: bytearray | None = None  # of the frame whose header has arrived
        self._missing = memoryview(self._header)
        self._error: ChannelError | None = None
        self._has_loop = False  # then only the event loop receives

    # -- sending -------------------------------------------------------------------------------------

    def send(
        self,
        *parts: Data | memoryview,
        kind: int = MESSAGE,
        files: Sequence[int] = (),
        timeout: float | None = None,
        lossy: bool = False,
    ) -> bool:
        """Send the parts as one frame.

        Args:
            parts: Buffers, sent without being joined.
            kind: MESSAGE, or one of the kinds that parent and child use among themselves.
            files: Open files that travel with the frame.
            timeout: After so many seconds, what the other side has not taken waits for the next call.
            lossy: Leave the frame out if it cannot be sent at once.

        Returns:
            False if the frame was left out: it is lossy, or another thread is still sending when the time is over.
        """
        deadline = _deadline(0 if lossy else timeout)
        body = [memoryview(part).cast("B") for part in parts if len(part)]
        header = memoryview(_HEADER.pack(_MARK, kind, sum(map(len, body))))
        if not self._sending.acquire(timeout=_left(deadline)):
            return False
        try:
            self._unsent = self._push(self._unsent, deadline)
            if lossy and self._unsent:
                return False
            left = self._push([*self._unsent, header, *body], deadline, files)
            if lossy and sum(map(len, left)) == len(header) + sum(map(len, body)):  # nothing of it was taken
                return False
            self._unsent = left
            return True
        finally:
            self._sending.release()

    def _push(self, views: list[memoryview], deadline: float | None, files: Sequence[int] = ()) -> list[memoryview]:
        """Send until the time is over, and return what is left."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        while views:
            try:
                count = self._end.sendmsg(views[:_MAX_VIEWS], ancillary)
            except BlockingIOError:
                if self._can_send(deadline):
                    continue
                return [view if isinstance(view.obj, bytes) else memoryview(bytes(view)) for view in views]
            except OSError as error:
                raise _closed(error) from None
            ancillary, num_sent = [], 0
            while num_sent < len(views) and count >= len(views[num_sent]):
                count -= len(views[num_sent])
                num_sent += 1
            views = views[num_sent:]
            if count:
                views[0] = views[0][count:]
        return views

    def _can_send(self, deadline: float | None) -> bool:
        """Wait until the other side takes more, and receive meanwhile: it may be waiting for us in the same way."""
        while True:
            receives = self._error is None and not self._has_loop and self._receiving.acquire(blocking=False)
            try:
                wanted = select.POLLOUT | (select.POLLIN if receives else 0)
                seconds = _SLICE_SECONDS if deadline is None else min(_SLICE_SECONDS, _left(deadline))
                events = _poll(self._end, wanted, seconds)
                if receives and events & select.POLLIN:
                    self._read()
            finally:
                if receives:
                    self._receiving.release()
            if events & ~select.POLLIN:
                return True
            if _left(deadline) == 0:
                return False

    # -- receiving -----------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> Frame | None:
        """Return the next frame, or None if none came in time."""
        deadline = _deadline(timeout)
        if not self._receiving.acquire(timeout=_left(deadline)):
            return None
        try:
            while (frame := self._next()) is None and _poll(self._end, select.POLLIN, _left(deadline)):
                pass
            return frame
        finally:
            self._receiving.release()

    async def receive_all(self, on_frame: Callable[[Frame], None]) -> NoReturn:
        """Call `on_frame` with every frame, in the event loop, until `ChannelClosed` ends it."""
        self._has_loop = True
        woken_at, num_quick = 0.0, 0
        while True:
            while True:
                with self._receiving:
                    frame = self._next()
                if frame is None:
                    break
                on_frame(frame)
                await asyncio.sleep(0)  # however many there are, the loop's other tasks have their turn
            await self._wait_readable()
            before, woken_at = woken_at, time.monotonic()
            num_quick = num_quick + 1 if woken_at - before <= 2 * BUSY_SECONDS else 0
            if num_quick >= BUSY_WAKES:
                await asyncio.sleep(BUSY_SECONDS)

    async def _wait_readable(self) -> None:
        loop, number = asyncio.get_running_loop(), self._end.fileno()
        arrived = loop.create_future()
        loop.add_reader(number, lambda: None if arrived.done() else arrived.set_result(None))
        try:
            await arrived
        finally:
            loop.remove_reader(number)

    def take(self, kind: int) -> Data | None:
        """Return the first frame of a kind out of those that have arrived, if there is one; the others stay."""
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

    def _next(self) -> Frame | None:
        """Return the next frame of what has arrived, None if it is not complete yet."""
        while not self._frames and self._error is None and self._read():
            pass
        if self._frames:
            return self._frames.popleft()
        if self._error is not None:
            raise self._error
        return None

    def _read(self) -> bool:
        """Receive more of the next frame in its place; return False if nothing has arrived, or nothing will."""
        try:
            count, ancillary, _, _ = self._end.recvmsg_into([self._missing], self._max_file_bytes)
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
        if self._missing:
            return True
        if self._body is None:
            mark, self._kind, length = _HEADER.unpack(self._header)
            if mark != _MARK or length > _MAX_FRAME_BYTES:
                self._error = self._not_a_frame()
                return False
            self._body = bytearray(length)
            self._missing = memoryview(self._body)
        if not self._missing:
            self._frames.append((self._kind, self._body))
            self._body, self._missing = None, memoryview(self._header)
        return True

    def _not_a_frame(self) -> ChannelError:
        received = bytes(self._header)
        with contextlib.suppress(OSError):
            received += self._end.recv(40)
        return ChannelError(f"expected a frame, but received {received!r}")

    def close(self) -> None:
        """Close the socket; the other side and whoever waits here notice."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()


def _closed(error: OSError | None = None) -> ChannelClosed:
    return ChannelClosed("the other process has gone" + ("" if error is None else f" ({error.strerror})"))


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


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
