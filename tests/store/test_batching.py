"""Writes that share a request: fewer requests, and each write keeps an answer of its own."""

import asyncio
import re

import aiohttp
import pytest

from sharpen.errors import UnknownIdError
from sharpen.store import InMemoryLightningStore, LightningStoreClient, LightningStoreServer, SQLiteStore
from sharpen.types import EnqueueRolloutRequest, Span
from tests.errors import whole

from .cutting_proxy import cutting_proxy


@pytest.fixture(params=["memory", "sqlite"])
async def server(request, tmp_path):
    store = InMemoryLightningStore() if request.param == "memory" else SQLiteStore(tmp_path / "store.db")
    served = LightningStoreServer(store)
    await served.start()
    yield served
    await served.close()


@pytest.fixture
async def client(server):
    opened = LightningStoreClient(server.endpoint, retry_seconds=10)
    yield opened
    await opened.close()


async def claim_many(client, count):
    await client.enqueue_many_rollouts([EnqueueRolloutRequest({"n": n}) for n in range(count)])
    return await client.dequeue_many_rollouts(limit=count, worker_id="w")


def complete(client, rollout, **outcome):
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": rollout.attempt.attempt_id}
    spans = [Span.from_attributes(attributes={"n": rollout.input["n"]}, **ids)]
    return client.complete_attempt(**ids, spans=spans, reward=float(rollout.input["n"]), **outcome)


def requests_answered(server):
    return sum(server._app.metrics._requests.values())


async def post_batch(server, requests):
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{server.endpoint}/v1/batch", json={"requests": requests}) as reply,
    ):
        return reply.status, await reply.json()


async def test_many_completions_at_once_are_all_stored_in_few_requests(server, client):
    claimed = await claim_many(client, 100)
    before = requests_answered(server)
    attempts = await asyncio.gather(*(complete(client, rollout) for rollout in claimed))
    assert [attempt.attempt_id for attempt in attempts] == [rollout.attempt.attempt_id for rollout in claimed]
    assert requests_answered(server) - before <= 20
    for rollout in claimed:
        done = await client.get_rollout_by_id(rollout.rollout_id)
        assert (done.status, done.reward) == ("succeeded", float(rollout.input["n"]))
        assert [span.attributes for span in await client.query_spans(rollout.rollout_id)] == [rollout.input]


async def test_a_write_that_is_refused_does_not_touch_those_that_travel_with_it(client):
    claimed = await claim_many(client, 20)
    writes = [complete(client, rollout) for rollout in claimed]
    writes.insert(10, client.complete_attempt("ro-unknown", "at-unknown"))
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(outcomes.pop(10), UnknownIdError)
    assert [attempt.status for attempt in outcomes] == ["succeeded"] * 20


async def test_writes_that_travel_together_are_spooled_when_the_server_goes_away(server, tmp_path):
    client = LightningStoreClient(server.endpoint, retry_seconds=0.3, spool_after_seconds=0.3, spool_folder=tmp_path)
    claimed = await claim_many(client, 20)
    await server.stop()
    await asyncio.gather(*(complete(client, rollout) for rollout in claimed))
    assert client.spooled == 20
    await server.start()
    ids = [rollout.rollout_id for rollout in claimed]
    finished = await server.wait_for_rollouts(rollout_ids=ids, timeout=30)
    assert {rollout.status for rollout in finished} == {"succeeded"}
    assert len(finished) == 20
    await client.close()


async def test_a_batch_answers_each_write_with_its_own_status(server):
    status, answers = await post_batch(
        server,
        [
            {"verb": "POST", "path": "/v1/rollouts", "body": {"input": 1, "rollout_id": "ro-1"}},
            {"verb": "POST", "path": "/v1/rollouts", "body": {"inputs": 1}},
            {"verb": "PATCH", "path": "/v1/rollouts/ro-2", "body": {"mode": "val"}},
            {"verb": "POST", "path": "/v1/nowhere"},
        ],
    )
    assert status == 200
    assert [answer["status"] for answer in answers] == [200, 400, 404, 404]
    assert answers[0]["body"]["rollout_id"] == "ro-1"
    assert answers[2]["body"]["error"]["type"] == "UnknownIdError"


