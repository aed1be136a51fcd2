"""An application in a thread: started, answered for, stopped in order."""

import asyncio
import contextlib
import socket
import threading

from tests.errors import raises
from tests.http.internals import AppServer, HttpClient, listen, serve_here

PATIENCE_SECONDS = 20


class Pages:
    """Answers with its path; below /wait only when the server stops, below /stream piece by piece."""

    def __init__(self, stopping):
        self.stopping = stopping
        self.thread = threading.current_thread()
        self.waiting = threading.Event()

    async def __call__(self, scope, receive, send):
        if scope["path"] == "/wait":
            self.waiting.set()
            await self.stopping.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope["path"].encode()})


def served(make_app=Pages):
    bound = listen("127.0.0.1", 0)
    return AppServer(make_app, bound, name="pages"), f"http://127.0.0.1:{bound.getsockname()[1]}"


def is_free(url):
    try:
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))).close()
    except ConnectionRefusedError:
        return True
    return False


async def test_an_application_answers_from_a_thread_of_its_own():
    made = []
    server, url = served(lambda stopping: made.append(Pages(stopping)) or made[0])
    await server.start()
    client = HttpClient(url)
    try:
        assert server.is_alive
        assert made[0].thread.name == "pages"
        assert await (await client.exchange("GET", "/x")).read() == b"/x"
    finally:
        client.close()
        await server.stop()
    assert not server.is_alive
    assert is_free(url)


async def test_a_stop_tells_the_application_and_answers_what_is_under_way():
    made = []
    server, url = served(lambda stopping: made.append(Pages(stopping)) or made[0])
    await server.start()
    client = HttpClient(url)
    asking = asyncio.ensure_future(client.exchange("GET", "/wait"))
    assert await asyncio.to_thread(made[0].waiting.wait, PATIENCE_SECONDS)
    await asyncio.gather(server.stop(), server.stop())
    assert await (await asking).read() == b"/wait"
    client.close()


async def test_what_fails_at_the_start_is_raised_to_its_caller_and_leaves_nothing():
    def fail(stopping):
        raise LookupError("no such page")

    server, url = served(fail)
    with raises(LookupError, "no such page"):
        await server.start()
    await server.stop()
    assert not server.is_alive
    assert is_free(url)


async def test_a_server_that_was_never_started_can_be_stopped():
    server, url = served()
    await server.stop()
    assert is_free(url)


async def test_a_stop_during_the_start_ends_it():
    server, url = served()
    starting = asyncio.ensure_future(server.start())
    await asyncio.sleep(0)
    starting.cancel()
    await server.stop()
    assert not server.is_alive
    assert is_free(url)


async def test_an_application_is_served_in_the_loop_of_the_caller():
    bound, stopping, ready = listen("127.0.0.1", 0), asyncio.Event(), asyncio.Event()
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    serving = asyncio.ensure_future(serve_here(Pages(stopping), bound, ready.set, stopping))
    await asyncio.wait_for(ready.wait(), PATIENCE_SECONDS)
    client = HttpClient(url)
    assert await (await client.exchange("GET", "/here")).read() == b"/here"
    client.close()
    stopping.set()
    await asyncio.wait_for(serving, PATIENCE_SECONDS)
    assert is_free(url)


@contextlib.asynccontextmanager
async def served_here(app):
    bound, stopping, ready = listen("127.0.0.1", 0), asyncio.Event(), asyncio.Event()
    port = bound.getsockname()[1]
    serving = asyncio.ensure_future(serve_here(app, bound, ready.set, stopping))
    await asyncio.wait_for(ready.wait(), PATIENCE_SECONDS)
    try:
        yield port
    finally:
        stopping.set()
        await asyncio.wait_for(serving, PATIENCE_SECONDS)


async def test_nobody_can_say_that_they_call_from_elsewhere():
    seen = []

    async def app(scope, receive, send):
        seen.append((scope["client"][0], scope["scheme"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async with served_here(app) as port:
        client = HttpClient(f"http://127.0.0.1:{port}")
        forged = [("x-forwarded-for", "10.1.2.3"), ("x-forwarded-proto", "https")]
        await client.exchange("GET", "/", headers=forged)
        client.close()
    assert seen == [("127.0.0.1", "http")]


async def test_an_answer_that_is_cut_on_purpose_is_no_news_and_one_that_fails_is(caplog):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        if scope["path"] == "/fail":
            raise LookupError("lost its way")

    async with served_here(app) as port:
        for path in ("/cut", "/fail"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET {path} HTTP/1.1\r\nhost: h\r\n\r\n".encode())
            got = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
            writer.close()
            assert got.endswith(b"4\r\nhalf\r\n")
            assert ("lost its way" in caplog.text) == (path == "/fail")
    assert "without completing" not in caplog.text


async def test_the_head_of_an_answer_does_not_wait_for_its_body():
    may_go_on = asyncio.Event()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await may_go_on.wait()
        await send({"type": "http.response.body", "body": b"late"})

    async with served_here(app) as port:
        client = HttpClient(f"http://127.0.0.1:{port}")
        answer = await asyncio.wait_for(client.request("GET", "/"), PATIENCE_SECONDS)
        may_go_on.set()
        assert (answer.status, await answer.read()) == (200, b"late")
        client.close()
