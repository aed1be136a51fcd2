"""The client: connections kept, replaced when stale, and honest about what is no answer."""

import asyncio
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from sharpen.errors import ConfigError
from tests.errors import raises
from tests.http.internals import HELD_BYTES, HttpClient, Unsent, client_module
from tests.web.internals import new_loop

from .servers import OK, Cut, answering, client_tls, make_certificate, server_tls

PATIENCE_SECONDS = 20
MEGABYTE = 2**20


@contextmanager
def client_of(url, **options):
    client = HttpClient(url, **options)
    try:
        yield client
    finally:
        client.close()


def ask(client, **more):
    return client.exchange("POST", "/v1/x", body=b"{}", **{"seconds": 5, **more})


async def until(condition):
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def chunked(*pieces, ends=True, pause=None):
    """An answer in chunks; `pause` is awaited after each."""

    async def write(writer):
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            if pause is not None:
                await pause()
        if not ends:
            raise Cut
        writer.write(b"0\r\n\r\n")

    return write


# -- requests ----------------------------------------------------------------------------------------


async def test_a_connection_is_kept_for_the_next_request():
    async with answering(OK, OK) as server:
        with client_of(server.url + "/base", headers=[("authorization", "Bearer t")]) as client:
            for _ in range(2):
                answer = await ask(client, headers=[("x-more", "1")])
                assert (answer.status, answer.header("x-name"), await answer.read()) == (200, "Value", b"ok")
                assert answer.headers == [("content-length", "2"), ("x-name", "Value")]
    assert len(server.heads) == 1
    first = server.heads[0][0]
    assert first.startswith(f"POST /base/v1/x HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n")
    assert "authorization: Bearer t\r\n" in first
    assert "x-more: 1\r\n" in first
    assert server.bodies == [b"{}", b"{}"]


async def test_a_request_returns_with_the_head_and_the_body_follows_as_it_arrives():
    more = asyncio.Event()

    async def write(writer):
        writer.write(b"HTTP/1.1 206 Partial\r\ncontent-length: 6\r\n\r\nabc")
        await more.wait()
        writer.write(b"def")

    async with answering(write, OK) as server:
        with client_of(server.url) as client:
            answer = await client.request("GET", "/x")
            assert answer.status == 206
            assert await anext(answer) == b"abc"
            more.set()
            assert await anext(answer) == b"def"
            with pytest.raises(StopAsyncIteration):
                await anext(answer)
            await answer.aclose()
            assert await (await client.request("GET", "/x")).read() == b"ok"
    assert len(server.heads) == 1


async def test_requests_at_once_use_connections_of_their_own():
    gate = asyncio.Event()

    async def write(writer):
        await gate.wait()
        writer.write(OK)

    async with answering(write) as server:
        with client_of(server.url) as client:
            asking = asyncio.gather(*(ask(client) for _ in range(5)))
            await until(lambda: len(server.bodies) == 5)
            gate.set()
            await asking
    assert len(server.heads) == 5


async def test_a_large_request_and_a_large_answer_travel_whole():
    body = bytes(range(256)) * 20_000
    answer = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    async with answering(answer, answer) as server:
        with client_of(server.url) as client:
            assert await (await client.request("POST", "/x", body=body)).read() == body
            assert await (await client.exchange("POST", "/x", body=body)).read() == body
    assert server.bodies == [body, body]
    assert len(server.heads) == 1


@pytest.mark.parametrize("whole", [True, False])
async def test_an_answer_in_pieces_is_put_together(whole):
    async with answering(chunked(b"abc", b"de", b"f")) as server:
        with client_of(server.url) as client:
            answer = await (ask(client) if whole else client.request("POST", "/x"))
            assert await answer.read() == b"abcdef"


async def test_words_in_between_are_no_answer():
    hints = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n"
    async with answering(hints + OK, OK) as server:
        with client_of(server.url) as client:
            answer = await ask(client)
            assert (answer.status, answer.header("link"), await answer.read()) == (200, None, b"ok")
            assert (await ask(client)).status == 200
    assert len(server.heads) == 1


