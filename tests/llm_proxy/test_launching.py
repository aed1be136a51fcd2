"""Where a gateway works, how its store gets there, and what is left when a process is killed."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from sharpen import Totals
from sharpen.errors import PortTakenError, RunError
from sharpen.llm_proxy import LLMProxy
from sharpen.store import (
    InMemoryLightningStore,
    LightningStore,
    LightningStoreClient,
    LightningStoreServer,
    LightningStoreThreaded,
    SQLiteStore,
)
from sharpen.types import LLM, AttemptedRollout, RolloutConfig
from tests.errors import raises
from tests.execution.internals import LentStore
from tests.llm_proxy.internals import (
    is_own_process,
    path_of,
    proxy as proxy_module,
    serving_own_process,
)
from tests.store.internals import DatabaseAddress, ServerAddress
from tests.trainer.internals import AlgorithmStore

from ..execution.processes import eventually, is_running
from .scripted import Reply, ScriptedUpstream

PARENT = Path(__file__).parent / "programs" / "gateway_parent.py"


def models_of(upstream: ScriptedUpstream, **more: Any) -> list[dict[str, Any]]:
    return [{"name": "scripted", "base_url": upstream.base_url, "engine": "none", **more}]


def ask(llm: LLM, text: str = "hello") -> str | None:
    with openai.OpenAI(base_url=llm.get_base_url(), api_key="sk-any", max_retries=0) as client:
        answer = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content


async def until(is_true: Callable[[], object]) -> None:
    await asyncio.to_thread(eventually, is_true)


def is_open(port: int | None) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port or 0)) == 0


@contextlib.asynccontextmanager
async def at_work(
    upstream: ScriptedUpstream, store: LightningStore, **settings: Any
) -> AsyncIterator[tuple[LLMProxy, AttemptedRollout, LLM]]:
    """A gateway in a process of its own, an attempt, and its endpoint."""
    rollout = await store.start_rollout({"question": 1})
    proxy = LLMProxy(model_list=models_of(upstream), store=store, launch_mode="process", **settings)
    async with proxy:
        yield proxy, rollout, proxy.as_resource(rollout.rollout_id, rollout.attempt.attempt_id)


# -- the address of a store ----------------------------------------------------------------------------


class Wrapper(LightningStore):
    """A user's own store before another one."""

    def __init__(self, store: LightningStore) -> None:
        self.store = store


async def test_a_store_is_found_through_the_faces_that_this_package_puts_before_it(tmp_path: Path) -> None:
    file = SQLiteStore(tmp_path / "store.db", synchronous="full", busy_seconds=3)
    client = LightningStoreClient("http://127.0.0.1:9", "tok")
    in_file = DatabaseAddress(
        str(tmp_path / "store.db"), {"synchronous": "full", "busy_seconds": 3, "max_kept_bytes": 64 * 2**20}
    )
    served = ServerAddress("http://127.0.0.1:9", "tok", options=client.options)
    threaded = LightningStoreThreaded(file)
    for store, found in (
        (file, in_file),
        (LightningStoreServer(file), in_file),
        (threaded, in_file),
        (AlgorithmStore(LentStore(file), RolloutConfig()), in_file),
        (client, served),
        (AlgorithmStore(LentStore(client), RolloutConfig()), served),
        (AlgorithmStore(InMemoryLightningStore(), RolloutConfig()), None),
        (InMemoryLightningStore(), None),
        (Wrapper(file), None),
    ):
        assert store.address() == found
    await threaded.close()
    await client.close()


