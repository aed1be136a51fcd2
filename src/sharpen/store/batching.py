"""`WriteBatcher`: small writes of one client that share a request.

While two requests of an event loop are in flight, further writes wait and then leave as one. Many small writes at once
cost little more than one: the store commits them together, and each gets an answer of its own. A runner that reports an
outcome and claims the next rollout announces that, and both leave as one.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from .methods import BatchAnswer
from .spool import Entry

MAX_IN_FLIGHT = 2
MAX_WRITES = 64
HOLD_SECONDS = 0.005  # how long writes wait for a claim that was announced
CLAIM = "/v1/queue:claim-batch"
MAX_BODY = 64 * 1024  # larger ones are worth a request of their own
_decode_answers = msgspec.json.Decoder(list[BatchAnswer]).decode

Answer = tuple[int, bytes]
"""Status and body."""
Send = Callable[[Entry], Awaitable[Answer]]


def can_batch(entry: Entry) -> bool:
    """Whether it is a small write; claims and waits have to be answered by themselves."""
    waits = "/queue:" in entry.path or entry.path.endswith(":wait")
    return entry.verb != "GET" and not waits and len(entry.body) <= MAX_BODY


class WriteBatcher:
    """The writes of one event loop. `send` sends one request."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._in_flight = 0
        self._waiting: list[tuple[Entry, asyncio.Future[Answer]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._hold: asyncio.TimerHandle | None = None

    def expect_claim(self) -> None:
        """Hold writes back until the claim that follows at once, so that they leave with it."""
        if self._hold is None:
            self._hold = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._release)

    @property
    def has_held(self) -> bool:
        """Whether writes wait for the claim that was announced."""
        return self._hold is not None and bool(self._waiting)

    def _release(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None
            self._send_waiting()

    async def send(self, entry: Entry) -> Answer:
        """Return the answer, whether the entry was sent alone or with others."""
        if self._in_flight >= MAX_IN_FLIGHT or self._hold is not None:
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._waiting.append((entry, future))
            if entry.path == CLAIM:
                self._release()
            return await future
        self._in_flight += 1
        try:
            return await self._send(entry)
        finally:
            self._note_answer()

    def _note_answer(self) -> None:
        self._in_flight -= 1
        if self._hold is None:
            self._send_waiting()

    def _send_waiting(self) -> None:
        if self._waiting:
            batch, self._waiting = self._waiting[:MAX_WRITES], self._waiting[MAX_WRITES:]
            self._in_flight += 1
            task = asyncio.get_running_loop().create_task(self._send_batch(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_batch(self, batch: list[tuple[Entry, asyncio.Future[Answer]]]) -> None:
        try:
            answers = await self._ask([entry for entry, _ in batch])
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._note_answer()

    async def _ask(self, entries: list[Entry]) -> list[Answer]:
        if len(entries) == 1:
            return [await self._send(entries[0])]
        requests = ",".join(
            f'{{"verb":"{entry.verb}","path":{msgspec.json.encode(entry.path).decode()},"body":{entry.body or "{}"}}}'
            for entry in entries
        )
        status, body = await self._send(Entry("POST", "/v1/batch", f'{{"requests":[{requests}]}}'))
        if status == 200:
            try:
                return [(answer.status, bytes(answer.body)) for answer in _decode_answers(body)]
            except msgspec.DecodeError:
                pass  # it is not the answer of a store
        return [await self._send(entry) for entry in entries]
