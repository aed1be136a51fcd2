"""The ranks other than 0, all together: orders go out, replies come in, and a rank that has gone is an error."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from ....errors import ConfigError, InvalidInputError, SharpenError
from ...errors import ModelError, TrainingError
from .link import LinkClosed
from .messages import AnyOrder, Failure
from .rank_process import RankProcess

T = TypeVar("T")
Posted = list[tuple[RankProcess, int]]

_POLL_SECONDS = 0.1
_MOURNING_SECONDS = 3.0
_END_SECONDS = 5.0
_ERRORS: dict[str, type[SharpenError]] = {
    each.__name__: each for each in (ConfigError, InvalidInputError, ModelError, TrainingError)
}


class Crew:
    """Starts the other ranks. `on_loss` is called, in a thread, when one of them has ended unasked."""

    def __init__(self, num_others: int, on_loss: Callable[[], None]) -> None:
        self._lost: TrainingError | None = None
        self._closing = threading.Lock()
        self._processes: list[RankProcess] = []
        try:
            for rank in range(1, num_others + 1):
                self._processes.append(RankProcess(rank, on_loss))
        except BaseException:
            self.kill()
            raise

    @property
    def pids(self) -> list[int]:
        return [each.pid for each in self._processes]

    def post(self, orders: AnyOrder | Sequence[AnyOrder | None]) -> Posted:
        """Give the same order to all, or each its own (None: nothing to do); the replies are taken with `collect`."""
        self.check()
        if not isinstance(orders, Sequence):
            orders = [orders] * len(self._processes)
        pairs = zip(self._processes, orders, strict=True)
        return [(process, process.post(order)) for process, order in pairs if order is not None]

    def collect(self, posted: Posted, kind: type[T]) -> list[T]:
        """The replies, in the order of the ranks. The first error is raised when all have replied."""
        replies = [self._reply(process, number) for process, number in posted]
        for (process, _), reply in zip(posted, replies, strict=True):
            if isinstance(reply, Failure):
                self._raise(process, reply)
        return [msgspec.msgpack.decode(reply, type=kind) for reply in replies if not isinstance(reply, Failure)]

    def _reply(self, process: RankProcess, number: int) -> bytes | Failure:
        while True:
            try:
                reply = process.reply(number, _POLL_SECONDS)
            except LinkClosed:
                self.mourn()
                self.lose(f"rank {process.rank} (process {process.pid}) no longer answers")
                raise
            if reply is not None:
                return reply.failure or bytes(reply.value)
            if any(each.has_ended for each in self._processes):
                self.mourn()

    def check(self) -> None:
        """A crew that has lost a rank cannot go on."""
        if self._lost is not None:
            raise self._lost

    def mourn(self) -> None:
        """Raise the error of the rank that has ended, if one ends within a moment; the others end, too."""
        end = time.monotonic() + _MOURNING_SECONDS
        while not (ended := [each for each in self._processes if each.has_ended]) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        if ended:
            self.lose(f"rank {ended[0].rank} (process {ended[0].pid}) has ended: {ended[0].obituary()}")

    def lose(self, reason: str) -> None:
        """End all ranks, and raise the error, now and at every later order."""
        if self._lost is None:
            self._lost = TrainingError(f"{reason}\nThe policy is lost: resume the run from its last checkpoint")
        self.kill()
        raise self._lost

    def kill(self) -> None:
        for each in self._processes:
            each.kill()

    def end(self) -> None:
        """All end in order. A second call changes nothing."""
        with self._closing:
            for each in self._processes:
                each.ask_to_end()
            end = time.monotonic() + _END_SECONDS
            for each in self._processes:
                each.end(end - time.monotonic())
            self._lost = self._lost or TrainingError("the ranks of this policy have ended: create a new policy")

    def _raise(self, process: RankProcess, failure: Failure) -> Any:
        message = f"rank {process.rank}: {failure.message}"
        known = _ERRORS.get(failure.kind)
        if known is not None:
            raise known(message)
        raise TrainingError(f"{message} ({failure.kind})\n{failure.traceback}")
