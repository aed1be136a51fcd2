"""An application in a thread: started, answered for, stopped in order."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

from tests.errors import raises
from tests.http.internals import HttpClient
from tests.web.internals import ServerThread, listen, serving

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
    return ServerThread(make_app, bound, name="pages"), f"http://127.0.0.1:{bound.getsockname()[1]}"


def is_free(url):
    try:
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))).close()
    except ConnectionRefusedError:
        return True
    return False


async def test_an_application_answers_from_a_thread_of_its_own():
    made = []
    server, url = served(lambda stopping: made.append(Pages(stopping)) or made[0])
    await asyncio.to_thread(server.start)
    client = HttpClient(url)
    try:
        assert server.is_alive
        assert made[0].thread.name == "pages"
        assert await (await client.exchange("GET", "/x")).read() == b"/x"
    finally:
        client.close()
        await asyncio.to_thread(server.stop)
    assert not server.is_alive
    assert is_free(url)


async def test_a_stop_tells_the_application_and_answers_what_is_under_way():
    made = []
    server, url = served(lambda stopping: made.append(Pages(stopping)) or made[0])
    await asyncio.to_thread(server.start)
    client = HttpClient(url)
    asking = asyncio.ensure_future(client.exchange("GET", "/wait"))
    assert await asyncio.to_thread(made[0].waiting.wait, PATIENCE_SECONDS)
    await asyncio.gather(asyncio.to_thread(server.stop), asyncio.to_thread(server.stop))
    assert await (await asking).read() == b"/wait"
    client.close()


async def test_what_fails_at_the_start_is_raised_to_its_caller_and_leaves_nothing():
    def fail(stopping):
        raise LookupError("no such page")

    server, url = served(fail)
    with raises(LookupError, "no such page"):
        await asyncio.to_thread(server.start)
    await asyncio.to_thread(server.stop)
    assert not server.is_alive
    assert is_free(url)


async def test_a_server_that_was_never_started_can_be_stopped():
    server, url = served()
    await asyncio.to_thread(server.stop)
    assert is_free(url)


async def test_a_stop_during_the_start_ends_it():
    server, url = served()
    starting = asyncio.ensure_future(asyncio.to_thread(server.start))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.to_thread(server.stop)
    assert not server.is_alive
    assert is_free(url)


async def test_an_application_is_served_in_the_loop_of_the_caller():
    async with served_here(Pages(asyncio.Event())) as port:
        client = HttpClient(f"http://127.0.0.1:{port}")
        assert await (await client.exchange("GET", "/here")).read() == b"/here"
        client.close()
    assert is_free(f"http://127.0.0.1:{port}")


@contextlib.asynccontextmanager
async def served_here(app, **options):
    bound = listen("127.0.0.1", 0)
    port = bound.getsockname()[1]
    async with asyncio.timeout(PATIENCE_SECONDS), serving(app, bound, **options):
        yield port


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


PROCESS = """
import asyncio
from starlette.routing import Route
from sharpen.web.app import StreamResponse, WebApp
from sharpen.web.serving import listen, new_loop, serving, stop_at_signals

async def main():
    stopping = stop_at_signals()

    async def pieces():
        yield b"one "
        await stopping.wait()
        yield b"two"

    async def stream(request):
        return StreamResponse(pieces())

    bound = listen("127.0.0.1", 0)
    async with serving(WebApp([Route("/", stream)]), bound):
        print(bound.getsockname()[1], flush=True)
        await stopping.wait()

asyncio.Runner(loop_factory=new_loop).run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_process_that_serves_ends_at_a_signal_and_finishes_its_streams(number):
    with subprocess.Popen([sys.executable, "-c", PROCESS], stdout=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline())
        with httpx.stream("GET", f"http://127.0.0.1:{port}/", timeout=PATIENCE_SECONDS) as answer:
            pieces = answer.iter_raw()
            assert next(pieces) == b"one "
            process.send_signal(number)
            assert b"".join(pieces) == b"two"
        assert process.wait(PATIENCE_SECONDS) == 0


async def test_an_idle_connection_does_not_delay_the_end():
    async with served_here(Pages(asyncio.Event()), grace_seconds=PATIENCE_SECONDS) as port:
        _, idle = await asyncio.open_connection("127.0.0.1", port)
        client = HttpClient(f"http://127.0.0.1:{port}")
        await client.exchange("GET", "/x")
        ending = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - ending < PATIENCE_SECONDS / 2
    client.close()
    idle.close()