@pytest.mark.parametrize(
    "entry",
    [
        {"verb": "POST", "path": "/v1/queue:claim-batch", "body": {"wait_seconds": 30}},
        {"verb": "POST", "path": "/v1/rollouts:wait", "body": {"rollout_ids": []}},
        {"verb": "POST", "path": "/v1/batch", "body": {"requests": []}},
        {"verb": "POST", "path": ""},
        {"verb": "PATCH", "path": "v1"},
    ],
    ids=lambda entry: entry["path"],
)
async def test_what_waits_or_reads_is_no_part_of_a_batch(server, entry):
    status, answers = await post_batch(server, [entry])
    assert status == 200
    assert answers[0]["status"] in (400, 404, 405)


async def test_a_batch_that_reads_is_refused_as_a_whole(server):
    status, answer = await post_batch(server, [{"verb": "GET", "path": "/v1/statistics"}])
    assert status == 400
    assert "GET" in answer["error"]["message"]


async def test_a_batch_has_a_bound(server):
    entry = {"verb": "POST", "path": "/v1/rollouts", "body": {"input": 1}}
    status, answer = await post_batch(server, [entry] * 257)
    assert status == 413
    assert all(re.search(whole(value), answer["error"]["message"]) for value in (257, 256))
    assert (await server.statistics())["total_rollouts"] == 0


async def report_and_claim(client, rollout, **claim):
    """As a runner does: it says that a claim follows, reports, and claims."""
    client.expect_claim()
    _, claimed = await asyncio.gather(
        complete(client, rollout), client.dequeue_many_rollouts(worker_id="w", wait_seconds=5, **claim)
    )
    return claimed


async def test_an_outcome_and_the_claim_that_follows_are_one_request(server, client):
    (first,) = await claim_many(client, 1)
    await client.enqueue_rollout({"n": 7})
    before = requests_answered(server)
    (second,) = await report_and_claim(client, first)
    assert requests_answered(server) - before <= 3  # the batch, and what it holds
    assert second.input == {"n": 7}
    assert (await client.get_rollout_by_id(first.rollout_id)).status == "succeeded"


async def test_a_claim_that_finds_nothing_on_the_way_waits_by_itself(client):
    (first,) = await claim_many(client, 1)
    waiting = asyncio.create_task(report_and_claim(client, first))
    await client.wait_for_rollouts(rollout_ids=[first.rollout_id])
    await client.enqueue_rollout({"n": 8})
    (second,) = await waiting
    assert second.input == {"n": 8}


async def test_an_outcome_leaves_also_when_the_announced_claim_never_comes(client):
    (first,) = await claim_many(client, 1)
    client.expect_claim()
    assert (await complete(client, first)).status == "succeeded"


async def test_a_claim_whose_answer_was_lost_on_the_way_is_the_same_claim(server, tmp_path):
    async with cutting_proxy(server.endpoint) as proxy:
        client = LightningStoreClient(proxy.url, retry_seconds=10, spool_folder=tmp_path)
        (first,) = await claim_many(client, 1)
        await client.enqueue_many_rollouts([EnqueueRolloutRequest({"n": n}) for n in (7, 8)])
        proxy.cut.append("/v1/batch")
        (second,) = await report_and_claim(client, first)
        assert second.input == {"n": 7}
        assert (await client.statistics())["queue_length"] == 1
        assert (await client.get_rollout_by_id(first.rollout_id)).status == "succeeded"
        await client.close()


async def test_a_write_that_is_nested_too_deeply_is_refused(server):
    body = b'{"requests": [{"verb": "POST", "path": "/v1/rollouts", "body": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}"
    async with aiohttp.ClientSession() as session:
        headers = {"content-type": "application/json"}
        async with session.post(f"{server.endpoint}/v1/batch", data=body, headers=headers) as answer:
            assert (answer.status, (await answer.json())["error"]["type"]) == (400, "InvalidInputError")
