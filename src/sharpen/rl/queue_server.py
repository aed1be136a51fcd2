"""Items of a data queue for other processes, over a socket of this machine.

The socket has no file, and whoever connects must know a random key that only travels inside a pickled queue or a
forked process. A consumer sends one byte and gets one item.
"""

import contextlib
import os
import pickle
import secrets
import selectors
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Any

from ..errors import QueueError

KEY_BYTES = 16
HEADER = struct.Struct("<QB")
ITEM, END, FAILED = range(3)


class QueueServer:
    """Answers consumers from a thread of its own."""

    def __init__(self, take: Callable[[], Any]) -> None:
        self._take = take
        self._key = secrets.token_bytes(KEY_BYTES)
        self._listener = _listener()
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="sharpen-queue-server", daemon=True)
        self._thread.start()

    def client(self, wait_seconds: float) -> "QueueClient":
        return QueueClient(self._listener.getsockname(), self._key, os.getpid(), wait_seconds)

    def close(self) -> None:
        self._waker.close()
        self._thread.join()

    def forget(self) -> None:
        """In a fork: these sockets belong to the parent."""
        for each in (self._listener, self._wake, self._waker):
            each.close()

    def _serve(self) -> None:
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            for each in (self._wake, self._listener):
                stack.callback(each.close)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._wake:
                        return
                    if key.fileobj is self._listener:
                        consumer = self._welcome()
                        if consumer is not None:
                            stack.callback(consumer.close)
                            selector.register(consumer, selectors.EVENT_READ)
                    elif not self._answer(key.fileobj):  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]

    def _welcome(self) -> socket.socket | None:
        consumer, _ = self._listener.accept()
        consumer.settimeout(5.0)
        with contextlib.suppress(OSError):
            if secrets.compare_digest(_read(consumer, KEY_BYTES), self._key):
                consumer.settimeout(None)
                return consumer
        consumer.close()
        return None

    def _answer(self, consumer: socket.socket) -> bool:
        """Send the next item; False when the consumer has gone."""
        try:
            if not consumer.recv(1):
                return False
            kind, data = self._next()
            consumer.sendall(HEADER.pack(len(data), kind) + data)
        except OSError:
            return False
        return True

    def _next(self) -> tuple[int, bytes]:
        try:
            return ITEM, pickle.dumps(self._take())
        except StopIteration:
            return END, b""
        except Exception as error:  # noqa: BLE001 - whatever it is, the consumer raises it
            return FAILED, pickle.dumps(f"{type(error).__name__}: {error}")


class QueueClient:
    """The queue, as another process sees it."""

    def __init__(self, address: Any, key: bytes, producer: int, wait_seconds: float) -> None:
        self._address, self._key, self._producer, self._wait_seconds = address, key, producer, wait_seconds
        self._link: socket.socket | None = None
        self._process = os.getpid()

    def __getstate__(self) -> tuple[Any, ...]:
        return (self._address, self._key, self._producer, self._wait_seconds)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def get(self) -> Any:
        if self._link is None or self._process != os.getpid():
            self._connect()
        link = self._link
        assert link is not None
        try:
            link.sendall(b"?")
            size, kind = HEADER.unpack(_read(link, HEADER.size))
            data = _read(link, size)
        except TimeoutError:
            raise QueueError(f"no item came in {self._wait_seconds} s: {self._state_of_producer()}") from None
        except OSError as error:
            raise QueueError(f"the data queue is closed ({error}): {self._state_of_producer()}") from None
        if kind == END:
            raise StopIteration
        if kind == FAILED:
            raise QueueError(f"the item cannot be loaded: {pickle.loads(data)}")
        return pickle.loads(data)

    def _connect(self) -> None:
        family = socket.AF_UNIX if isinstance(self._address, bytes | str) else socket.AF_INET
        link = socket.socket(family, socket.SOCK_STREAM)
        link.settimeout(self._wait_seconds)
        try:
            link.connect(self._address)
            link.sendall(self._key)
        except OSError as error:
            link.close()
            raise QueueError(f"the data queue cannot be reached ({error}): {self._state_of_producer()}") from None
        self._link, self._process = link, os.getpid()

    def _state_of_producer(self) -> str:
        try:
            os.kill(self._producer, 0)
        except ProcessLookupError:
            return f"its producer, process {self._producer}, has gone"
        except PermissionError:
            pass
        return f"its producer, process {self._producer}, is alive"


def _listener() -> socket.socket:
    if sys.platform == "linux":
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(b"\0sharpen-queue-" + secrets.token_hex(8).encode())  # a name without a file
    else:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    return listener


def _read(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the other side has gone")
        data += part
    return bytes(data)
