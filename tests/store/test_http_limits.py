"""What the server takes in one request, and how it says that this was too much."""

import gzip
import json

import msgspec

from .scenes import claim_new, make_span, within_patience
from .served import serve, sizes


def enqueue_body(size: int) -> bytes:
    """A request of exactly so many bytes."""
    frame = b'{"input": ""}'
    return frame[:-2] + b"x" * (size - len(frame)) + frame[-2:]


async def test_a_body_above_the_limit_is_413():
    async with serve(max_body_bytes=1000) as served:
        reply = await served.curl("POST", "/v1/rollouts", data=enqueue_body(1001))
        assert (reply.status, reply.error[0]) == (413, "TooLargeError")
        assert "1001" in reply.error[1]
        assert "1000" in reply.error[1]
        assert (await served.store.statistics())["total_rollouts"] == 0
        assert (await served.curl("POST", "/v1/rollouts", data=enqueue_body(1000))).status == 200


async def test_a_body_above_the_limit_is_413_also_when_it_comes_in_pieces():
    async def pieces(body: bytes):
        for start in range(0, len(body), 100):
            yield body[start : start + 100]

    async with serve(max_body_bytes=1000) as served:
        reply = await served.curl("POST", "/v1/rollouts", data=pieces(enqueue_body(1001)))
        assert (reply.status, reply.error[0]) == (413, "TooLargeError")
        assert (await served.store.statistics())["total_rollouts"] == 0
        assert (await served.curl("POST", "/v1/rollouts", data=pieces(enqueue_body(1000)))).status == 200


async def test_an_announced_body_above_the_limit_is_not_waited_for():
    async with serve(max_body_bytes=1000) as served:
        reader, writer = await served.connect()
        writer.write(
            b"POST /v1/rollouts HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"content-length: 99999999999\r\n\r\n"
        )
        head = await within_patience(reader.readline())
        assert b" 413 " in head
        writer.close()


async def test_a_batch_above_the_limit_is_413():
    async with serve(max_batch=3) as served:
        claimed = await claim_new(served.store)
        pair = [claimed.rollout_id, claimed.attempt.attempt_id]
        completion = f"/v1/rollouts/{pair[0]}/attempts/{pair[1]}/completion"
        spans = [json.loads(msgspec.json.encode(make_span(claimed))) for _ in range(4)]
        for path, name, items in (
            ("/v1/rollouts:batch", "requests", [{"input": n} for n in range(4)]),
            ("/v1/spans:sequence", "pairs", [pair] * 4),
            ("/v1/spans:batch", "spans", spans),
            (completion, "spans", spans),
        ):
            before = await sizes(served.curl)
            reply = await served.curl("POST", path, {name: items})
            assert (reply.status, reply.error[0]) == (413, "TooLargeError")
            assert f"{name} has 4" in reply.error[1]
            assert await sizes(served.curl) == before
            assert (await served.curl("POST", path, {name: items[:3]})).status == 200


async def test_a_small_zipped_body_that_unpacks_to_a_large_one_is_413():
    bomb = gzip.compress(b'{"resourceSpans": []}' + b" " * 5_000_000)
    async with serve(max_body_bytes=10_000) as served:
        assert len(bomb) < 10_000
        reply = await served.curl("POST", "/v1/traces", data=bomb, headers={"content-encoding": "gzip"})
        assert (reply.status, reply.error[0]) == (413, "TooLargeError")


async def test_a_wait_is_cut_to_what_the_server_allows():
    async with serve(max_wait_seconds=0.05) as served:
        rollout = await served.store.enqueue_rollout("task", rollout_id="ro-1")
        wait = {"rollout_ids": [rollout.rollout_id]}
        assert (await served.curl("POST", "/v1/rollouts:wait", wait | {"timeout": 1e9})).json == []
        assert (await served.curl("POST", "/v1/rollouts:wait", wait)).json == []
        assert (await served.curl("GET", "/v1/rollouts:finished?wait_seconds=1e9")).json["items"] == []
        await served.store.dequeue_rollout()
        assert (await served.curl("POST", "/v1/queue:claim", {"wait_seconds": 1e9})).json is None
        assert (await served.curl("POST", "/v1/queue:claim-batch", {"wait_seconds": 1e9})).json == []
