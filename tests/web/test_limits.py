"""A connection that takes more than its share is refused or closed; whoever waits for an answer is left alone."""

import asyncio
import contextlib
import json
import logging
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest

from sharpen.errors import TooLargeError
from sharpen.llm_proxy import LLMProxy
from sharpen.store import InMemoryLightningStore, LightningStoreClient, LightningStoreServer
from tests.dashboard.internals import serve_dashboard, source_of
from tests.web.internals import Limits, ServerThread, listen

PATIENCE_SECONDS = 20
LIMIT = 64 * 1024
GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


@dataclass
class Client:
    """One raw connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data):
        self.writer.write(data)

    async def rest(self):
        """All that still comes, until the server closes the connection."""
        with contextlib.suppress(ConnectionResetError):
            return await asyncio.wait_for(self.reader.read(), PATIENCE_SECONDS)
        return b""

    async def reply(self):
        """One answer with a content-length: its status and body."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
        size = int(re.search(rb"content-length: (\d+)", head)[1])
        return int(head.split()[1]), await asyncio.wait_for(self.reader.readexactly(size), PATIENCE_SECONDS)


@contextlib.asynccontextmanager
async def connected(port, count=1):
    clients = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(count)]
    try:
        yield clients[0] if count == 1 else clients
    finally:
        for client in clients:
            client.writer.close()


class Echo:
    """Answers with its body; below /early before the body is read, below /wait when `may_answer` is set.

    Below /late the body is not read before that; below /poll the client is watched until then.
    """

    def __init__(self, stopping):
        self.may_answer = asyncio.Event()

    async def __call__(self, scope, receive, send):
        body, more = b"", scope["path"] != "/early"
        if scope["path"] == "/late":
            await self.may_answer.wait()
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        if scope["path"] == "/wait":
            await self.may_answer.wait()
        if scope["path"] == "/poll":
            gone, answer = asyncio.ensure_future(receive()), asyncio.ensure_future(self.may_answer.wait())
            await asyncio.wait([gone, answer], return_when=asyncio.FIRST_COMPLETED)
            for each in (gone, answer):
                each.cancel()
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        if scope["path"] == "/stream":
            await self.may_answer.wait()
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def echoing(**limits):
    made, bound = [], listen("127.0.0.1", 0)
    server = ServerThread(
        lambda stopping: made.append(Echo(stopping)) or made[0], bound, limits=Limits(check_seconds=0.02, **limits)
    )
    port = bound.getsockname()[1]
    await asyncio.to_thread(server.start)
    try:
        yield port, made[0]
    finally:
        await asyncio.to_thread(server.stop)


# -- the size of a head, on every kind of server ---------------------------------------------------------


@contextlib.asynccontextmanager
async def store_server():
    server = LightningStoreServer(InMemoryLightningStore(), token="secret")
    await server.start()
    try:
        yield server.port
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def gateway():
    proxy = LLMProxy(model_list=[{"model_name": "m", "base_url": "http://127.0.0.1:9/v1"}])
    await proxy.start()
    try:
        yield proxy.port
    finally:
        await proxy.stop()


@contextlib.asynccontextmanager
async def dashboard(folder):
    bound, ready, stopping = listen("127.0.0.1", 0), asyncio.Event(), asyncio.Event()
    port = bound.getsockname()[1]
    serving = asyncio.ensure_future(serve_dashboard(source_of(folder), bound, ready=ready.set, stopping=stopping))
    await asyncio.wait_for(ready.wait(), PATIENCE_SECONDS)
    try:
        yield port
    finally:
        stopping.set()
        await asyncio.wait_for(serving, PATIENCE_SECONDS)


@pytest.fixture(params=["store", "gateway", "dashboard"])
async def port(request, tmp_path):
    opened = {"store": store_server, "gateway": gateway, "dashboard": lambda: dashboard(tmp_path)}[request.param]()
    async with opened as found:
        yield found


async def test_every_server_refuses_a_head_without_end_and_answers_the_next(port):
    async with connected(port) as client:
        client.send(GET + b"x-long: " + b"a" * LIMIT)
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")
    async with connected(port) as client:
        client.send(GET + b"connection: close\r\n\r\n")
        assert (await client.rest()).split()[1] != b"431"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * LIMIT,
        GET + b"x: y\r\n" * (LIMIT // 4),
        GET + b"x: " + b"y" * LIMIT + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: " + b"y" * 9 * LIMIT,
        b"POST /early HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: " + b"y" * 9 * LIMIT,
    ],
    ids=["a URL", "many headers", "a whole head", "a trailer", "a trailer after the answer"],
)
async def test_nothing_around_a_body_can_be_longer_than_the_limit(head):
    async with echoing() as (port, _), connected(port) as client:
        client.send(head)
        last = (await client.rest()).rpartition(b"HTTP/1.1")[2]
        assert last.startswith(b" 431 ") or b"/early" in head


