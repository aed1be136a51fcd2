"""`Trainer.status()`: what every rollout and worker is doing, at any moment and from anywhere."""

import asyncio
import threading
from typing import Any

import pytest

from sharpen.algorithm import algo
from sharpen.trainer import RunStatus, Trainer

from .scenes import double, small_trainer, until


def test_before_the_first_run_there_is_nothing() -> None:
    status = small_trainer().status()
    assert status == RunStatus(state="not started")
    assert str(status).startswith("run not started")


@pytest.fixture
def held() -> threading.Event:
    return threading.Event()


def start(trainer: Trainer, agent: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: trainer.fit(agent))
    thread.start()
    return thread


def test_a_run_under_way_tells_what_everybody_has_in_hand(held: threading.Event) -> None:
    @algo
    async def mine(store: Any) -> None:
        ids = [(await store.enqueue_rollout(n, mode="train", rollout_id=f"ro-{n}")).rollout_id for n in range(4)]
        await store.wait_for_rollouts(rollout_ids=ids)

    def agent(task: int) -> float:
        assert held.wait(60)
        return 1.0

    trainer = small_trainer(algorithm=mine, n_runners=2)
    thread = start(trainer, agent)
    until(lambda: trainer.status().running == 2)
    status = trainer.status()
    held.set()
    thread.join()
    assert (status.state, status.queued, status.running, status.succeeded) == ("running", 2, 2, 0)
    assert {each.rollout_id for each in status.open_rollouts} == {"ro-0", "ro-1"}
    assert all((each.attempt, each.mode) == (1, "train") and each.seconds >= 0 for each in status.open_rollouts)
    workers = {worker.worker_id: worker for worker in status.workers}
    assert {each.worker_id for each in status.open_rollouts} <= set(workers)
    assert all(worker.heartbeat_stats["slots"] == 1 for worker in workers.values())
    assert status.statistics is not None
    assert status.statistics["queue_length"] == 2
    page = str(status)
    assert page.splitlines()[1] == "queued 2, running 2, succeeded 0, failed 0, cancelled 0"
    assert "ro-0: " in page
    assert "attempt 1 at" in page
    after = trainer.status()
    assert (after.state, after.succeeded, after.open_rollouts) == ("succeeded", 4, [])
    assert after.run_dir == status.run_dir


def test_a_failed_run_is_told_as_one() -> None:
    @algo
    def fails() -> None:
        raise ArithmeticError

    trainer = small_trainer(algorithm=fails)
    with pytest.raises(ArithmeticError):
        trainer.fit(double)
    assert trainer.status().state == "failed"


async def test_the_algorithm_itself_may_ask() -> None:
    seen: list[str] = []

    @algo
    async def mine(store: Any) -> None:
        seen.append(trainer.status().state)

    trainer = small_trainer(algorithm=mine)
    await trainer.fit_async(double)
    assert seen == ["running"]


def test_the_store_of_the_last_run_can_be_asked_afterwards() -> None:
    trainer = Trainer(strategy="shm", dev=True)
    trainer.fit(double, [1, 2])
    assert trainer.status().succeeded == 2
    assert asyncio.run(trainer.store.statistics())["total_rollouts"] == 2
