"""The client's connections: kept, replaced when stale, and honest about what is no answer."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from sharpen.store.connections import Connections

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nsharpen-store: st-1\r\n\r\nok"


@asynccontextmanager
async def answering(*answers, closes_after=None):
    """A server that gives these answers in turn on each connection; None says nothing."""
    seen = []

    async def serve(reader, writer):
        connection = len(seen)
        seen.append([])
        try:
            for number, answer in enumerate(answers):
                head = await reader.readuntil(b"\r\n\r\n")
                seen[connection].append(head.decode())
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                if answer is None:
                    await asyncio.sleep(60)
                writer.write(answer)
                if closes_after == number + 1:
                    return
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/base", seen


def ask(connections, **more):
    return connections.exchange("POST", "/v1/x", "{}", **{"seconds": 5, **more})


async def test_a_connection_is_kept_for_the_next_request():
    async with answering(OK, OK) as (url, seen):
        connections = Connections(url, {"authorization": "Bearer t"})
        for _ in range(2):
            answer = await ask(connections)
            assert (answer.status, answer.store_id, answer.body) == (200, "st-1", b"ok")
        connections.close()
    assert len(seen) == 1
    assert seen[0][0].startswith("POST /base/v1/x HTTP/1.1\r\n")
    assert "authorization: Bearer t\r\n" in seen[0][0]


async def test_requests_at_once_use_connections_of_their_own():
    async with answering(OK) as (url, seen):
        connections = Connections(url, {})
        await asyncio.gather(*(ask(connections) for _ in range(5)))
        connections.close()
    assert len(seen) == 5


async def test_a_connection_that_the_server_has_closed_is_replaced():
    async with answering(OK, OK, closes_after=1) as (url, seen):
        connections = Connections(url, {})
        for _ in range(3):
            assert (await ask(connections)).status == 200
        connections.close()
    assert len(seen) == 3


async def test_an_answer_in_pieces_is_put_together():
    pieces = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with answering(pieces) as (url, _):
        assert (await ask(Connections(url, {}))).body == b"abcde"


async def test_what_is_no_http_is_an_error():
    async with answering(b"SSH-2.0-OpenSSH_9.6\r\n") as (url, _):
        with pytest.raises(ConnectionError, match="no HTTP answer"):
            await ask(Connections(url, {}))


async def test_a_server_that_says_nothing_times_out_and_its_connection_is_not_used_again():
    async with answering(None) as (url, seen):
        connections = Connections(url, {})
        for _ in range(2):
            with pytest.raises(TimeoutError, match=r"within 0\.1 s"):
                await ask(connections, seconds=0.1)
        connections.close()
    assert len(seen) == 2


async def test_a_request_that_is_cancelled_gives_its_connection_up():
    async with answering(None) as (url, seen):
        connections = Connections(url, {})
        task = asyncio.create_task(ask(connections))
        while not (seen and seen[0]):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert connections._idle == []
