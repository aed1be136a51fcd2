"""Messages between a vector environment and a worker, over one socket that the worker inherits.

A message is a header, rows of fixed size that both sides know, and for what is rare a pickled rest. It is sent with
one system call and received with one. When the socket closes, the other side has gone, however it went.
"""

import os
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..logging import LogSettings, current_settings
from .env_set import Settings
from .trees import Array

HEADER = struct.Struct("<QB")  # bytes of the rest, kind
ROUND, OPEN, DONE, FAILED = range(4)
BUFFER_BYTES = 1 << 20  # a round of small rows never waits for the reader


@dataclass(frozen=True)
class Job:
    """What a worker needs before it can unpickle anything of the user's."""

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
    """A collection begins; `entropy` seeds the global random numbers of the worker."""

    settings: Settings
    entropy: tuple[int, ...]


class LinkClosed(ConnectionError):
    """The other side has gone."""


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
        """From now on, every message carries these arrays: what `sent` holds, and into `received`."""
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
            raise LinkClosed(f"the other side has gone: {error}") from None

    def receive(self) -> tuple[int, bytes]:
        """The kind and the rest; the rows are in their arrays."""
        try:
            got = self._end.recvmsg_into(self._received)[0]
            while 0 < got < self._received_bytes:
                more = self._end.recvmsg_into(_after(self._received, got))[0]
                got = got + more if more else 0
            if got == 0:
                raise LinkClosed("the other side has gone")
            size, kind = HEADER.unpack(self._header)
            return kind, self._read(size) if size else b""
        except OSError as error:
            raise LinkClosed(f"the other side has gone: {error}") from None

    def _read(self, size: int) -> bytes:
        data, got = bytearray(size), 0
        view = memoryview(data)
        while got < size:
            more = self._end.recv_into(view[got:])
            if not more:
                raise LinkClosed("the other side has gone")
            got += more
        return bytes(data)

    def close(self) -> None:
        self._end.close()


def _bytes_of(array: Array) -> memoryview:
    buffer: Any = array
    return memoryview(buffer).cast("B")


def _after(views: Sequence[memoryview], got: int) -> list[memoryview]:
    """What is left of some views after the first `got` bytes."""
    left = []
    for view in views:
        if got < view.nbytes:
            left.append(view[got:])
        got = max(0, got - view.nbytes)
    return left


def surroundings() -> dict[str, Any]:
    """What a worker takes over from this process."""
    return {
        "path": list(sys.path),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "arguments": list(sys.argv),
        "log": current_settings(),
    }
