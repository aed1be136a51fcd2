"""A store, or the whole machine, that stands still for longer than the lease: nothing in hand is run again."""

import asyncio
import os
import signal

import pytest

from sharpen.store import LightningStoreClient
from sharpen.types import RolloutConfig
from tests.store.internals import DatabaseAddress, StoreClock

from .processes import child, eventually, server_process
from .scenes import PATIENCE_SECONDS, claim_new

LEASE_SECONDS = 1.2
RETRIED = RolloutConfig(unresponsive_seconds=LEASE_SECONDS, max_attempts=3, retry_condition=["unresponsive"])

RUNNER = """
import asyncio, pathlib, sys, time
import sharpen
from sharpen.runner import Runner
from sharpen.tracer import DummyTracer
url, folder = sys.argv[1], pathlib.Path(sys.argv[2])

@sharpen.rollout
def agent(task):
    with (folder / "runs").open("a") as lines:
        lines.write(f"{task}\\n")
    while not (folder / "go").exists():
        time.sleep(0.02)
    return 1.0

store = sharpen.LightningStoreClient(url)
with Runner(tracer=DummyTracer(), concurrency=4).run_context(agent=agent, store=store) as runner:
    asyncio.run(runner.iter())
"""


@pytest.mark.parametrize("who", ["store", "everything", "store beside a gateway"])
async def test_a_pause_longer_than_the_lease_runs_nothing_again(tmp_path, who):
    with server_process(tmp_path / "store.db") as server:
        await server.start()
        with child("-c", RUNNER, server.url, tmp_path) as runner:
            store = LightningStoreClient(server.url)
            beside = DatabaseAddress(str(tmp_path / "store.db")).open() if "gateway" in who else None
            queued = [await store.enqueue_rollout(task, config=RETRIED) for task in "ab"]
            await eventually(lambda: (tmp_path / "runs").exists() and len((tmp_path / "runs").read_text()) == 4)
            paused = [server.pid] + ([runner.pid] if who == "everything" else [])
            for pid in paused:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(2.5 * LEASE_SECONDS)  # what is tested is a pause of this length
            for pid in paused:
                os.kill(pid, signal.SIGCONT)
            # Long enough for the watchdog's look and for a second attempt to begin.
            await asyncio.sleep(1.5 * LEASE_SECONDS)
            (tmp_path / "go").touch()
            ids = [each.rollout_id for each in queued]
            done = await store.wait_for_rollouts(rollout_ids=ids, timeout=PATIENCE_SECONDS)
            attempts = [len(await store.query_attempts(rollout_id)) for rollout_id in ids]
            await store.close()
            if beside is not None:
                await beside.close()
    assert [each.status for each in done] == ["succeeded"] * 2
    assert sorted((tmp_path / "runs").read_text().split()) == ["a", "b"]
    assert attempts == [1, 1]


async def test_a_lost_worker_is_noticed_after_a_pause_all_the_same(tmp_path):
    with server_process(tmp_path / "store.db") as server:
        await server.start()
        store = LightningStoreClient(server.url)
        config = {"unresponsive_seconds": 1.0, "max_attempts": 2, "retry_condition": ["unresponsive"]}
        claimed = await claim_new(store, worker_id="w-1", **config)
        os.kill(server.pid, signal.SIGSTOP)
        await asyncio.sleep(2)
        os.kill(server.pid, signal.SIGCONT)
        again = await store.dequeue_rollout(wait_seconds=PATIENCE_SECONDS)
        await store.close()
    assert (again.rollout_id, again.attempt.sequence_id) == (claimed.rollout_id, 2)


def clock_that_is_set() -> tuple[StoreClock, list[float]]:
    """A store's clock that counts as the machine's, and the time that it shows."""
    shows = [1000.0]
    clock = StoreClock(lambda: shows[0])
    clock.is_real = True
    return clock, shows


@pytest.mark.parametrize("back_to", [1000.0, 1012.0])
def test_a_clock_that_jumped_ahead_and_was_set_back_extends_no_lease(back_to):
    clock, shows = clock_that_is_set()
    shows[0] = 8200.0
    assert clock.note_pause(1001.0, shows[0])
    shows[0] = back_to
    assert clock.paused_since(back_to) == 0
    clock.note_pause(back_to + 1, back_to)  # the watchdog's next look, which is on time
    shows[0] = back_to + 500
    assert clock.paused_since(back_to) == 0


def test_a_pause_still_counts_when_the_clock_is_set_back_a_little_after_it():
    clock, shows = clock_that_is_set()
    shows[0] = 4600.0
    assert clock.note_pause(1001.0, shows[0])
    shows[0] = 4599.5
    clock.note_pause(4601.0, shows[0])
    shows[0] = 4700.0
    assert clock.paused_since(1000.0) == pytest.approx(3598.5)