async def test_an_answer_without_a_length_ends_with_its_connection():
    async with answering(b"HTTP/1.1 200 OK\r\n\r\nall of it", closes_after=1) as server:
        with client_of(server.url) as client:
            assert await (await ask(client)).read() == b"all of it"
            assert [piece async for piece in await client.request("GET", "/x")] == [b"all of it"]


async def test_an_answer_without_a_body_is_complete():
    async with answering(b"HTTP/1.1 204 No Content\r\n\r\n", OK) as server:
        with client_of(server.url) as client:
            answer = await client.request("POST", "/x")
            assert (answer.status, await answer.read()) == (204, b"")
            assert (await ask(client)).status == 200
    assert len(server.heads) == 1


async def test_a_server_that_closes_after_its_answer_gets_a_new_connection():
    async with answering(OK.replace(b"X-Name: Value", b"connection: close"), closes_after=1) as server:
        with client_of(server.url) as client:
            for _ in range(2):
                assert await (await ask(client)).read() == b"ok"
    assert len(server.heads) == 2


@pytest.mark.parametrize("path", ["/a b", "/a\r\nx: y", "/é", "/a\x00"])
async def test_a_path_that_is_not_quoted_is_refused(path):
    with client_of("http://127.0.0.1:9") as client, pytest.raises(ValueError):
        await client.request("GET", path)


@pytest.mark.parametrize("value", ["s3cret\r\nx: y", "s3cret\n", "s3cret\0"])
async def test_a_header_with_a_line_break_is_refused_and_not_shown(value):
    with client_of("http://127.0.0.1:9") as client, raises(ValueError, "authorization") as caught:
        await client.request("GET", "/x", headers=[("authorization", value)])
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://host/x", "127.0.0.1:80", "http://", "http://host:port", "https://u:s3cret@:80"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(ConfigError) as caught:
        HttpClient(url)
    assert "s3cret" not in str(caught.value)


# -- faults ------------------------------------------------------------------------------------------


async def test_a_connection_that_the_server_has_closed_is_replaced():
    async with answering(OK, OK, closes_after=1) as server:
        with client_of(server.url) as client:
            for _ in range(3):
                assert (await ask(client)).status == 200
    assert len(server.heads) == 3


async def test_a_kept_connection_that_ends_with_the_request_is_stale_and_the_request_is_sent_again():
    async def hang_up(writer):
        raise Cut

    for send in ("exchange", "request"):
        async with answering(OK, hang_up) as server:
            with client_of(server.url) as client:
                for _ in range(2):
                    assert (await getattr(client, send)("POST", "/x", body=b"{}")).status == 200
        assert [len(heads) for heads in server.heads] == [2, 1]


async def test_a_kept_connection_that_ends_later_was_read_so_nothing_is_sent_again():
    async def hang_up_later(writer):
        await asyncio.sleep(0.2)
        raise Cut

    async with answering(OK, hang_up_later) as server:
        with client_of(server.url, stale_seconds=0.05) as client:
            await ask(client)
            with pytest.raises(ConnectionResetError):
                await ask(client)
    assert [len(heads) for heads in server.heads] == [2]


async def test_a_new_connection_that_ends_without_an_answer_is_a_reset():
    async def hang_up(writer):
        raise Cut

    async with answering(hang_up) as server:
        with client_of(server.url) as client, pytest.raises(ConnectionResetError) as caught:
            await ask(client)
    assert not isinstance(caught.value, Unsent)
    assert len(server.heads) == 1


async def test_a_server_that_is_not_there_has_read_nothing():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with client_of(url) as client, raises(Unsent, "127.0.0.1"):
            await client.request("GET", "/x")


