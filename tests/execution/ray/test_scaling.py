"""As many runners as the queue asks for, within bounds."""

import asyncio
import time

import pytest

from sharpen.store import InMemoryLightningStore

from ..bundles import RETRY, Work
from ..processes import notes
from .conftest import living_actors
from .scenes import execute

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


def runners() -> int:
    return len(living_actors("RunnerActor"))


async def until(is_true, what: str) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.05)


def test_runners_come_with_the_queue_and_go_with_it_but_never_with_work_in_hand(tmp_path):
    seen = []

    async def algorithm(store, event):
        await until(lambda: runners() == 1, "the run begins with one runner")
        tasks = [{"sleep": 6}, *({"sleep": 0.5} for _ in range(14))]
        rollouts = [await store.enqueue_rollout(task, config=RETRY) for task in tasks]
        await until(lambda: runners() == 3, "three runners, as many as allowed")
        await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in rollouts[1:]])
        await until(lambda: runners() == 1, "one is left")
        (long,) = await store.query_rollouts(rollout_ids=[rollouts[0].rollout_id])
        seen.append(long.status)
        done = await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in rollouts])
        seen.extend(each.status for each in done)
        again = [await store.enqueue_rollout({"sleep": 0.5}, config=RETRY) for _ in range(8)]
        await until(lambda: runners() > 1, "more come again")
        seen.extend(
            each.status for each in await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in again])
        )

    store = InMemoryLightningStore()
    execute(algorithm, Work(folder=tmp_path), store, max_runners=3, idle_timeout=0.7)
    assert seen[1:] == ["succeeded"] * 23
    assert not notes(tmp_path, "cancelled")
    for rollout in asyncio.run(store.query_rollouts()):
        assert len(asyncio.run(store.query_attempts(rollout.rollout_id))) == 1


def test_runners_for_which_there_is_no_room_are_not_waited_for_when_the_queue_is_empty():
    """Two of five find a place; the others are given up when nothing waits any more."""

    async def algorithm(store, event):
        rollouts = [await store.enqueue_rollout({"sleep": 1}, config=RETRY) for _ in range(6)]
        await until(lambda: runners() == 5, "five are wanted")
        await store.wait_for_rollouts(rollout_ids=[each.rollout_id for each in rollouts])
        await until(lambda: runners() == 1, "one is left")

    place = {"left": 4, "CPU": 0}
    execute(algorithm, Work(), InMemoryLightningStore(), max_runners=5, idle_timeout=0.5, runner_resources=place)


def test_a_run_may_begin_and_end_without_a_runner():
    async def algorithm(store, event):
        rollout = await store.enqueue_rollout("a", config=RETRY)
        (done,) = await store.wait_for_rollouts(rollout_ids=[rollout.rollout_id])
        assert done.status == "succeeded"
        await until(lambda: runners() == 0, "nobody is left")

    execute(algorithm, Work(), InMemoryLightningStore(), n_runners=0, min_runners=0, max_runners=2, idle_timeout=0.5)
