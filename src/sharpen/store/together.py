"""Writes of one client that travel together.

While two requests of an event loop are on their way, further writes wait and then leave as one. Many small writes at
once cost little more than one: the store commits them together, and each gets an answer of its own. A runner that
reports an outcome and claims the next rollout says so before, and both leave as one.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from ..errors import SharpenError
from .methods import BatchAnswer
from .spool import Entry

ON_THE_WAY = 2
MAX_TOGETHER = 64
HOLD_SECONDS = 0.005  # how long writes wait for a claim that was announced
CLAIM = "/v1/queue:claim-batch"
MAX_BODY = 64 * 1024  # larger ones are worth a request of their own
_decode_answers = msgspec.json.Decoder(list[BatchAnswer]).decode

Send = Callable[[Entry], Awaitable[tuple[int, bytes]]]


def may_travel_together(entry: Entry) -> bool:
    """Small writes; claims and waits have to answer by themselves."""
    waits = "/queue:" in entry.path or entry.path.endswith(":wait")
    return entry.verb != "GET" and not waits and len(entry.body) <= MAX_BODY


class Together:
    """The writes of one event loop."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._on_the_way = 0
        self._waiting: list[tuple[Entry, asyncio.Future[tuple[int, bytes]]]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._hold: asyncio.TimerHandle | None = None

    def expect_claim(self) -> None:
        """A claim follows at once: hold writes back until it comes, so that they leave with it."""
        if self._hold is None:
            self._hold = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._let_go)

    @property
    def has_held(self) -> bool:
        """Whether writes wait for the claim that was announced."""
        return self._hold is not None and bool(self._waiting)

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None
            self._leave()

    async def send(self, entry: Entry) -> tuple[int, bytes]:
        """Status and body of the answer, whether the entry travelled alone or with others."""
        if self._on_the_way >= ON_THE_WAY or self._hold is not None:
            future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()
            self._waiting.append((entry, future))
            if entry.path == CLAIM:
                self._let_go()
            return await future
        self._on_the_way += 1
        try:
            return await self._send(entry)
        finally:
            self._arrived()

    def _arrived(self) -> None:
        """A request is back: those who waited for that leave together."""
        self._on_the_way -= 1
        if self._hold is None:
            self._leave()

    def _leave(self) -> None:
        if self._waiting:
            group, self._waiting = self._waiting[:MAX_TOGETHER], self._waiting[MAX_TOGETHER:]
            self._on_the_way += 1
            task = asyncio.get_running_loop().create_task(self._send_group(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_group(self, group: list[tuple[Entry, asyncio.Future[tuple[int, bytes]]]]) -> None:
        try:
            answers = await self._ask([entry for entry, _ in group])
            for (_, future), answer in zip(group, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        except BaseException as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._arrived()

    async def _ask(self, entries: list[Entry]) -> list[tuple[int, bytes]]:
        if len(entries) == 1:
            return [await self._send(entries[0])]
        requests = ",".join(
            f'{{"verb":"{entry.verb}","path":{msgspec.json.encode(entry.path).decode()},"body":{entry.body or "{}"}}}'
            for entry in entries
        )
        status, body = await self._send(Entry("POST", "/v1/batch", f'{{"requests":[{requests}]}}'))
        try:
            if status == 200:
                return [(answer.status, bytes(answer.body)) for answer in _decode_answers(body)]
        except (msgspec.DecodeError, SharpenError):
            pass  # not an answer of a store: ask for each by itself
        return [await self._send(entry) for entry in entries]
