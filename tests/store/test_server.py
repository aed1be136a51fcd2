"""The life of a server: its address, its end, its neighbours, and the process that runs it alone."""

import asyncio
import json
import os
import signal
import socket
import sqlite3
import sys
import threading
import time
from contextlib import asynccontextmanager

import pytest

from sharpen.errors import ConfigError, PortTakenError, StoreError
from sharpen.store import InMemoryLightningStore, LightningStoreClient, LightningStoreServer, SQLiteStore
from sharpen.types import PaginatedResult
from tests.errors import raises
from tests.web.internals import GRACE_SECONDS, listen

from .scenes import claim_new, within_patience
from .served import LONG, can_connect, curl_to, read_reply, serve, until

# -- addresses ---------------------------------------------------------------------------------------


async def test_a_server_takes_a_free_port_of_loopback_by_itself():
    async with serve() as served:
        assert served.server.host == "127.0.0.1"
        assert served.server.endpoint == f"http://127.0.0.1:{served.server.port}"
        assert (await served.curl("GET", "/health")).status == 200


def test_a_server_that_was_not_started_has_no_address():
    with pytest.raises(StoreError):
        _ = LightningStoreServer(InMemoryLightningStore()).endpoint


@pytest.mark.parametrize("port", [-1, 65536, 10**9])
def test_a_port_out_of_range_is_refused(port):
    with raises(ConfigError, port):
        LightningStoreServer(InMemoryLightningStore(), port=port)


async def test_a_taken_port_is_a_clear_error_and_leaves_nothing_running():
    async with serve() as served:
        port = served.server.port
        second = LightningStoreServer(InMemoryLightningStore(), port=port)
        threads = threading.active_count()
        with raises(PortTakenError, port) as caught:
            await second.start()
        assert isinstance(caught.value, OSError)
        assert "another port" in str(caught.value)
        assert threading.active_count() == threads
        await second.stop()
        assert (await served.curl("GET", "/health")).json["store_id"] == served.store.store_id
    await second.start()
    await second.stop()


async def test_a_port_taken_by_another_program_is_the_same_error():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        server = LightningStoreServer(InMemoryLightningStore(), port=other.getsockname()[1])
        with pytest.raises(PortTakenError):
            await server.start()


@pytest.mark.parametrize("port", [None, 47474])
async def test_an_address_of_another_machine_is_refused_by_name(port):
    server = LightningStoreServer(InMemoryLightningStore(), host="192.0.2.1", port=port, token="t")
    with raises(ConfigError, "192.0.2.1"):
        await server.start()


async def test_servers_stand_side_by_side(tmp_path):
    stores = [InMemoryLightningStore(), InMemoryLightningStore(), SQLiteStore(tmp_path / "store.db")]
    async with serve(stores[0]) as one, serve(stores[1], token="t") as two, serve(stores[2]) as three:
        assert len({served.server.port for served in (one, two, three)}) == 3
        await one.curl("POST", "/v1/rollouts", {"input": 1})
        await three.curl("POST", "/v1/rollouts:batch", {"requests": [{"input": 1}, {"input": 2}]})
        assert [(await store.statistics())["total_rollouts"] for store in stores] == [1, 0, 2]
        assert (await two.curl("GET", "/v1/statistics")).status == 401
        await one.server.stop()
        assert (await three.curl("GET", "/v1/statistics")).json["total_rollouts"] == 2


async def test_callers_in_this_process_and_over_http_see_one_store():
    async with serve() as served:
        claimed = await claim_new(served.server)
        found = (await served.curl("GET", f"/v1/rollouts/{claimed.rollout_id}")).json
        assert found["attempt"]["attempt_id"] == claimed.attempt.attempt_id
        assert served.server.otlp_traces_endpoint() == f"{served.server.endpoint}/v1/traces"


async def test_an_unexpected_error_is_a_500_that_tells_nothing_but_is_logged(caplog):
    class Broken(InMemoryLightningStore):
        async def get_worker_by_id(self, worker_id):
            raise RuntimeError("a detail of the inside")

    async with serve(Broken()) as served:
        reply = await served.curl("GET", "/v1/workers/w-1")
        assert (reply.status, reply.error[0]) == (500, "StoreError")
        assert "inside" not in reply.error[1]
        assert "a detail of the inside" in caplog.text
        assert (await served.curl("GET", "/v1/statistics")).status == 200


# -- the end -----------------------------------------------------------------------------------------