async def test_a_file_with_a_clock_of_its_own_is_not_opened_elsewhere(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db", clock=lambda: 5.0)
    assert store.address() is None
    await store.close()


def test_the_address_of_a_store_does_not_show_its_token() -> None:
    assert "hidden" not in repr(ServerAddress("http://127.0.0.1:9", "hidden"))


async def test_the_store_decides_where_a_gateway_works(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    assert is_own_process(None, store, None)
    assert is_own_process(None, LightningStoreClient("http://127.0.0.1:9"), None)
    assert not is_own_process(None, InMemoryLightningStore(), None)
    assert not is_own_process(None, None, None)
    assert not is_own_process(None, store, lambda attributes: attributes)  # which only this process knows
    assert is_own_process("mp", None, None)
    assert not is_own_process("thread", store, None)
    await store.close()


def test_a_hook_has_a_path_where_another_process_would_find_it() -> None:
    assert path_of(models_of) == f"{__name__}.models_of"
    assert path_of(lambda attributes: attributes) is None
    assert path_of(Wrapper.__init__) is None


# -- the store of a gateway's process ------------------------------------------------------------------


@contextlib.asynccontextmanager
async def memory(tmp_path: Path) -> AsyncIterator[LightningStore]:
    yield InMemoryLightningStore()


@contextlib.asynccontextmanager
async def file(tmp_path: Path) -> AsyncIterator[LightningStore]:
    store = SQLiteStore(tmp_path / "store.db")
    yield AlgorithmStore(store, RolloutConfig())
    await store.close()


@contextlib.asynccontextmanager
async def client(tmp_path: Path) -> AsyncIterator[LightningStore]:
    server = LightningStoreServer(InMemoryLightningStore(), token="tok")
    await server.start()
    store = LightningStoreClient(server.endpoint, "tok")
    yield AlgorithmStore(store, RolloutConfig())
    await store.close()
    await server.close()


@contextlib.asynccontextmanager
async def threaded(tmp_path: Path) -> AsyncIterator[LightningStore]:
    store = LightningStoreThreaded(InMemoryLightningStore(thread_safe=False))
    yield store
    await store.close()


@pytest.mark.parametrize("open_store", [memory, file, client, threaded])
async def test_a_process_records_into_every_kind_of_store(
    open_store: Callable[[Path], contextlib.AbstractAsyncContextManager[LightningStore]],
    upstream: ScriptedUpstream,
    tmp_path: Path,
) -> None:
    async with open_store(tmp_path) as store:
        async with at_work(upstream, store) as (proxy, rollout, llm):
            assert await asyncio.to_thread(ask, llm) == "You said: hello"
            assert len(await store.query_spans(rollout.rollout_id)) == 1
            assert proxy.pid != os.getpid()
        worker = await store.get_worker_by_id("gateway-gateway")
        assert worker is not None
        assert worker.heartbeat_stats["calls"] == 1


async def test_secrets_are_neither_on_the_command_line_nor_in_the_environment(
    upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    models = models_of(upstream, api_key="sk-hidden")
    proxy = LLMProxy(model_list=models, token="tok-hidden", launch_mode="process", store=InMemoryLightningStore())
    async with proxy:
        for name in ("cmdline", "environ"):
            assert b"hidden" not in Path(f"/proc/{proxy.pid}/{name}").read_bytes()


def test_started_by_hand_it_says_who_starts_it() -> None:
    command = [sys.executable, "-m", "sharpen.llm_proxy"]
    wrong = subprocess.run(command, input="serve\n", capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "started by LLMProxy" in wrong.stderr
    assert subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout == ""


# -- the child is killed -------------------------------------------------------------------------------


async def test_a_killed_child_is_noticed_and_comes_back(
    upstream: ScriptedUpstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    async with at_work(upstream, store) as (proxy, rollout, llm):
        await asyncio.to_thread(ask, llm)
        port, pid = proxy.port, proxy.pid
        assert pid is not None
        draining = asyncio.create_task(proxy.drain())
        await draining
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not proxy.is_running())
        await until(lambda: "killed by SIGKILL" in caplog.text)
        with raises(RunError, "SIGKILL", "restart()"):
            await proxy.pause()
        with raises(RunError, "SIGKILL"):
            proxy.drain_sync()
        assert (await proxy.totals()).calls == 1
        assert not is_open(port)
        await proxy.restart()
        assert proxy.port == port
        assert await asyncio.to_thread(ask, llm) == "You said: hello"
        assert len(await store.query_spans(rollout.rollout_id)) == 2
    await store.close()


async def test_a_killed_child_that_was_paused_is_paused_when_it_is_revived(upstream: ScriptedUpstream) -> None:
    async with at_work(upstream, InMemoryLightningStore(), when_paused="refuse") as (proxy, _, llm):
        port, pid = proxy.port, proxy.pid
        assert not proxy.has_died()
        assert not proxy.revive_sync()
        await proxy.pause()
        os.kill(pid or 0, signal.SIGKILL)
        await until(proxy.has_died)
        with socket.create_server(("127.0.0.1", port or 0)), pytest.raises(PortTakenError):
            proxy.revive_sync()
        assert proxy.has_died()  # and may be tried again
        assert proxy.revive_sync()
        assert (proxy.port, proxy.pid == pid) == (port, False)
        with pytest.raises(openai.RateLimitError):
            await asyncio.to_thread(ask, llm)
        await proxy.resume()
        assert await asyncio.to_thread(ask, llm) == "You said: hello"


async def test_whoever_waits_for_a_child_that_is_killed_is_told(upstream: ScriptedUpstream) -> None:
    async with at_work(upstream, InMemoryLightningStore()) as (proxy, _, llm):
        hold = threading.Event()
        upstream.script(Reply(hold=hold))
        asking = asyncio.create_task(asyncio.to_thread(ask, llm))
        await until(lambda: len(upstream.requests) == 1)
        draining = asyncio.create_task(proxy.drain())
        await proxy.totals()  # orders are read one after another: the one before is there too
        os.kill(proxy.pid or 0, signal.SIGKILL)
        with raises(RunError, "SIGKILL"):
            await draining
        hold.set()
        with pytest.raises(openai.APIConnectionError):
            await asking
        await proxy.start()  # as good as restart, on any port
        assert proxy.is_running()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_child_in_order(upstream: ScriptedUpstream, number: signal.Signals) -> None:
    store = InMemoryLightningStore()
    async with at_work(upstream, store) as (proxy, rollout, llm):
        hold = threading.Event()
        upstream.script(Reply(hold=hold))
        asking = asyncio.create_task(asyncio.to_thread(ask, llm))
        await until(lambda: len(upstream.requests) == 1)
        os.kill(proxy.pid or 0, number)
        await until(lambda: not is_open(proxy.port))  # it takes no more calls, and finishes this one
        hold.set()
        assert await asking == "You said: hello"
        await until(lambda: not proxy.is_running())
        with raises(RunError, 0):
            await proxy.pause()
        (span,) = await store.query_spans(rollout.rollout_id)
        assert span.status.status_code == "OK"
    assert (await proxy.totals()).calls == 1


async def test_a_child_that_does_not_listen_is_killed_in_the_end(
    upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_own_process, "STOP_SECONDS", 0.3)
    monkeypatch.setattr(serving_own_process, "SIGNAL_SECONDS", 0.3)
    async with at_work(upstream, InMemoryLightningStore()) as (proxy, _, _):
        pid, port = proxy.pid or 0, proxy.port
        os.kill(pid, signal.SIGSTOP)
        await proxy.stop()
        assert not is_running(pid)
        assert not is_open(port)


async def test_orders_to_a_child_that_does_not_listen_have_a_time_limit(
    upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(serving_own_process, "WRITE_SECONDS", 0.2)
    long = [*models_of(upstream), {"name": "x" * 300_000, "base_url": upstream.base_url}]
    async with at_work(upstream, InMemoryLightningStore()) as (proxy, _, llm):
        os.kill(proxy.pid or 0, signal.SIGSTOP)
        try:
            async with asyncio.timeout(20):
                for order in (proxy.totals, proxy.pause, proxy.resume, lambda: proxy.drain(0.1)):
                    with pytest.raises(RunError):
                        await order()
                with pytest.raises(RunError):  # more than its pipe takes
                    await asyncio.to_thread(proxy.update_model_list, long)
        finally:
            os.kill(proxy.pid or 0, signal.SIGCONT)
        monkeypatch.setattr(proxy_module, "ANSWER_SECONDS", 30.0)
        monkeypatch.setattr(serving_own_process, "WRITE_SECONDS", 10.0)
        assert (await proxy.totals()).calls == 0  # what was not taken then has been taken since
        assert await asyncio.to_thread(ask, llm) == "You said: hello"


CHILD = """
import json, sys
def say(**told): print(json.dumps(told), flush=True)
totals = json.loads(sys.argv[1])
sys.stdin.readline()
say(number=0, answer={"in_flight": 0, "totals": totals})
sys.stdin.readline()
print("this is no answer", flush=True)
number = json.loads(sys.stdin.readline())["number"]
say(number=number, answer={"in_flight": 7, "totals": totals})
sys.stdin.read()
"""


async def test_a_line_that_cannot_be_read_leaves_nobody_waiting(
    upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = msgspec.json.encode(Totals()).decode()

    def spawn(bound: socket.socket) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-c", CHILD, totals]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    monkeypatch.setattr(serving_own_process, "_spawn", spawn)
    monkeypatch.setattr(serving_own_process, "STOP_SECONDS", 0.2)
    async with at_work(upstream, InMemoryLightningStore()) as (proxy, _, _), asyncio.timeout(10):
        with pytest.raises(RunError):
            await proxy.drain()
        assert await proxy.pause() == 7


# -- the parent is killed ------------------------------------------------------------------------------


@contextlib.contextmanager
def parent(upstream: ScriptedUpstream, store: Path, mode: str) -> Iterator[tuple["subprocess.Popen[str]", Any]]:
    """A program that holds a gateway, and what it says about it."""
    program = subprocess.Popen(
        [sys.executable, str(PARENT), json.dumps(models_of(upstream)), str(store), mode],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    told: dict[str, int] = {}
    try:
        assert program.stdout is not None
        told = json.loads(program.stdout.readline())
        yield program, told
    finally:
        for pid in filter(None, (program.pid, told.get("pid"), told.get("fork"))):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        program.wait()
        program.stdout.close()  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["wait", "fork"])
def test_a_killed_parent_takes_its_child_along(upstream: ScriptedUpstream, tmp_path: Path, mode: str) -> None:
    """Also where a fork of the parent lives on, which holds copies of all that the parent had open."""
    with parent(upstream, tmp_path / "store.db", mode) as (program, told):
        assert is_open(told["port"])
        program.kill()
        begin = time.monotonic()
        eventually(lambda: not is_running(told["pid"]), "the end of the child", seconds=15)
        assert time.monotonic() - begin < 10
        with socket.create_server(("127.0.0.1", told["port"])):
            pass


def test_ctrl_c_reaches_only_the_parent_which_stops_the_child(upstream: ScriptedUpstream, tmp_path: Path) -> None:
    with parent(upstream, tmp_path / "store.db", "interrupt") as (program, told):
        os.killpg(program.pid, signal.SIGINT)  # as a terminal does
        output, _ = program.communicate(timeout=30)
        assert output.splitlines() == ["answered 200", "stopped False"]
        assert program.returncode == 0
        assert not is_running(told["pid"])
