"""Writers that die, sleep or race in the middle of a change: it is applied whole, once, or not at all."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis as client

from sharpen import RedisLightningStore
from sharpen.errors import UnknownIdError
from sharpen.types import EnqueueRolloutRequest
from tests.store.internals import COMMIT, HOLD_MILLISECONDS, SHA, Job

from ..processes import Child, child
from ..scenes import PATIENCE_SECONDS, claim_new, make_span
from ..servers import RedisServer
from .answer_cutter import AnswerCutter, answer_cutter
from .whole import check_whole

pytestmark = pytest.mark.servers

CHILD = Path(__file__).with_name("redis_child.py")
RACER = Path(__file__).with_name("racing_child.py")


@pytest.fixture
def prefix(redis: RedisServer) -> str:
    return redis.new_prefix()


@pytest.fixture
async def store(redis: RedisServer, prefix: str) -> AsyncIterator[RedisLightningStore]:
    opened = RedisLightningStore(redis.url(), prefix=prefix)
    yield opened
    await opened.close()


async def in_the_middle(process: Child) -> None:
    assert await process.hear() == "in the middle"


async def test_a_claim_of_a_process_that_is_killed_in_the_middle_goes_to_the_next(store, redis, prefix):
    rollout = await store.enqueue_rollout("task")
    with child(CHILD, "claim", prefix, REDIS_URL=redis.url()) as process:
        await in_the_middle(process)
        process.kill()
    claimed = await store.dequeue_rollout(worker_id="w-next", wait_seconds=PATIENCE_SECONDS)
    assert claimed is not None
    assert (claimed.rollout_id, claimed.attempt.sequence_id) == (rollout.rollout_id, 1)
    assert [each.worker_id for each in await store.query_attempts(rollout.rollout_id)] == ["w-next"]
    assert (await store.statistics())["total_attempts"] == 1
    assert await store.get_worker_by_id("w-child") is None


async def test_a_process_that_oversleeps_in_the_middle_of_a_claim_does_not_get_it(store, redis, prefix):
    rollout = await store.enqueue_rollout("task")
    with child(CHILD, "claim", prefix, REDIS_URL=redis.url()) as process:
        await in_the_middle(process)
        process.send(signal.SIGSTOP)
        began = time.monotonic()
        claimed = await store.dequeue_rollout(worker_id="w-next", wait_seconds=PATIENCE_SECONDS)
        assert claimed is not None
        assert time.monotonic() - began < HOLD_MILLISECONDS / 1000 + 20  # nobody waits for the sleeper for long
        process.send(signal.SIGCONT)
        process.tell("go on")
        assert await process.hear() == "None"
    assert [each.worker_id for each in await store.query_attempts(rollout.rollout_id)] == ["w-next"]


async def test_a_completion_that_oversleeps_a_cancellation_changes_nothing_of_it(store, redis, prefix):
    claimed = await claim_new(store)
    ids = claimed.rollout_id, claimed.attempt.attempt_id
    with child(CHILD, "complete", prefix, *ids, REDIS_URL=redis.url()) as process:
        await in_the_middle(process)
        await store.cancel_rollouts([claimed.rollout_id])
        process.tell("go on")
        assert await process.hear() == "failed"
    kept = await store.get_rollout_by_id(claimed.rollout_id)
    assert kept is not None
    assert (kept.status, kept.reward) == ("cancelled", None)
    assert len(await store.query_spans(claimed.rollout_id)) == 1  # what it did is still worth looking at
    finished = await store.finished_rollouts()
    assert [each.rollout_id for each in finished.items] == [claimed.rollout_id]


async def test_a_process_that_is_killed_in_the_middle_of_a_completion_leaves_no_part_of_it(store, redis, prefix):
    claimed = await claim_new(store)
    ids = claimed.rollout_id, claimed.attempt.attempt_id
    with child(CHILD, "complete", prefix, *ids, REDIS_URL=redis.url()) as process:
        await in_the_middle(process)
        process.kill()
    assert (await store.get_rollout_by_id(claimed.rollout_id)).status == "preparing"
    assert len(await store.query_spans(claimed.rollout_id)) == 0
    # Nobody has to wait for it.
    await store.complete_attempt(*ids, spans=[make_span(claimed)], reward=0.5)
    assert (await store.get_rollout_by_id(claimed.rollout_id)).reward == 0.5


async def test_processes_that_claim_at_once_get_each_rollout_once(store, redis, prefix):
    requests = [EnqueueRolloutRequest(n) for n in range(150)]
    ids = [each.rollout_id for each in await store.enqueue_many_rollouts(requests)]
    processes = [Child(CHILD, "work", prefix, REDIS_URL=redis.url()) for _ in range(3)]
    done: list[str] = []
    for process in processes:
        while (line := await process.hear()) != "empty":
            done.append(line)
        assert process.wait() == 0
    assert sorted(done) == sorted(ids)
    assert (await store.statistics())["total_attempts"] == len(ids)


async def test_whatever_processes_do_at_once_everything_fits_together(redis, prefix):
    racers = [Child(RACER, prefix, str(seed), "3", REDIS_URL=redis.url()) for seed in range(3)]
    assert min([int(await racer.hear()) for racer in racers]) > 10
    assert [racer.wait() for racer in racers] == [0, 0, 0]
    check_whole(redis.url(), prefix)


async def test_racers_that_are_killed_leave_nothing_half_written(redis, prefix):
    racers = [Child(RACER, prefix, str(seed), "60", REDIS_URL=redis.url()) for seed in range(3)]
    store = RedisLightningStore(redis.url(), prefix=prefix)
    for racer in racers:
        seen = (await store.finished_rollouts()).cursor
        while (await store.finished_rollouts(after=seen)).cursor < seen + 10:
            await store.finished_rollouts(after=seen, wait_seconds=PATIENCE_SECONDS)
        racer.kill()
    await store.close()
    check_whole(redis.url(), prefix)


async def test_a_claim_has_its_attempt_though_a_refused_call_for_the_same_rollout_went_before_it(store, redis, prefix):
    rollout = await store.enqueue_rollout("task")
    refused = Job("complete_attempt", (rollout.rollout_id, "at-unknown"), {})
    claim = Job("dequeue_many_rollouts", (), {"worker_id": "w"})
    store._commit([refused, claim])
    with pytest.raises(UnknownIdError):
        refused.answer()
    (claimed,) = claim.answer()
    assert [each.attempt_id for each in await store.query_attempts(rollout.rollout_id)] == [claimed.attempt.attempt_id]
    check_whole(redis.url(), prefix)


# -- answers that are lost -----------------------------------------------------------------------------


@pytest.fixture
async def proxy(redis: RedisServer) -> AsyncIterator[AnswerCutter]:
    async with answer_cutter(redis.port) as opened:
        yield opened


@pytest.fixture
async def behind(redis: RedisServer, prefix: str, proxy: AnswerCutter) -> AsyncIterator[RedisLightningStore]:
    """A store whose answers the proxy can lose."""
    opened = await asyncio.to_thread(RedisLightningStore, redis.url(port=proxy.port), prefix=prefix)
    yield opened
    await opened.close()


async def test_a_change_whose_answer_is_lost_is_applied_once(store, behind, proxy):
    proxy.cut = [SHA[COMMIT].encode()] * 4
    rollout = await behind.enqueue_rollout("task")
    assert len(await store.query_rollouts()) == 1
    claimed = await behind.dequeue_rollout(worker_id="w")  # without a request_id a second claim would be another one
    assert [each.attempt_id for each in await store.query_attempts(rollout.rollout_id)] == [claimed.attempt.attempt_id]
    numbers = [await behind.get_next_span_sequence_id(rollout.rollout_id, claimed.attempt.attempt_id) for _ in range(2)]
    assert numbers == [1, 2]
    assert proxy.lost == 4


async def test_a_read_whose_answer_is_lost_is_asked_again(store, behind, proxy):
    rollout = await store.enqueue_rollout("task")
    proxy.cut = [b"EVALSHA"]
    assert (await behind.get_rollout_by_id(rollout.rollout_id)).status == "queuing"
    assert proxy.lost == 1


# -- requests ------------------------------------------------------------------------------------------


async def test_a_claim_with_a_request_id_sends_little_more_than_one_without(store, redis, prefix):
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(1000)])
    with client.Redis.from_url(redis.url()) as looking:
        sent = [looking.info("stats")["total_net_input_bytes"]]
        for request_id in (None, "rq-1"):
            assert len(await store.dequeue_many_rollouts(limit=500, request_id=request_id)) == 500
            sent.append(looking.info("stats")["total_net_input_bytes"])
    assert sent[2] - sent[1] < 2 * (sent[1] - sent[0])


async def test_a_request_for_thousands_is_answered_and_asked_again_gives_the_same(store, redis, prefix):
    await store.enqueue_many_rollouts([EnqueueRolloutRequest(n) for n in range(5001)])
    claims = await store.dequeue_many_rollouts(limit=5000, worker_id="w", request_id="rq-1")
    assert [each.input for each in claims] == list(range(5000))
    again = await store.dequeue_many_rollouts(limit=5000, worker_id="w", request_id="rq-1")
    assert [each.attempt for each in again] == [each.attempt for each in claims]
    assert (await store.statistics())["queue_length"] == 1
    check_whole(redis.url(), prefix)


async def test_a_request_whose_rollout_was_made_anew_is_answered_with_its_new_claim(store):
    """The old claim stands in the list of the request, but its attempt has gone with the first rollout."""
    again = EnqueueRolloutRequest("task", rollout_id="ro-same")
    await store.enqueue_many_rollouts([again, EnqueueRolloutRequest("other")])
    for claimed in await store.dequeue_many_rollouts(limit=2, request_id="rq-1"):
        if claimed.rollout_id == "ro-same":
            await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id)
    await store.prune(older_than=0)
    await store.enqueue_many_rollouts([again])
    (other,) = await store.dequeue_many_rollouts(limit=2, request_id="rq-1")
    await store.complete_attempt(other.rollout_id, other.attempt.attempt_id)
    await store.prune(older_than=0)
    first = await store.dequeue_many_rollouts(request_id="rq-1")
    assert [each.rollout_id for each in first] == ["ro-same"]
    assert await store.dequeue_many_rollouts(request_id="rq-1") == first


async def test_hundreds_of_refused_calls_in_one_change_take_nothing_from_the_others(store):
    claimed = await claim_new(store)
    gone = make_span(claimed)
    refused = [Job("complete_attempt", (f"ro-gone-{number}", gone.attempt_id), {}) for number in range(600)]
    good = Job("complete_attempt", (claimed.rollout_id, claimed.attempt.attempt_id), {"spans": [gone]})
    await asyncio.to_thread(store._transactions.run, [*refused[:300], good, *refused[300:]])
    assert good.error is None
    assert all(isinstance(job.error, UnknownIdError) for job in refused)
    assert (await store.get_rollout_by_id(claimed.rollout_id)).status == "succeeded"