async def test_a_stop_ends_long_polls_at_once_with_503():
    async with serve() as served:
        rollout = await served.store.enqueue_rollout("task")
        await served.store.dequeue_rollout()
        wait = {"rollout_ids": [rollout.rollout_id]}
        polls = [
            asyncio.ensure_future(served.curl("POST", "/v1/queue:claim", {"wait_seconds": LONG})),
            asyncio.ensure_future(served.curl("POST", "/v1/queue:claim-batch", {"wait_seconds": LONG})),
            asyncio.ensure_future(served.curl("POST", "/v1/rollouts:wait", wait)),
            asyncio.ensure_future(served.curl("GET", f"/v1/rollouts:finished?wait_seconds={LONG}")),
        ]
        await served.curl.polls(len(polls))
        began = time.monotonic()
        await within_patience(served.server.stop())
        assert time.monotonic() - began < GRACE_SECONDS
        for poll in polls:
            reply = await within_patience(poll)
            assert (reply.status, reply.error[0]) == (503, "StoreUnavailableError")
            assert "stopping" in reply.error[1]


async def test_a_stop_answers_what_is_under_way():
    async with serve() as served:
        host, port = served.server.host, served.server.port
        body = json.dumps({"input": "in time"}).encode()
        reader, writer = await served.connect()
        writer.write(
            b"POST /v1/rollouts HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body)
        )
        assert (await read_reply(reader)).status == 100
        stop = asyncio.ensure_future(served.server.stop())

        async def is_closed() -> bool:
            return not await can_connect(host, port)

        await until(is_closed)
        writer.write(body)
        reply = await read_reply(reader)
        assert (reply.status, reply.json["input"]) == (200, "in time")
        await within_patience(stop)
        writer.close()
        assert (await served.store.statistics())["total_rollouts"] == 1


async def test_a_stop_releases_the_port_and_keeps_the_store():
    async with serve() as served:
        server, port = served.server, served.server.port
        await served.curl("POST", "/v1/rollouts", {"input": 1})
        await server.stop()
        assert not await can_connect(server.host, port)
        async with serve(port=port) as other:
            assert other.server.port == port
        assert (await server.statistics())["total_rollouts"] == 1


async def test_a_stop_may_come_twice_or_before_any_start():
    server = LightningStoreServer(InMemoryLightningStore())
    await server.stop()
    await server.start()
    await server.start()
    await asyncio.gather(server.stop(), server.stop())
    await server.stop()


async def test_a_stopped_server_can_start_again_at_its_address():
    async with serve() as served:
        address = served.server.endpoint
        await served.server.stop()
        await served.server.start()
        assert served.server.endpoint == address
        assert (await served.curl("GET", "/health")).json["status"] == "ok"


async def test_a_client_rides_over_a_restart_of_the_server():
    async with serve() as served:
        client = LightningStoreClient(served.server.endpoint)
        poll = asyncio.ensure_future(client.dequeue_rollout(wait_seconds=LONG))
        await served.curl.polls(1)
        await served.server.stop()
        await served.server.start()
        rollout = await served.store.enqueue_rollout("task")
        assert (await within_patience(poll)).rollout_id == rollout.rollout_id
        await client.close()


async def test_a_socket_that_listens_already_is_served_and_stays_open():
    with listen("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        server = LightningStoreServer(InMemoryLightningStore(), socket=bound)
        await server.start()
        assert server.endpoint == f"http://127.0.0.1:{port}"
        await server.stop()
        client = LightningStoreClient(server.endpoint, retry_seconds=0)
        waiting = asyncio.ensure_future(client.statistics())  # connects, although nobody answers yet
        second = LightningStoreServer(InMemoryLightningStore(), socket=bound)
        await second.start()
        assert (await within_patience(waiting))["total_rollouts"] == 0
        await client.close()
        await second.stop()
    assert not await can_connect("127.0.0.1", port)


# -- other applications ------------------------------------------------------------------------------


async def echo(scope, receive, send):
    """Answers with the path it was asked for."""
    body = json.dumps({"path": scope["path"], "root": scope["root_path"]}).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def test_another_application_is_served_under_its_prefix():
    async with serve(mounts=[("/pages/", echo), ("/other", echo)]) as served:
        assert (await served.curl("GET", "/pages")).json == {"path": "/pages", "root": "/pages"}
        assert (await served.curl("GET", "/pages/a/b")).json == {"path": "/pages/a/b", "root": "/pages"}
        assert (await served.curl("POST", "/other/x", {})).json == {"path": "/other/x", "root": "/other"}
        assert (await served.curl("GET", "/pages2")).status == 404
        assert (await served.curl("GET", "/v1/statistics")).status == 200


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}])
async def test_another_application_is_out_of_reach_for_a_foreign_page_too(headers):
    async with serve(mounts=[("/pages", echo)]) as served:
        reply = await served.curl("GET", "/pages/a", headers=headers)
        assert (reply.status, reply.error[0]) == (403, "AccessDeniedError")


# -- a process of its own ----------------------------------------------------------------------------