async def test_a_connection_that_takes_too_long_has_read_nothing():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        others = [socket.socket() for _ in range(4)]
        try:
            for other in others:  # they fill the queue of those who wait to be taken
                other.setblocking(False)
                other.connect_ex(full.getsockname())
            url = f"http://127.0.0.1:{full.getsockname()[1]}"
            with client_of(url) as client, raises(Unsent, 0.1):
                await client.request("GET", "/x", connect_seconds=0.1)
        finally:
            for other in others:
                other.close()


@pytest.mark.parametrize(
    "said", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"]
)
async def test_what_is_no_http_is_an_error(said):
    async with answering(said) as server:
        with client_of(server.url) as client, pytest.raises(ConnectionError):
            await ask(client)


async def test_a_head_without_end_is_an_error():
    async def go_on(writer):
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x-name: value\r\n" * 1000)
            await writer.drain()

    async with answering(go_on) as server:
        with client_of(server.url) as client, pytest.raises(ConnectionError):
            await client.request("GET", "/x")


async def test_lines_after_the_body_are_no_headers():
    async def write(writer):
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-early: 1\r\n\r\n3\r\nabc\r\n0\r\n")
        writer.write(b"x-early: 2\r\nx-late: 1\r\n\r\n")

    async with answering(write, OK) as server:
        with client_of(server.url) as client:
            answer = await ask(client)
            assert (await answer.read(), [name for name, _ in answer.headers]) == (
                b"abc",
                ["transfer-encoding", "x-early"],
            )
            assert (await ask(client)).status == 200


async def test_lines_after_the_body_without_end_are_an_error():
    async def go_on(writer):
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n")
        while True:
            writer.write(b"x-name: value\r\n" * 1000)
            await writer.drain()

    async with answering(go_on) as server:
        with client_of(server.url) as client, pytest.raises(ConnectionError):
            await ask(client, seconds=30)


async def test_a_server_that_says_nothing_times_out_and_its_connection_is_not_used_again():
    async with answering(None) as server:
        with client_of(server.url) as client:
            with raises(TimeoutError, 0.1):
                await ask(client, seconds=0.1)
            with raises(TimeoutError, 0.1):
                await client.request("GET", "/x", head_seconds=0.1)
    assert len(server.heads) == 2


async def test_an_answer_that_stops_coming_times_out_between_its_pieces():
    async with answering(chunked(b"abc", pause=asyncio.Event().wait)) as server:
        with client_of(server.url) as client:
            answer = await client.request("GET", "/x", head_seconds=5, chunk_seconds=0.1)
            assert await anext(answer) == b"abc"
            with raises(TimeoutError, 0.1):
                await anext(answer)
            with pytest.raises(TimeoutError):
                await answer.read()


