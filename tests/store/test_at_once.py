"""Any calls at once, through two stores in one database: none fails for the sake of another, nothing is half-done."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from sharpen.errors import FinishedError, UnknownIdError
from sharpen.store import LightningStore
from sharpen.types import AttemptedRollout, EnqueueRolloutRequest, RolloutConfig

from .scenes import RETRY_ALL, make_span, within_patience
from .wholeness import check_whole
from .worlds import Clock, Ground

CALLERS = 8
CALLS = 60
ROLLOUTS = 60
CONFIGS = [RolloutConfig(), RolloutConfig(unresponsive_seconds=0.1, max_attempts=3, retry_condition=RETRY_ALL)]


class Caller:
    """Calls whatever comes to its mind, as often with things of others as with its own."""

    def __init__(self, store: LightningStore, name: str, claims: list[AttemptedRollout], seed: str) -> None:
        self.store, self.name, self.claims = store, name, claims
        self.random = random.Random(seed)
        self.calls: list[Callable[[], Awaitable[object]]] = [
            self.enqueue, self.claim, self.claim, self.add_spans, self.add_spans, self.complete, self.complete,
            self.cancel, self.move, self.report, self.start, self.beat, self.publish,
        ]  # fmt: skip

    async def run(self) -> None:
        for _ in range(CALLS):
            # What another has ended meanwhile, or not made yet, is refused: that is a fair answer.
            with suppress(FinishedError, UnknownIdError):
                await self.random.choice(self.calls)()

    def some_ids(self) -> list[str]:
        return [f"ro-{number}" for number in self.random.sample(range(ROLLOUTS), 4)]

    def some_claims(self) -> list[AttemptedRollout]:
        return self.random.sample(self.claims, min(3, len(self.claims)))

    async def enqueue(self) -> None:
        config = self.random.choice(CONFIGS)
        await self.store.enqueue_many_rollouts(
            [EnqueueRolloutRequest("task", config=config, rollout_id=each) for each in self.some_ids()]
        )

    async def claim(self) -> None:
        request_id = self.random.choice([None, f"rq-{self.random.randrange(10)}"])
        self.claims += await self.store.dequeue_many_rollouts(
            limit=self.random.randint(1, 3), worker_id=self.name, request_id=request_id
        )

    async def add_spans(self) -> None:
        if self.claims:
            await self.store.add_many_spans([make_span(each) for each in self.some_claims() for _ in range(2)])

    async def complete(self) -> None:
        for each in self.some_claims()[:1]:
            status = self.random.choice(["succeeded", "succeeded", "failed"])
            await self.store.complete_attempt(
                each.rollout_id, each.attempt.attempt_id, spans=[make_span(each)], status=status, reward=0.5
            )

    async def cancel(self) -> None:
        await self.store.cancel_rollouts(self.some_ids()[:2])

    async def move(self) -> None:
        await self.store.update_rollout(self.some_ids()[0], status=self.random.choice(["queuing", "failed"]))

    async def report(self) -> None:
        for each in self.some_claims()[:1]:
            status = self.random.choice(["running", "unresponsive", "failed"])
            await self.store.update_attempt(each.rollout_id, each.attempt.attempt_id, status=status)

    async def start(self) -> None:
        self.claims.append(await self.store.start_attempt(self.some_ids()[0], self.name))

    async def beat(self) -> None:
        await self.store.update_worker(f"w-{self.random.randrange(CALLERS)}")

    async def publish(self) -> None:
        await self.store.update_resources("rs-1", {})


async def follow(store: LightningStore, is_over: Callable[[], bool]) -> list[str]:
    """The order of finishing, as somebody sees it who looks on all the time."""
    found, cursor, is_last = [], 0, False
    while not is_last:
        is_last = is_over()
        page = await store.finished_rollouts(after=cursor)
        found += [rollout.rollout_id for rollout in page.items]
        cursor = page.cursor
    return found


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["postgres", "redis"])
async def test_whatever_is_called_at_once_the_store_stays_whole(ground: Ground, kind: str):
    seed = time.time_ns() % 1_000_000
    print(f"seed {seed}")
    clock = StoppableClock()
    database = ground.database(kind)
    stores = [database.open(clock=clock) for _ in range(2)]
    await stores[0].add_resources({}, "rs-1")
    claims: list[AttemptedRollout] = []
    callers = [Caller(stores[n % 2], f"w-{n}", claims, f"{seed}-{n}") for n in range(CALLERS)]
    working = asyncio.gather(*(caller.run() for caller in callers))
    following = [asyncio.ensure_future(follow(store, working.done)) for store in stores]
    await within_patience(working)
    seen = await within_patience(asyncio.gather(*following))
    clock.stop()
    for store in stores:
        store.expire()
    finished = [rollout.rollout_id for rollout in (await stores[0].finished_rollouts()).items]
    for order in seen:
        assert order == finished[: len(order)], "whoever looked on saw another order"
    await check_whole(stores[1])
    for store in stores:
        await store.close()


class StoppableClock(Clock):
    """The clock of the machine, until it is stopped for a look around."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def __call__(self) -> float:
        return self.now or time.time()

    def stop(self) -> None:
        self.now = time.time()