@asynccontextmanager
async def process(*arguments: str, token: str | None = None):
    """`python -m sharpen.store` with these arguments; ended by force if a test leaves it running."""
    environment = {name: value for name, value in os.environ.items() if name != "SHARPEN_TOKEN"}
    if token is not None:
        environment["SHARPEN_TOKEN"] = token
    pipe = asyncio.subprocess.PIPE
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sharpen.store", *arguments, stdout=pipe, stderr=pipe, env=environment
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
async def test_a_process_prints_its_address_serves_and_ends_in_order(tmp_path, sign):
    path = tmp_path / "store.db"
    async with process(str(path)) as started:
        address = (await within_patience(started.stdout.readline())).decode().strip()
        async with curl_to(address) as curl:
            await curl("POST", "/v1/rollouts", {"input": "kept", "rollout_id": "ro-1"})
            poll = asyncio.ensure_future(curl("POST", "/v1/rollouts:wait", {"rollout_ids": ["ro-1"]}))
            claimed = (await curl("POST", "/v1/queue:claim", {})).json
            await curl.polls(1)
            started.send_signal(sign)
            assert await within_patience(started.wait()) == 0
            assert (await within_patience(poll)).status == 503
        assert await started.stdout.read() == b""
        assert await started.stderr.read() == b""
    # A store that was closed has folded its log into the file.
    assert sorted(file.name for file in tmp_path.iterdir()) == ["store.db"]
    with sqlite3.connect(path) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    file.close()
    store = SQLiteStore(path)
    found = await store.get_rollout_by_id("ro-1")
    assert (found.input, found.attempt.attempt_id) == ("kept", claimed["attempt"]["attempt_id"])
    await store.close()


async def test_a_process_may_be_ended_as_soon_as_it_has_printed_its_address(tmp_path):
    for _ in range(3):
        async with process(str(tmp_path / "store.db")) as started:
            await within_patience(started.stdout.readline())
            started.send_signal(signal.SIGTERM)
            assert await within_patience(started.wait()) == 0


async def test_a_process_reads_its_token_from_the_environment_and_never_shows_it(tmp_path):
    async with process(str(tmp_path / "store.db"), token="s3cret-t0ken") as started:
        address = (await within_patience(started.stdout.readline())).decode().strip()
        async with curl_to(address) as curl:
            assert (await curl("GET", "/v1/statistics")).status == 401
            headers = {"authorization": "Bearer s3cret-t0ken"}
            assert (await curl("GET", "/v1/statistics", headers=headers)).status == 200
        started.send_signal(signal.SIGTERM)
        output, errors = await within_patience(started.communicate())
    assert started.returncode == 0
    assert b"s3cret" not in address.encode() + output + errors


async def failure(*arguments: str, token: str | None = None) -> str:
    """The message of a process that cannot start."""
    async with process(*arguments, token=token) as started:
        output, errors = await within_patience(started.communicate())
        assert (started.returncode, output) == (1, b"")
    (line,) = errors.decode().splitlines()
    assert line.startswith("sharpen store: ")
    return line


async def test_a_process_says_in_one_line_that_its_port_is_taken(tmp_path):
    async with serve() as served:
        line = await failure(str(tmp_path / "store.db"), "--port", str(served.server.port))
        assert str(served.server.port) in line
    assert sorted(file.name for file in tmp_path.iterdir()) in ([], ["store.db"])


async def test_a_process_says_in_one_line_that_its_file_is_no_store(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but long enough to look at\n" * 100)
    assert str(path) in await failure(str(path))
    assert path.read_text().startswith("not a database")


async def test_a_process_says_in_one_line_that_it_needs_a_token(tmp_path):
    assert "token" in await failure(str(tmp_path / "store.db"), "--host", "0.0.0.0")
    assert "token" in await failure(str(tmp_path / "store.db"), token="")
    assert "99999" in await failure(str(tmp_path / "store.db"), "--port", "99999")


async def test_a_forked_child_is_refused_and_told_what_to_use():
    store = InMemoryLightningStore()
    server = LightningStoreServer(store)
    await server.start()
    read_end, write_end = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            words = ""
            coroutine = server.enqueue_rollout("in the child")
            try:
                coroutine.send(None)
            except StopIteration:
                words = "acknowledged"
            except StoreError as error:
                words = str(error)
            os.write(write_end, words.encode())
        finally:
            os._exit(0)
    os.close(write_end)
    words = await asyncio.to_thread(os.read, read_end, 10_000)
    os.close(read_end)
    await asyncio.to_thread(os.waitpid, pid, 0)
    assert server.endpoint in words.decode()
    assert await store.query_rollouts() == PaginatedResult([], -1, 0, 0)
    await server.close()
