"""Frames over the socket that a parent and its child share.

A frame is a marker, a kind, a length and that many bytes. Frames arrive whole and in order, whichever thread sends.
A side that waits to send keeps receiving, so two large frames that cross do not block each other. When the other side
has gone, however it ended, `ChannelClosed` is raised once everything it had sent was received.
"""

import array
import asyncio
import contextlib
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence

from ..errors import SharpenError

Data = bytes | bytearray
Frame = tuple[int, Data]

# Kinds of frames. A message belongs to the user of the channel; the rest is how parent and child get along.
MESSAGE, SIGN_OF_LIFE, STOP, READY, FAILED, JOB, JOB_TAKEN = range(7)

_HEADER = struct.Struct("!2sBQ")
_MARK = b"\xf5\x9d"  # not valid text, so something printed into the socket is recognized at once
_MAX_FRAME_BYTES = 1 << 40
_READ_BYTES = 1 << 16
_MAX_VIEWS = 512
_SLICE_SECONDS = 0.05  # how long a sender keeps a receiver on another thread from its turn


class ChannelError(SharpenError, ConnectionError):
    """The other side sent something that is not a frame."""


class ChannelClosed(ChannelError):
    """The other side has gone."""


class Channel:
    """One end of the socket, for any number of threads, or for one event loop.

    Args:
        end: A stream socket, which the channel owns from now on.
        max_files: How many open files may come with one frame; they are collected in `files`.
    """

    def __init__(self, end: socket.socket, *, max_files: int = 0) -> None:
        end.setblocking(False)
        self._end, self._max_files = end, max_files
        self.files: list[int] = []
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        self._unsent: list[memoryview] = []
        self._frames: deque[Frame] = deque()
        self._start = bytearray()
        self._large: tuple[int, bytearray, memoryview] | None = None  # kind, body, and what is missing of it
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
        if not self._sending.acquire(timeout=-1 if deadline is None else _left(deadline)):
            return False
        try:
            body = [memoryview(part).cast("B") for part in parts if len(part)]
            frame = [memoryview(_HEADER.pack(_MARK, kind, _size(body))), *body]
            self._unsent = self._push(self._unsent, deadline)
            if not lossy:
                self._unsent = self._push(self._unsent + frame, deadline, files)
                return True
            left = frame if self._unsent else self._push(frame, deadline)
            if _size(left) == _size(frame):
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
                sent = self._end.sendmsg(views[:_MAX_VIEWS], ancillary)
            except BlockingIOError:
                if self._can_send(deadline):
                    continue
                return [view if isinstance(view.obj, bytes) else memoryview(bytes(view)) for view in views]
            except OSError as error:
                raise ChannelClosed(f"the other process has gone ({error.strerror})") from None
            views, ancillary = _after(views, sent), []
        return views

    def _can_send(self, deadline: float | None) -> bool:
        """Wait until the other side takes more, and receive meanwhile: it may be waiting for us in the same way."""
        while True:
            is_ours = self._error is None and not self._has_loop
            receives = is_ours and self._receiving.acquire(blocking=False)
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
            if deadline is not None and _left(deadline) == 0:
                return False

    # -- receiving -----------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> Frame | None:
        """Return the next frame, or None if none came in time."""
        deadline = _deadline(timeout)
        if not self._receiving.acquire(timeout=-1 if deadline is None else _left(deadline)):
            return None
        try:
            while not self._frames:
                if self._error is not None:
                    raise self._error
                seconds = None if deadline is None else _left(deadline)
                if not self._read() and not _poll(self._end, select.POLLIN, seconds):
                    return None
            return self._frames.popleft()
        finally:
            self._receiving.release()

    async def receive_async(self) -> Frame:
        """Return the next frame. Only one task may wait for it."""
        self._has_loop = True
        while True:
            with self._receiving:
                if self._frames:
                    return self._frames.popleft()
                if self._error is not None:
                    raise self._error
                has_more = self._read()
            if not has_more:
                await self._wait_async()

    async def _wait_async(self) -> None:
        """Wait in the event loop until something has arrived."""
        loop, number = asyncio.get_running_loop(), self._end.fileno()
        arrived = loop.create_future()
        loop.add_reader(number, lambda: None if arrived.done() else arrived.set_result(None))
        try:
            await arrived
        finally:
            loop.remove_reader(number)

    def take(self, wanted: int) -> Data | None:
        """Return the first frame of a kind out of those that have arrived, if there is one; the others stay."""
        with self._receiving:
            while self._error is None and self._read():
                pass
            found = next((frame for frame in self._frames if frame[0] == wanted), None)
            if found is None:
                return None
            self._frames.remove(found)
            return found[1]

    def peek_kind(self) -> int | None:
        """Return the kind of the next frame, None if there is none yet. The frame stays where it is."""
        try:
            start = self._end.recv(_HEADER.size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ChannelClosed(f"the other process has gone ({error.strerror})") from None
        if not start:
            raise ChannelClosed("the other process has gone")
        return start[2] if start.startswith(_MARK) and len(start) > 2 else None

    def _read(self) -> bool:
        """Take in what has arrived, and return False if nothing has. An error is kept for the one who receives."""
        try:
            if self._large is not None:
                return self._read_large(*self._large)
            if self._max_files:
                data, files, _, _ = socket.recv_fds(self._end, _READ_BYTES, self._max_files)
                self.files += files
            else:
                data = self._end.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._error = ChannelClosed(f"the other process has gone ({error.strerror})")
            return True
        if data:
            self._start += data
            self._split()
        else:
            self._error = ChannelClosed("the other process has gone")
        return True

    def _split(self) -> None:
        """Turn what has arrived into frames; the body of a large one is then received in place."""
        while len(self._start) >= _HEADER.size:
            mark, kind, length = _HEADER.unpack_from(self._start)
            if mark != _MARK or length > _MAX_FRAME_BYTES:
                self._error = ChannelError(f"expected a frame, but received {bytes(self._start[:40])!r}")
                return
            end = _HEADER.size + length
            if len(self._start) < end:
                if length > _READ_BYTES:
                    body, there = bytearray(length), len(self._start) - _HEADER.size
                    body[:there] = self._start[_HEADER.size :]
                    self._large = kind, body, memoryview(body)[there:]
                    self._start.clear()
                return
            self._frames.append((kind, bytes(self._start[_HEADER.size : end])))
            del self._start[:end]

    def _read_large(self, kind: int, body: bytearray, missing: memoryview) -> bool:
        count = self._end.recv_into(missing)
        if not count:
            self._error = ChannelClosed("the other process has gone")
        self._large = kind, body, missing[count:]
        if count == len(missing):
            self._large = None
            self._frames.append((kind, body))
        return True

    # -- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the socket; the other side and whoever waits here notice."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def abandon(self) -> None:
        """In a fork of this process: let go of the socket, which stays open for its owner."""
        self._end.close()

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def has_frames(self) -> bool:
        """Whether a frame has arrived that nobody has received yet."""
        return bool(self._frames)


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _size(views: Sequence[memoryview]) -> int:
    return sum(len(view) for view in views)


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """What is left of the views after the first `count` bytes."""
    for number, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[number + 1 :]]
        count -= len(view)
    return []


def _poll(end: socket.socket, events: int, seconds: float | None) -> int:
    """Wait for events, and return those that happened. A socket that was closed meanwhile has an error."""
    if end.fileno() < 0:
        return select.POLLNVAL
    waiting = select.poll()
    waiting.register(end, events)
    happened = waiting.poll(None if seconds is None else seconds * 1000)
    return happened[0][1] if happened else 0
