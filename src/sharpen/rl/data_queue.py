"""`DataQueue`: the items of a data set, each given out exactly `repeat` times, to any process that asks.

The order is fixed by the seed, and progress is one number, the cursor, which can be saved. The process that opened the
queue takes items directly. Other processes ask it over a local socket, which is opened when the queue is first pickled
or forked. The socket has no file, and a consumer must know a random key that only travels inside a pickled queue or a
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
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import numpy as np

from ..checks import check_int
from ..errors import QueueError

T = TypeVar("T")
WAIT_SECONDS = 60.0
KEY_BYTES = 16
HEADER = struct.Struct("<QB")  # size of the item, kind
ITEM, END, FAILED = range(3)


class DataQueue(Generic[T]):
    """Gives each item of `dataset` exactly `repeat` times (-1: forever).

    `producer_num_workers` threads load items ahead, at most `queue_maxsize` of them, for data sets whose items load
    slowly. `seed` fixes the order of a shuffled queue.
    """

    def __init__(
        self,
        dataset: Sequence[T],
        repeat: int = 1,
        shuffle: bool = True,
        producer_num_workers: int = 0,
        queue_maxsize: int = 0,
        *,
        seed: int | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.dataset, self.shuffle = dataset, shuffle
        self.repeat = check_int("repeat", repeat, at_least=-1)  # -1: forever
        self.producer_num_workers, self.queue_maxsize = producer_num_workers, queue_maxsize
        self._seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self._wait_seconds = wait_seconds
        self._cursor = 0
        self._epoch: tuple[int, Sequence[int]] | None = None
        self._extra: deque[T] = deque()
        self._ahead: deque[Future[T]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._server: _QueueServer | None = None
        self._client: _QueueClient | None = None
        self._lock = threading.RLock()
        self._is_active = self._is_marked = False
        self._owner = os.getpid()

    # -- opening and closing -------------------------------------------------------------------------

    def activate(self) -> "DataQueue[T]":
        """Open the queue; it continues where it was closed."""
        if self._is_active:
            raise QueueError("this data queue is already open")
        self._is_active, self._is_marked = True, False
        if self.producer_num_workers > 0:
            self._pool = ThreadPoolExecutor(self.producer_num_workers, "sharpen-queue")
        _open_queues.add(self)
        return self

    def cleanup(self) -> None:
        """Close the queue, and the connections of consumers in other processes."""
        with self._lock:
            self._is_active = False
            _open_queues.discard(self)
            self._ahead.clear()
            pool, server, self._pool, self._server = self._pool, self._server, None, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        if server is not None:
            server.close()

    def __enter__(self) -> "DataQueue[T]":
        return self.activate()

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    # -- items ---------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[T]:
        if self._is_here and not self._is_active:
            raise QueueError("open the data queue before iterating: with queue: …, or queue.activate()")
        return self

    def __next__(self) -> T:
        return self.get()

    def get(self, block: bool = True) -> T:
        """Return the next item, or raise StopIteration if there is none.

        It only ever waits for an item that is being loaded; with `block=False` it raises QueueError instead.
        """
        return self._take(block) if self._is_here else self._ask()

    def put(self, obj: T, block: bool = True, timeout: float | None = None) -> None:
        """Add an item, which is given out before the next one of the data set. It never waits."""
        with self._lock:
            self._extra.append(obj)

    def mark_as_done(self) -> None:
        """Give out no more items."""
        self._is_marked = True

    def done(self) -> bool:
        """Return whether everything has been given out."""
        return self._is_marked or (not self._extra and self._total is not None and self._cursor >= self._total)

    @property
    def _total(self) -> int | None:
        return len(self.dataset) * self.repeat if self.repeat >= 0 else None if len(self.dataset) else 0

    def _take(self, block: bool) -> T:
        with self._lock:
            if not self._is_active:
                raise QueueError("open the data queue before taking items: with queue: …, or queue.activate()")
            if self._is_marked:
                raise StopIteration
            if self._extra:
                return self._extra.popleft()
            if self._total is not None and self._cursor >= self._total:
                raise StopIteration
            item = self._loaded_ahead(self._pool, block) if self._pool else self.dataset[self._index(self._cursor)]
            self._cursor += 1
            return item

    def _loaded_ahead(self, pool: ThreadPoolExecutor, block: bool) -> T:
        limit = self.queue_maxsize or 2 * self.producer_num_workers
        while len(self._ahead) < limit:
            position = self._cursor + len(self._ahead)
            if self._total is not None and position >= self._total:
                break
            self._ahead.append(pool.submit(self.dataset.__getitem__, self._index(position)))
        if not block and not self._ahead[0].done():
            raise QueueError("the next item is not loaded yet: try again, or wait with get(block=True)")
        try:
            item = self._ahead[0].result(self._wait_seconds)
        except TimeoutError:
            raise QueueError(
                f"no item within {self._wait_seconds} s: {self.producer_num_workers} producer threads of process "
                f"{os.getpid()} are alive and still loading item {self._index(self._cursor)}"
            ) from None
        self._ahead.popleft()
        return item

    def _index(self, position: int) -> int:
        """Return the index in the data set of the item at this position in the order."""
        epoch, place = divmod(position, len(self.dataset))
        if not self.shuffle:
            return place
        if self._epoch is None or self._epoch[0] != epoch:
            order = np.random.default_rng((self._seed, epoch)).permutation(len(self.dataset))
            self._epoch = (epoch, order.tolist())
        return self._epoch[1][place]

    # -- other processes -----------------------------------------------------------------------------

    @property
    def _is_here(self) -> bool:
        return os.getpid() == self._owner

    def _ask(self) -> T:
        if self._client is None:
            raise QueueError(f"this data queue was not open when it was sent from process {self._owner}: open it first")
        return self._client.get()  # type: ignore[no-any-return]

    def _serve(self) -> "_QueueServer":
        with self._lock:
            if self._server is None:
                self._server = _QueueServer(lambda: self._take(True))
            return self._server

    def __getstate__(self) -> dict[str, Any]:
        client = self._client
        if self._is_here and self._is_active:
            client = self._serve().client(self._wait_seconds)
        return {"client": client, "owner": self._owner, "length": len(self.dataset), "repeat": self.repeat}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(range(state["length"]), state["repeat"])  # type: ignore[misc]
        self._client, self._owner = state["client"], state["owner"]

    # -- state ---------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, int]:
        """Return the cursor and the seed of the order."""
        return {"cursor": self._cursor, "seed": self._seed}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        with self._lock:
            self._cursor, self._seed = int(state_dict["cursor"]), int(state_dict["seed"])
            self._epoch = None
            self._ahead.clear()


_open_queues: "weakref.WeakSet[DataQueue[Any]]" = weakref.WeakSet()


def _before_fork() -> None:
    """Let a fork ask its parent for items, so that each is given out once."""
    for queue in list(_open_queues):
        if queue._is_here:
            queue._client = queue._serve().client(queue._wait_seconds)


def _after_fork() -> None:
    for queue in list(_open_queues):
        queue._lock = threading.RLock()
        if queue._server is not None:
            queue._server.forget()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


# -- the socket --------------------------------------------------------------------------------------


class _QueueServer:
    """Sends items to consumers in other processes, from a separate thread."""

    def __init__(self, take: Callable[[], Any]) -> None:
        self._take = take
        self._key = secrets.token_bytes(KEY_BYTES)
        self._listener = _listener()
        self._wake, self._waker = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="sharpen-queue-server", daemon=True)
        self._thread.start()

    def client(self, wait_seconds: float) -> "_QueueClient":
        return _QueueClient(self._listener.getsockname(), self._key, os.getpid(), wait_seconds)

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
                        consumer = self._accept()
                        if consumer is not None:
                            stack.callback(consumer.close)
                            selector.register(consumer, selectors.EVENT_READ)
                    elif not self._answer(key.fileobj):  # type: ignore[arg-type]
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]

    def _accept(self) -> socket.socket | None:
        consumer, _ = self._listener.accept()
        consumer.settimeout(5.0)
        with contextlib.suppress(OSError):
            if secrets.compare_digest(_read(consumer, KEY_BYTES), self._key):
                consumer.settimeout(None)
                return consumer
        consumer.close()
        return None

    def _answer(self, consumer: socket.socket) -> bool:
        """Send the next item; return False if the consumer has disconnected."""
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
        except Exception as error:  # noqa: BLE001 - the consumer raises it
            return FAILED, pickle.dumps(f"{type(error).__name__}: {error}")


class _QueueClient:
    """A data queue in another process."""

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
            raise QueueError(f"no item within {self._wait_seconds} s: {self._state_of_producer()}") from None
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
            return f"its producer, process {self._producer}, has exited"
        except PermissionError:
            pass
        return f"its producer, process {self._producer}, is alive"


def _listener() -> socket.socket:
    if sys.platform == "linux":
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(b"\0sharpen-queue-" + secrets.token_hex(8).encode())  # an abstract name, without a file
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
            raise ConnectionResetError("connection closed")
        data += part
    return bytes(data)
