"""`DataQueue`: the items of a data set, each given out exactly `repeat` times, to whoever asks.

The order is fixed by the seed, and what was given out is one number, the cursor, which can be saved. The process that
opened the queue takes items directly. Other processes ask it over a local socket, which appears when the queue first
leaves its process; nothing sleeps, and nothing stays behind.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import numpy as np

from ..checks import check_int
from ..errors import QueueError
from .queue_server import QueueClient, QueueServer

T = TypeVar("T")
WAIT_SECONDS = 60.0


class DataQueue(Generic[T]):
    """Gives each item of `dataset` exactly `repeat` times (-1: for ever).

    `producer_num_workers` threads load items ahead, at most `queue_maxsize` of them, for data sets whose items are
    slow to load. `seed` fixes the order of a shuffled queue.
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
        self.repeat = check_int("repeat", repeat, at_least=-1)  # -1: without end
        self.producer_num_workers, self.queue_maxsize = producer_num_workers, queue_maxsize
        self._seed = int(np.random.SeedSequence().generate_state(1)[0]) if seed is None else seed
        self._wait_seconds = wait_seconds
        self._cursor = 0
        self._epoch: tuple[int, Sequence[int]] | None = None
        self._extra: deque[T] = deque()
        self._ahead: deque[Future[T]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._server: QueueServer | None = None
        self._client: QueueClient | None = None
        self._lock = threading.RLock()
        self._is_active = self._is_marked = False
        self._owner = os.getpid()

    # -- its life ------------------------------------------------------------------------------------

    def activate(self) -> "DataQueue[T]":
        """Open the queue; it goes on where it was left."""
        if self._is_active:
            raise QueueError("this data queue is open already")
        self._is_active, self._is_marked = True, False
        if self.producer_num_workers > 0:
            self._pool = ThreadPoolExecutor(self.producer_num_workers, "sharpen-queue")
        _open_queues.add(self)
        return self

    def cleanup(self) -> None:
        """Close the queue; consumers in other processes are told that it is over."""
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

    # -- its items -----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[T]:
        if self._is_here and not self._is_active:
            raise QueueError("open the data queue before iterating: with queue: …, or queue.activate()")
        return self

    def __next__(self) -> T:
        return self.get()

    def get(self, block: bool = True) -> T:
        """The next item; StopIteration when there is no other.

        Nothing is ever waited for but an item that loads: `block=False` raises QueueError instead of waiting for it.
        """
        return self._take(block) if self._is_here else self._ask()

    def put(self, obj: T, block: bool = True, timeout: float | None = None) -> None:
        """Give out one more item, before the next of the data set. There is always room: nothing is waited for."""
        with self._lock:
            self._extra.append(obj)

    def mark_as_done(self) -> None:
        """Give out no more."""
        self._is_marked = True

    def done(self) -> bool:
        """Whether everything has been given out."""
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
            raise QueueError("the next item is not loaded yet: ask again, or wait with get(block=True)")
        try:
            item = self._ahead[0].result(self._wait_seconds)
        except TimeoutError:
            raise QueueError(
                f"no item came in {self._wait_seconds} s: {self.producer_num_workers} producer threads of process "
                f"{os.getpid()} are alive and still loading item {self._index(self._cursor)}"
            ) from None
        self._ahead.popleft()
        return item

    def _index(self, position: int) -> int:
        """Which item of the data set has this place in the order."""
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
            raise QueueError(f"this data queue was not open when it left process {self._owner}: open it first")
        return self._client.get()  # type: ignore[no-any-return]

    def _serve(self) -> QueueServer:
        with self._lock:
            if self._server is None:
                self._server = QueueServer(lambda: self._take(True))
            return self._server

    def __getstate__(self) -> dict[str, Any]:
        client = self._client
        if self._is_here and self._is_active:
            client = self._serve().client(self._wait_seconds)
        return {"client": client, "owner": self._owner, "length": len(self.dataset), "repeat": self.repeat}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(range(state["length"]), state["repeat"])  # type: ignore[misc]
        self._client, self._owner = state["client"], state["owner"]

    # -- its state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, int]:
        """How far it is, and the seed of its order."""
        return {"cursor": self._cursor, "seed": self._seed}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        with self._lock:
            self._cursor, self._seed = int(state_dict["cursor"]), int(state_dict["seed"])
            self._epoch = None
            self._ahead.clear()


_open_queues: "weakref.WeakSet[DataQueue[Any]]" = weakref.WeakSet()


def _before_fork() -> None:
    """A fork asks its parent for items, so that each is given out once."""
    for queue in list(_open_queues):
        if queue._is_here:
            queue._client = queue._serve().client(queue._wait_seconds)


def _after_fork() -> None:
    for queue in list(_open_queues):
        queue._lock = threading.RLock()
        if queue._server is not None:
            queue._server.forget()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
