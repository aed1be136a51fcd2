"""The parent process, as its child sees it, and what a child takes over from it.

A child is a fresh interpreter that runs a module of ours, never the user's script. What it is to do comes over the
inherited socket: secrets and pickled objects travel this way only. A child whose parent has gone, however it ended,
is told once and ends within a bounded time; one that cannot notice it is ended by the parent's watcher.
"""

import contextlib
import dataclasses
import io
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ..logging import LogSettings, apply_settings, current_settings
from . import channel as frames
from .channel import Channel, ChannelClosed, ChannelError, Data

SIGN_SECONDS = 0.5
ORPHAN_SECONDS = 30.0  # longer than the parent's watcher takes: after that it was killed too
TERMINATE_SECONDS = 5.0
EXIT_SECONDS = 3.0
MAX_FILES = 16


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
        """Called on another thread when the parent asks for the end, or has gone."""
        self.on_gone: Callable[[], None] = lambda: None
        """Called on another thread when the parent has gone, before `on_stop`."""

    @classmethod
    def inherited(cls) -> "Parent":
        """The parent that started this program, by the first argument of the command line."""
        return cls(socket.socket(fileno=int(sys.argv[1])))

    # -- messages ------------------------------------------------------------------------------------

    def send(self, *parts: Data | memoryview, lossy: bool = False) -> None:
        """Send a message. A lossy one is left out while the parent does not read."""
        self._send(*parts, lossy=lossy)

    def send_ready(self, *parts: Data) -> None:
        """Tell a parent that waits for it that this process is ready to work."""
        self._send(*parts, kind=frames.READY)

    def send_failure(self, error: BaseException) -> None:
        """Report the exception that ends this process."""
        self._send(json.dumps(dataclasses.asdict(Failure.of(error))).encode(), kind=frames.FAILED)

    def _send(self, *parts: Data | memoryview, kind: int = frames.MESSAGE, lossy: bool = False) -> None:
        with contextlib.suppress(ChannelError):
            self._channel.send(*parts, kind=kind, lossy=lossy)

    def receive(self, timeout: float | None = None) -> Data | None:
        """Return the next message, None if none came in time; for programs that do not `listen`.

        Raises:
            ChannelClosed: The parent has gone, or wants the end.
        """
        frame = self._channel.receive(timeout)
        if frame is None:
            return None
        kind, data = frame
        if kind == frames.STOP:
            raise ChannelClosed("the parent asks this process to end")
        return data

    def wait_for_job(self, *, idle_seconds: float | None = None) -> Job | None:
        """Wait for the job; None if the parent has gone or has none within the time.

        Standard output and error are then those that the parent has sent. Whoever does the job applies its context.
        """
        try:
            header = self._channel.receive(idle_seconds)
            payload = None if header is None else self._channel.receive()
        except ChannelError:
            return None
        if header is None or payload is None or header[0] != frames.JOB:
            return None
        found = json.loads(header[1])
        files = self._channel.files
        if found["has_outputs"]:
            _use_outputs(files[:2])
            files = files[2:]
        self._send(kind=frames.JOB_TAKEN)
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
        target, arguments = self._listen, (on_message, orphan_seconds, stops_when_orphaned)
        threading.Thread(target=target, args=arguments, name="sharpen-parent", daemon=True).start()

    def watch(self, *, orphan_seconds: float) -> None:
        """Only notice that the parent has gone, for programs that receive on their main thread."""
        threading.Thread(target=self._watch, args=(orphan_seconds,), name="sharpen-parent", daemon=True).start()

    def is_stopping(self) -> bool:
        """Whether the parent wants the end or has gone, also if the listening thread has not got there yet."""
        if self.stop_requested.is_set() or self.is_gone:
            return True
        try:
            return self._channel.peek_kind() == frames.STOP
        except ChannelClosed:
            return True

    def show_life(self, seconds: float = SIGN_SECONDS) -> None:
        """Send signs of life from another thread until the process ends; they stop if it cannot run Python."""
        threading.Thread(target=self._show_life, args=(seconds,), name="sharpen-signs", daemon=True).start()

    def _show_life(self, seconds: float) -> None:
        while not self.is_gone:
            self._send(b"debugged" if _is_debugged() else b"", kind=frames.SIGN_OF_LIFE, lossy=True)
            time.sleep(seconds)

    def _listen(self, on_message: Callable[[Data], None], orphan_seconds: float, stops: bool) -> None:
        with contextlib.suppress(ChannelError):
            while (frame := self._channel.receive()) is not None:
                kind, data = frame
                if kind == frames.MESSAGE:
                    on_message(data)
                elif kind == frames.STOP:
                    self._stop()
        self._lose_parent(orphan_seconds, stops=stops)

    def _watch(self, orphan_seconds: float) -> None:
        poll = select.poll()
        poll.register(self._channel.fileno(), getattr(select, "POLLRDHUP", select.POLLHUP))
        poll.poll()
        self._lose_parent(orphan_seconds, stops=True)

    def _lose_parent(self, orphan_seconds: float, *, stops: bool) -> None:
        self.is_gone = True
        if orphan_seconds:
            self.on_gone()
            if stops:
                self._stop()
            time.sleep(orphan_seconds)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(TERMINATE_SECONDS)
        os.killpg(0, signal.SIGKILL)

    def _stop(self) -> None:
        self.stop_requested.set()
        self.on_stop()

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
