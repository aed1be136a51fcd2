"""A gateway whose process is killed in the middle of a run comes back, and the run goes on; or ends in plain words."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from sharpen import LLM, algo, llm_rollout
from sharpen.errors import RunError
from sharpen.llm_proxy import LLMProxy
from sharpen.semconv import SHARPEN_LLM_CALL
from sharpen.trainer import Trainer
from tests.errors import raises
from tests.llm_proxy.scripted import Reply, ScriptedUpstream
from tests.trainer.internals import gateway

from .scenes import double, until


@pytest.fixture
def proxy() -> Iterator[LLMProxy]:
    with ScriptedUpstream(default_reply=Reply("four")) as upstream:
        models = [{"name": "main", "model": "scripted", "base_url": upstream.base_url, "engine": "none"}]
        yield LLMProxy(model_list=models, launch_mode="process")


@llm_rollout
def ask(task: str, llm: LLM) -> float:
    """An agent whose client asks again when a connection fails, as they all do."""
    with OpenAI(base_url=llm.endpoint, api_key="none", max_retries=9) as client:
        answer = client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": task}])
    return float(answer.choices[0].message.content == "four")


def kill(proxy: LLMProxy) -> int:
    pid = proxy.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def kill_starting(count: int) -> threading.Thread:
    """Kill so many gateways of this process before they answer."""

    def is_gateway(folder: Path) -> bool:
        with contextlib.suppress(OSError):
            is_child = f"PPid:\t{os.getpid()}\n" in (folder / "status").read_text()
            return is_child and b"sharpen.llm_proxy" in (folder / "cmdline").read_bytes()
        return False

    def watch() -> None:
        killed: set[str] = set()
        while len(killed) < count:
            for folder in Path("/proc").glob("[0-9]*"):
                if folder.name not in killed and len(killed) < count and is_gateway(folder):
                    os.kill(int(folder.name), signal.SIGKILL)
                    killed.add(folder.name)
            time.sleep(0.002)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def test_a_gateway_that_is_killed_in_its_first_start_is_started_again(proxy: LLMProxy) -> None:
    killing = kill_starting(2)

    @algo
    async def one(store: Any) -> None:
        await finished(store, "one")

    trainer = Trainer(algorithm=one, llm_proxy=proxy, strategy="shm", n_runners=1)
    assert trainer.fit(ask).metrics["llm/calls"] == 1
    killing.join()


def test_a_gateway_that_never_starts_ends_the_run(proxy: LLMProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "START_PAUSES", (0.0,))
    killing = kill_starting(2)
    with pytest.raises(RunError):
        Trainer(algorithm=algo(lambda store: None), llm_proxy=proxy, strategy="shm").fit(ask)
    killing.join()


async def finished(store: Any, *tasks: str) -> None:
    for task in tasks:
        await store.enqueue_rollout(task, rollout_id=f"ro-{task}")
    await store.wait_for_rollouts(rollout_ids=[f"ro-{task}" for task in tasks])


async def calls_are_counted(store: Any, count: int) -> None:
    """Until the totals in the store, which are written now and then, hold so many calls."""
    while True:
        workers = await store.query_workers()
        if any((each.heartbeat_stats or {}).get("calls") == count for each in workers):
            return
        await asyncio.sleep(0.01)


def test_a_killed_gateway_comes_back_where_it_was_and_nothing_recorded_is_lost(
    proxy: LLMProxy, capfd: pytest.CaptureFixture[str]
) -> None:
    places = []

    @algo
    async def train(store: Any) -> None:
        await finished(store, "one", "two")
        await calls_are_counted(store, 2)
        places.append((kill(proxy), proxy.port))
        await finished(store, "three", "four")
        places.append((proxy.pid, proxy.port))

    trainer = Trainer(algorithm=train, llm_proxy=proxy, strategy="shm")
    result = trainer.fit(ask)
    (old_pid, old_port), (new_pid, new_port) = places
    assert (old_port, new_pid is not None, new_pid != old_pid) == (new_port, True, True)
    for rollout in asyncio.run(trainer.store.query_rollouts()):
        assert rollout.reward == 1.0
        assert len(asyncio.run(trainer.store.query_spans(rollout.rollout_id, name=SHARPEN_LLM_CALL))) == 1
    assert (result.status, result.metrics["llm/calls"]) == ("succeeded", 4)
    assert result.run_dir is not None
    written, shown = (result.run_dir / "run.log").read_text(), capfd.readouterr().err
    for said in (written, shown):
        assert "died: restart 1 of" in said
        assert "is responding again" in said
    assert "LLM calls: 4" in shown
    assert "the gateway was restarted once" in shown
    assert not proxy.is_running()


def test_a_killed_gateway_comes_back_while_the_algorithm_keeps_its_loop_busy(proxy: LLMProxy) -> None:
    @algo
    async def compute(store: Any) -> None:
        old = kill(proxy)
        until(lambda: proxy.pid not in (None, old))  # nothing else runs in this loop meanwhile
        await finished(store, "one")

    trainer = Trainer(algorithm=compute, llm_proxy=proxy, strategy="shm")
    assert trainer.fit(ask).status == "succeeded"


@pytest.mark.parametrize("strategy", ["shm", "cs"])
@pytest.mark.parametrize("is_async", [True, False])
def test_a_gateway_that_dies_again_and_again_ends_the_run(
    proxy: LLMProxy, strategy: str, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "RESTART_PAUSES", (0.0,))

    def kill_each() -> bool:
        pid = proxy.pid
        with contextlib.suppress(ProcessLookupError):  # it may have died from the kill before
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        return False

    @algo
    async def harm() -> None:
        while not kill_each():
            await asyncio.sleep(0.01)

    @algo
    def harm_sync() -> None:
        until(kill_each)

    trainer = Trainer(algorithm=harm if is_async else harm_sync, llm_proxy=proxy, strategy=strategy)
    with raises(RunError, 1):
        trainer.fit(double)
    assert trainer.result is not None
    assert trainer.result.status == "failed"


def test_a_gateway_whose_port_was_taken_is_tried_again_until_it_is_free(
    proxy: LLMProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gateway, "RESTART_PAUSES", (0.5,) + (0.05,) * 200)

    @algo
    async def take_its_place(store: Any) -> None:
        port, old = proxy.port, kill(proxy)
        await asyncio.to_thread(until, proxy.has_died)
        with socket.create_server(("127.0.0.1", port or 0)):
            await asyncio.to_thread(until, lambda: "start the gateway of this run: PortTaken" in caplog.text)
        await asyncio.to_thread(until, lambda: proxy.pid not in (None, old))
        assert proxy.port == port

    assert Trainer(algorithm=take_its_place, llm_proxy=proxy, strategy="shm").fit(double).status == "succeeded"


def test_a_gateway_that_the_algorithm_stops_is_not_brought_back(proxy: LLMProxy) -> None:
    @algo
    async def stop() -> None:
        await proxy.stop()
        assert not proxy.has_died()
        assert not proxy.revive_sync()
        assert not proxy.is_running()

    assert Trainer(algorithm=stop, llm_proxy=proxy, strategy="shm").fit(double).status == "succeeded"
