"""Whatever ends a rollout, no process of its program is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from sharpen import InMemoryLightningStore, RolloutConfig
from sharpen.errors import AgentError, AgentTimeoutError
from sharpen.litagent import CommandAgent
from sharpen.runner import Runner
from sharpen.tracer import DummyTracer
from tests.errors import raises

from ..runner.scenes import at_work, finished, why
from .commands import (
    KIN,
    KIN_COUNT,
    is_alive,
    kin,
    outputs,
    pids_in,
    run,
    run_async,
    sh,
    wait_until,
    wait_until_async,
    watchers,
)


def test_what_a_program_leaves_running_ends_with_it(tmp_path: Path) -> None:
    done, _ = run(sh(f"sleep 1000 & echo $! > {tmp_path}/a.pid; echo reward: 1"))
    assert done.reward == 1.0
    (pid,) = pids_in(tmp_path, 1) or []
    assert not is_alive(pid)


async def test_a_program_that_runs_past_its_time_is_killed_with_its_kin(tmp_path: Path) -> None:
    began = time.monotonic()
    with raises(AgentTimeoutError, "timeout_seconds=5"):
        await run_async(kin(tmp_path, timeout_seconds=5, grace_seconds=0.1))
    assert time.monotonic() - began < 20
    started = [int(path.read_text() or 0) for path in tmp_path.glob("*.pid")]
    assert started != []
    assert not any(map(is_alive, started))
    assert watchers() == set()


async def test_a_program_that_is_told_to_end_may_tidy_up(tmp_path: Path) -> None:
    script = f"trap 'echo tidy > {tmp_path}/done; exit 0' TERM; echo > {tmp_path}/ready; while :; do sleep 0.05; done"
    rollout = asyncio.create_task(run_async(sh(script, grace_seconds=30)))
    await wait_until_async((tmp_path / "ready").exists)
    rollout.cancel()
    await asyncio.wait({rollout})
    assert (tmp_path / "done").read_text() == "tidy\n"


async def test_the_time_of_the_rollout_counts_too_and_what_was_printed_is_kept() -> None:
    store = InMemoryLightningStore()
    queued = await store.enqueue_rollout(1, config=RolloutConfig(timeout_seconds=5))
    async with at_work(Runner(tracer=DummyTracer()), sh("echo hello; exec sleep 1000"), store):
        (done,) = await finished(store, [queued])
    status, kind, _ = await why(store, done)
    assert (status, kind) == ("timeout", "AgentTimeoutError")
    spans = list(await store.query_spans(done.rollout_id))
    assert outputs(spans)[0].attributes["sharpen.message.body"] == "hello\n"


async def test_a_cancelled_rollout_ends_its_program(tmp_path: Path) -> None:
    store, runner = InMemoryLightningStore(), Runner[Any](tracer=DummyTracer(), heartbeat_interval=0.05)
    queued = await store.enqueue_rollout(1)
    async with at_work(runner, kin(tmp_path, grace_seconds=0.1), store):
        pids = await wait_until_async(lambda: pids_in(tmp_path, KIN_COUNT))
        await store.update_rollout(queued.rollout_id, status="cancelled")
        await wait_until_async(lambda: not any(map(is_alive, pids)))


async def test_a_runner_that_is_stopped_hard_hands_its_rollout_back_and_leaves_nobody(tmp_path: Path) -> None:
    store, runner = InMemoryLightningStore(), Runner[Any](tracer=DummyTracer())
    queued = await store.enqueue_rollout(1)
    with runner.run_context(agent=kin(tmp_path, grace_seconds=0.1), store=store):
        task = asyncio.create_task(runner.iter())
        pids = await wait_until_async(lambda: pids_in(tmp_path, KIN_COUNT))
        task.cancel()
        await asyncio.wait({task})
    assert not any(map(is_alive, pids))
    found = await store.get_rollout_by_id(queued.rollout_id)
    assert found is not None
    assert found.status == "requeuing"


RUNNER = """
import asyncio, os, sys
from sharpen import InMemoryLightningStore
from sharpen.litagent import CommandAgent
from sharpen.runner import Runner
from sharpen.tracer import DummyTracer