@pytest.mark.parametrize("cut", [chunked(b"abc", ends=False), b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"])
async def test_a_body_that_is_cut_is_passed_on_and_then_an_error(cut):
    async with answering(cut, closes_after=1) as server:
        with client_of(server.url) as client:
            answer = await client.request("GET", "/x")
            assert await anext(answer) == b"abc"
            with pytest.raises(ConnectionResetError):
                await anext(answer)
            with pytest.raises(ConnectionResetError):
                await (await client.request("GET", "/x")).read()
            with pytest.raises(ConnectionResetError):
                await ask(client)


async def test_bytes_that_nobody_asked_for_end_a_kept_connection():
    async with answering(OK + b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n", OK) as server:
        with client_of(server.url) as client:
            for _ in range(2):
                assert await (await ask(client)).read() == b"ok"
    assert len(server.heads) == 2


async def test_a_request_that_is_cancelled_gives_its_connection_up():
    async with answering(None) as server:
        with client_of(server.url) as client:
            task = asyncio.create_task(ask(client))
            await until(lambda: server.bodies)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: not client._open)
            assert not client._idle


async def test_an_answer_that_is_closed_before_its_end_gives_its_connection_up():
    async with answering(chunked(b"abc", pause=asyncio.Event().wait), OK) as server:
        with client_of(server.url) as client:
            answer = await client.request("GET", "/x")
            await answer.aclose()
            await answer.aclose()
            await until(lambda: not client._open)
            with pytest.raises(ConnectionAbortedError):
                [piece async for piece in answer]


async def test_closing_the_client_fails_what_is_under_way_and_sends_nothing_again():
    async with answering(OK, None) as server:
        with client_of(server.url) as client:
            await ask(client)
            task = asyncio.create_task(ask(client))
            await until(lambda: len(server.bodies) == 2)
            client.close()
            with pytest.raises(ConnectionAbortedError):
                await task
    assert [len(heads) for heads in server.heads] == [2]


async def test_idle_connections_can_be_closed_alone():
    gate = asyncio.Event()

    async def write(writer):
        await gate.wait()
        writer.write(OK)

    async with answering(write, OK) as server:
        with client_of(server.url) as client:
            gate.set()
            await ask(client)
            client.close_idle()
            await until(lambda: not client._open)
            assert (await ask(client)).status == 200
    assert len(server.heads) == 2


async def test_a_connection_that_rested_too_long_is_not_used():
    async with answering(OK, OK) as server:
        with client_of(server.url, idle_seconds=0.05) as client:
            await ask(client)
            await asyncio.sleep(0.1)
            await ask(client)
    assert len(server.heads) == 2


async def test_an_end_that_a_busy_loop_has_not_seen_yet_is_seen_before_the_next_request(monkeypatch):
    monkeypatch.setattr(client_module, "SURE_SECONDS", 0.05)
    taken = []

    def answer_once_each(listening):
        for _ in range(2):
            peer, _ = listening.accept()
            with peer:
                taken.append(peer.recv(65536))
                peer.sendall(OK)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer_once_each, args=(listening,), daemon=True)
        thread.start()
        with client_of(f"http://127.0.0.1:{listening.getsockname()[1]}", stale_seconds=0) as client:
            assert (await ask(client)).status == 200
            time.sleep(0.2)  # noqa: ASYNC251 - the loop is busy while the server closes
            assert (await ask(client)).status == 200
        thread.join(PATIENCE_SECONDS)
    assert len(taken) == 2


# -- readers that lag --------------------------------------------------------------------------------


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, new_loop], ids=["asyncio", "uvloop"])
def test_a_reader_that_lags_holds_the_server_back(loop_factory):
    piece, sent = b"x" * 65536, []

    async def pour(writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 * MEGABYTE))
        for _ in range(64 * MEGABYTE // len(piece)):
            writer.write(piece)
            await writer.drain()
            sent.append(len(piece))

    async def read_late():
        async with answering(pour, OK) as server:
            with client_of(server.url) as client:
                answer = await client.request("GET", "/x")
                before = -1
                while sum(sent) != before:  # until it stands still
                    before = sum(sent)
                    await asyncio.sleep(0.2)
                assert sum(sent) < 32 * MEGABYTE
                assert answer._size < HELD_BYTES + MEGABYTE
                assert sum([len(each) async for each in answer]) == 64 * MEGABYTE
                assert (await ask(client)).status == 200
        assert len(server.heads) == 1

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(read_late())


# -- TLS ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, new_loop], ids=["asyncio", "uvloop"])
def test_https_is_spoken_with_kept_connections(pem, loop_factory):
    async def speak():
        async with answering(OK, chunked(b"abc", b"def"), tls=server_tls(pem)) as server:
            with client_of(server.url, tls=client_tls(pem)) as client:
                assert await (await ask(client)).read() == b"ok"
                assert await (await client.request("GET", "/x")).read() == b"abcdef"
        assert len(server.heads) == 1

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(speak())


async def test_a_certificate_that_nobody_vouches_for_is_refused_and_nothing_is_sent(pem):
    async with answering(OK, tls=server_tls(pem)) as server:
        with client_of(server.url) as client, pytest.raises(Unsent):
            await client.request("POST", "/x", headers=[("authorization", "Bearer t")])
    assert not server.bodies
