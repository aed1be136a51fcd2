"""Long polls over HTTP: for work, for completions, for a set of rollouts; and clients that go away meanwhile."""

import asyncio
import json

import pytest

from .scenes import claim_new, finish_new, within_patience
from .served import KINDS, LONG, make_store, serve


@pytest.fixture(params=KINDS)
async def served(request, tmp_path):
    async with serve(make_store(request.param, tmp_path)) as opened:
        yield opened


@pytest.mark.parametrize("path", ["/v1/queue:claim", "/v1/queue:claim-batch"])
async def test_a_claim_that_waits_is_woken_by_an_enqueue(served, path):
    poll = asyncio.ensure_future(served.curl("POST", path, {"wait_seconds": LONG}))
    await served.curl.polls(1)
    sent = (await served.curl("POST", "/v1/rollouts", {"input": "task"})).json
    answer = (await within_patience(poll)).json
    claimed = answer if path == "/v1/queue:claim" else answer[0]
    assert (claimed["rollout_id"], claimed["attempt"]["sequence_id"]) == (sent["rollout_id"], 1)


async def test_a_wait_for_rollouts_is_woken_by_the_last_of_them(served):
    first, second = await claim_new(served.store), await claim_new(served.store)
    body = {"rollout_ids": [first.rollout_id, second.rollout_id], "timeout": LONG}
    poll = asyncio.ensure_future(served.curl("POST", "/v1/rollouts:wait", body))
    await served.curl.polls(1)
    for claimed in (second, first):
        assert not poll.done()
        attempt = f"/v1/rollouts/{claimed.rollout_id}/attempts/{claimed.attempt.attempt_id}"
        assert (await served.curl("POST", f"{attempt}/completion", {"reward": 1})).status == 200
    found = (await within_patience(poll)).json
    assert [rollout["rollout_id"] for rollout in found] == [first.rollout_id, second.rollout_id]
    assert {rollout["status"] for rollout in found} == {"succeeded"}


async def test_a_wait_for_completions_is_woken_by_one_and_goes_on_from_its_cursor(served):
    await finish_new(served.store, "first")
    cursor = (await served.curl("GET", f"/v1/rollouts:finished?wait_seconds={LONG}")).json["cursor"]
    path = f"/v1/rollouts:finished?wait_seconds={LONG}&after={cursor}"
    poll = asyncio.ensure_future(served.curl("GET", path))
    await served.curl.polls(1)
    await finish_new(served.store, "second")
    found = (await within_patience(poll)).json
    assert [rollout["input"] for rollout in found["items"]] == ["second"]
    assert found["cursor"] > cursor


async def test_a_client_that_goes_away_while_it_waits_claims_nothing(served):
    body = json.dumps({"wait_seconds": LONG}).encode()
    reader, writer = await served.connect()
    writer.write(
        b"POST /v1/queue:claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(body), body)
    )
    await served.curl.polls(1)
    writer.close()
    await served.curl.polls(0)
    assert await served.curl.metric("requests_total", 'method="dequeue_rollout",status="499"') == 1
    rollout = await served.store.enqueue_rollout("task")
    assert (await served.store.statistics())["total_attempts"] == 0
    claimed = (await served.curl("POST", "/v1/queue:claim", {"wait_seconds": LONG})).json
    assert (claimed["rollout_id"], claimed["attempt"]["sequence_id"]) == (rollout.rollout_id, 1)
    assert await reader.read() == b""


async def test_many_polls_wait_side_by_side_and_each_is_served_once(served):
    polls = [asyncio.ensure_future(served.curl("POST", "/v1/queue:claim", {"wait_seconds": LONG})) for _ in range(20)]
    await served.curl.polls(20)
    for number in range(20):
        await served.curl("POST", "/v1/rollouts", {"input": number})
    claimed = [(await within_patience(poll)).json["input"] for poll in polls]
    assert sorted(claimed) == list(range(20))