agent = CommandAgent(["sh", "-c", sys.argv[1], "sh", sys.argv[2]], grace_seconds=0.2)

async def main():
    runner = Runner(tracer=DummyTracer())
    with runner.run_context(agent=agent, store=InMemoryLightningStore()):
        await runner.step(1)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_runner_that_dies_takes_its_programs_along(number: signal.Signals, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    command = [sys.executable, "-c", RUNNER, KIN, str(tmp_path / "kin")]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(files)}, stderr=subprocess.DEVNULL) as runner:
        pids = wait_until(lambda: pids_in(tmp_path / "kin", KIN_COUNT))
        assert list(files.iterdir()) != []
        runner.send_signal(number)
    wait_until(lambda: not any(map(is_alive, pids)))
    wait_until(lambda: list(files.iterdir()) == [])


FORKING = RUNNER.replace(
    "asyncio.run(main())",
    """
def fork_later():
    if os.fork() == 0:
        open(sys.argv[2] + ".fork", "w").write(str(os.getpid()))
        signal.pause()

import signal, threading
threading.Timer(1.0, fork_later).start()
asyncio.run(main())
""",
)


@pytest.mark.slow
def test_a_fork_of_the_runner_does_not_keep_its_programs_alive(tmp_path: Path) -> None:
    folder, mark = tmp_path / "kin", tmp_path / "kin.fork"
    with subprocess.Popen([sys.executable, "-c", FORKING, KIN, str(folder)], stderr=subprocess.DEVNULL) as runner:
        pids = wait_until(lambda: pids_in(folder, KIN_COUNT))
        fork = int(wait_until(lambda: mark.exists() and mark.read_text()))
        runner.kill()
    try:
        wait_until(lambda: not any(map(is_alive, pids)))
        assert is_alive(fork)
    finally:
        os.kill(fork, signal.SIGKILL)


def test_a_program_that_kills_its_watcher_fails_its_attempt_and_is_killed(tmp_path: Path) -> None:
    with pytest.raises(AgentError):
        run(sh(f"echo $$ > {tmp_path}/a.pid; kill -9 $PPID; exec sleep 1000"))
    (pid,) = pids_in(tmp_path, 1) or []
    wait_until(lambda: not is_alive(pid))


def test_nothing_is_left_open_after_many_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def rollouts(count: int) -> None:
        store, runner = InMemoryLightningStore(), Runner[Any](tracer=DummyTracer())
        with runner.run_context(agent=CommandAgent(["true"]), store=store):
            for _ in range(count):
                await runner.step(1)

    asyncio.run(rollouts(1))
    files = len(os.listdir("/proc/self/fd"))
    asyncio.run(rollouts(5))
    assert len(os.listdir("/proc/self/fd")) <= files
    assert list(tmp_path.iterdir()) == []
    assert watchers() == set()


@pytest.mark.slow
def test_an_endless_output_costs_no_memory() -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, spans = run(sh("head -c 2000000000 /dev/zero; echo; echo reward: 1"))
    (span,) = outputs(spans)
    assert span.attributes["sharpen.command.size_bytes"] == 2_000_000_011
    assert len(span.attributes["sharpen.message.body"]) < 300_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 1024


@pytest.mark.slow
async def test_many_programs_end_at_once(tmp_path: Path) -> None:
    store, runner = InMemoryLightningStore(), Runner[Any](tracer=DummyTracer(), concurrency=32)
    for number in range(32):
        await store.enqueue_rollout(number)
    script = f"echo $$ > {tmp_path}/$SHARPEN_TASK.pid; sleep 1000"
    with runner.run_context(agent=sh(script, grace_seconds=1), store=store):
        task = asyncio.create_task(runner.iter())
        pids = await wait_until_async(lambda: pids_in(tmp_path, 32), seconds=60)
        task.cancel()
        await asyncio.wait({task})
    assert not any(map(is_alive, pids))
    assert watchers() == set()