async def test_a_head_just_below_the_limit_and_a_long_body_are_read_in_any_pieces():
    head = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 400000\r\nx: " + b"y" * (LIMIT - 200) + b"\r\n\r\n"
    async with echoing() as (port, _), connected(port) as client:
        for _ in range(2):
            message = head + b"b" * 400_000
            for start in range(0, len(message), 70_001):
                client.send(message[start : start + 70_001])
                await client.writer.drain()
            assert await client.reply() == (200, b"b" * 400_000)
        client.send((b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 40000\r\n\r\n" + b"b" * 40_000) * 4)
        assert [await client.reply() for _ in range(4)] == [(200, b"b" * 40_000)] * 4


async def test_a_refusal_is_an_error_of_the_stores_client():
    async with store_server() as port:
        client = LightningStoreClient(f"http://127.0.0.1:{port}", "secret", retry_seconds=0)
        with pytest.raises(TooLargeError):
            await client.get_rollout_by_id("x" * LIMIT)
        await client.close()


async def test_a_query_for_many_rollouts_does_not_need_a_long_head():
    async with store_server() as port:
        client = LightningStoreClient(f"http://127.0.0.1:{port}", "secret", retry_seconds=0)
        rollout = await client.enqueue_rollout({"n": 1})
        await client.enqueue_rollout({"n": 2})
        ids = [f"ro-{number:032}" for number in range(5_000)]
        found = await client.query_rollouts(rollout_id_in=[*ids, rollout.rollout_id], limit=7)
        assert [each.rollout_id for each in found.items] == [rollout.rollout_id]
        await client.close()


# -- times -----------------------------------------------------------------------------------------------


async def test_a_head_that_stops_coming_is_refused():
    async with echoing(head_seconds=0.1) as (port, _), connected(port) as client:
        client.send(GET + b"x-slow")
        status, body = await client.reply()
        assert (status, json.loads(body)["error"]["type"]) == (408, "InvalidInputError")
        assert await client.rest() == b""


async def test_a_body_that_stops_coming_is_refused_and_one_that_comes_is_not():
    async with echoing(body_seconds=0.3, body_bytes=1000) as (port, _), connected(port, 2) as (slow, steady):
        for each in (slow, steady):
            each.send(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 9000\r\n\r\n")
        slow.send(b"b")
        for _ in range(9):  # 0.9 s in all
            steady.send(b"b" * 1000)
            await asyncio.sleep(0.1)
        assert await steady.reply() == (200, b"b" * 9000)
        assert (await slow.rest()).startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_was_answered_before_its_body_came_is_not_kept_for_ever():
    async with echoing(body_seconds=0.1) as (port, _), connected(port) as client:
        client.send(b"POST /early HTTP/1.1\r\nhost: h\r\ncontent-length: 9000\r\n\r\nb")
        assert await client.reply() == (200, b"")
        assert await client.rest() == b""


async def test_a_silent_connection_is_closed_before_and_after_a_request():
    async with echoing(idle_seconds=1) as (port, _), connected(port, 2) as (silent, used):
        used.send(GET + b"\r\n")
        assert await used.reply() == (200, b"")
        assert [await silent.rest(), await used.rest()] == [b"", b""]


@pytest.mark.parametrize("path", [b"/wait", b"/stream"])
async def test_whoever_waits_for_an_answer_is_never_cut(path):
    limits = {"head_seconds": 0.05, "body_seconds": 0.05, "idle_seconds": 1}
    async with echoing(**limits) as (port, app), connected(port, 2) as (waiting, silent):
        waiting.send(b"POST " + path + b" HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\nhi")
        assert await silent.rest() == b""  # all of the limits have passed
        app.may_answer.set()
        assert await waiting.reply() == (200, b"hi")


async def test_time_does_not_count_while_the_application_lets_the_client_wait():
    head = b"POST /late HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    async with echoing(body_seconds=0.1, idle_seconds=1) as (port, app), connected(port, 2) as (waiting, silent):
        waiting.send(head)
        assert await silent.rest() == b""  # the limits have passed
        app.may_answer.set()
        assert await waiting.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        waiting.send(b"hi")
        assert await waiting.reply() == (200, b"hi")


async def test_a_slow_pipelined_request_is_not_refused_in_place_of_the_answer_before_it():
    second = b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n"
    async with echoing(body_seconds=0.1, idle_seconds=1) as (port, app), connected(port, 2) as (client, silent):
        client.send(b"GET /poll HTTP/1.1\r\nhost: h\r\n\r\n" + second)
        assert await silent.rest() == b""
        app.may_answer.set()
        assert await client.reply() == (200, b"")
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


async def test_a_broken_pipelined_request_is_not_refused_in_place_of_the_answer_before_it():
    second = b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    async with echoing() as (port, _), connected(port) as client:
        client.send(b"GET /poll HTTP/1.1\r\nhost: h\r\n\r\n" + second + b"nonsense\r\n")
        assert await client.rest() == b""


@pytest.mark.parametrize("target", [b"GET http://host", b"GET http://[::1", b"CONNECT host:99999"])
async def test_a_url_without_a_path_is_a_bad_request(target, caplog):
    async with echoing() as (port, _), connected(port, 2) as (fresh, used):
        used.send(GET + b"\r\n")
        assert await used.reply() == (200, b"")
        for client in (fresh, used):
            client.send(target + b" HTTP/1.1\r\nhost: h\r\n\r\n")
            assert (await client.reply())[0] == 400
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


# -- the limit of open files -----------------------------------------------------------------------------

SERVER = """
import asyncio, logging, resource, sys
if sys.argv[1] == "asyncio":
    sys.modules["uvloop"] = None
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
logging.basicConfig()
from sharpen.store import InMemoryLightningStore, LightningStoreServer
server = LightningStoreServer(InMemoryLightningStore())
asyncio.run(server.run_forever(lambda url: print(url, flush=True)))
"""


@pytest.fixture(params=["uvloop", "asyncio"])
def crowded(request, tmp_path):
    """Port and log of a store server that may open 100 files."""
    errors = tmp_path / "stderr"
    with open(errors, "w") as stderr:
        server = subprocess.Popen([sys.executable, "-c", SERVER, request.param], stdout=subprocess.PIPE, stderr=stderr)
    try:
        yield int(server.stdout.readline().decode().rpartition(":")[2]), errors
    finally:
        server.terminate()
        server.wait(PATIENCE_SECONDS)
        server.stdout.close()


POLL = b"POST /v1/queue:claim HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
POLL += b'content-length: 19\r\n\r\n{"wait_seconds":30}'


@pytest.mark.parametrize("sent", [b"", GET, POLL[:-1]], ids=["nothing", "a part of a head", "a part of a body"])
async def test_unfinished_requests_do_not_lock_others_out_at_the_limit_of_open_files(crowded, sent):
    port, errors = crowded
    async with connected(port) as polling:
        polling.send(POLL)
        async with connected(port, 200) as others, asyncio.timeout(PATIENCE_SECONDS):
            for other in others:
                other.send(sent)
            while True:
                async with connected(port) as client:
                    client.send(GET + b"connection: close\r\n\r\n")
                    if (await client.rest()).startswith(b"HTTP/1.1 200 "):
                        break
                await asyncio.sleep(0.05)
            while "open files" not in errors.read_text():
                await asyncio.sleep(0.05)
        client = LightningStoreClient(f"http://127.0.0.1:{port}", retry_seconds=PATIENCE_SECONDS)
        rollout = await client.enqueue_rollout({"n": 1})
        await client.close()
        status, body = await polling.reply()
        assert (status, json.loads(body)["rollout_id"]) == (200, rollout.rollout_id)
    assert errors.read_text().count("Traceback") < 1000  # asyncio logs one for each failed `accept`


FULL = """
import asyncio, logging, os, resource
from sharpen.web.protocol import Connections
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
logging.basicConfig()

async def check():
    connections = Connections()
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError:
        connections.check()

asyncio.run(check())
"""


def test_the_limit_of_open_files_is_logged_where_nothing_can_be_closed():
    ended = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=60, check=True)
    assert "50 open files" in ended.stderr


async def test_refusals_are_logged(caplog):
    with caplog.at_level(logging.WARNING):
        async with echoing() as (port, _), connected(port) as client:
            client.send(GET + b"x: " + b"y" * LIMIT)
            await client.rest()
    assert "431" in caplog.text


async def test_refusals_and_upgrades_by_anyone_do_not_fill_the_log(caplog):
    with caplog.at_level(logging.WARNING):
        async with echoing() as (port, _):
            for _ in range(20):
                async with connected(port, 2) as (bad, upgrading):
                    bad.send(b"nonsense\r\n\r\n")
                    upgrading.send(GET + b"connection: upgrade, close\r\nupgrade: websocket\r\n\r\n")
                    assert [(await each.reply())[0] for each in (bad, upgrading)] == [400, 200]
    assert len(caplog.records) == 1
