"""Attempts of workers that are known to be dead are not waited for."""

import os
import socket
import subprocess
import sys

from sharpen.store import InMemoryLightningStore
from sharpen.types import AttemptedRollout, RolloutConfig
from tests.execution.internals import lose_those_of_the_dead

PATIENT = RolloutConfig(unresponsive_seconds=3600, max_attempts=2, retry_condition=["unresponsive"])


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


async def claimed_by(store: InMemoryLightningStore, name: str, **about: object) -> AttemptedRollout:
    await store.update_worker(name, about)
    await store.enqueue_rollout(name, config=PATIENT)
    claimed = await store.dequeue_rollout(worker_id=name)
    assert claimed is not None
    return claimed


async def status_of(store: InMemoryLightningStore, rollout: AttemptedRollout) -> str:
    found = await store.get_rollout_by_id(rollout.rollout_id)
    assert found is not None
    return found.status


async def test_what_a_dead_worker_of_this_machine_had_in_hand_is_tried_again_at_once() -> None:
    store = InMemoryLightningStore()
    claimed = await claimed_by(store, "dead", host=socket.gethostname(), pid=dead_process())
    assert await lose_those_of_the_dead(store) == 1
    assert await status_of(store, claimed) == "requeuing"
    again = await store.dequeue_rollout(worker_id="other")
    assert again is not None
    assert again.rollout_id == claimed.rollout_id


async def test_workers_that_live_or_are_elsewhere_keep_what_they_have() -> None:
    store = InMemoryLightningStore()
    here = socket.gethostname()
    kept = [
        await claimed_by(store, "alive", host=here, pid=os.getppid()),
        await claimed_by(store, "ours", host=here, pid=os.getpid()),
        await claimed_by(store, "elsewhere", host="another-machine", pid=dead_process()),
        await claimed_by(store, "unknown"),
    ]
    assert await lose_those_of_the_dead(store) == 0
    assert {await status_of(store, each) for each in kept} == {"preparing"}
