"""Baseline: every task once, in a short queue, with honest numbers at the end."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from sharpen.algorithm import Baseline, FastAlgorithm
from sharpen.errors import ConfigError, TaskError
from sharpen.store import InMemoryLightningStore, LightningStore, SQLiteStore
from sharpen.types import PromptTemplate, Rollout, RolloutConfig
from tests.algorithm.internals import MAX_LENGTH, Window
from tests.errors import raises

from .workers import until, work, working


def baseline(store: LightningStore, **options: Any) -> Baseline:
    algorithm = Baseline(**options)
    algorithm.set_store(store)
    return algorithm


def double(task: float) -> float:
    return task * 2


async def modes_and_inputs(store: LightningStore) -> Counter[tuple[str | None, Any]]:
    return Counter((rollout.mode, rollout.input) for rollout in await store.query_rollouts())


async def test_every_task_is_run_once_in_its_split() -> None:
    store = InMemoryLightningStore()
    async with working(store, double):
        await baseline(store).run([1, 2, 3], [4, 5])
    expected = [("train", 1), ("train", 2), ("train", 3), ("val", 4), ("val", 5)]
    assert await modes_and_inputs(store) == Counter(expected)


async def test_without_a_validation_set_the_training_set_is_divided() -> None:
    store = InMemoryLightningStore()
    async with working(store, double):
        await baseline(store, train_split=0.25).run([1, 2, 3, 4])
    assert await modes_and_inputs(store) == Counter([("train", 1), ("val", 2), ("val", 3), ("val", 4)])


async def test_every_epoch_runs_all_tasks_again() -> None:
    store = InMemoryLightningStore()
    async with working(store, double):
        await baseline(store, n_epochs=3).run([1], [2])
    assert await modes_and_inputs(store) == Counter({("train", 1): 3, ("val", 2): 3})


async def test_an_iterable_is_read_once_an_epoch() -> None:
    class Twice:
        reads = 0

        def __iter__(self) -> Iterator[int]:
            self.reads += 1
            return iter([1, 2])

    store, tasks = InMemoryLightningStore(), Twice()
    async with working(store, double):
        await baseline(store, n_epochs=2).run(tasks)
    assert tasks.reads == 2
    assert (await store.statistics())["total_rollouts"] == 4


async def test_the_table_tells_counts_and_rewards_of_each_split(capsys: pytest.CaptureFixture[str]) -> None:
    store = InMemoryLightningStore()
    async with working(store, double):
        await baseline(store).run([1, 2], [5])
    shown = capsys.readouterr()
    assert shown.out == ""
    rows = [line.replace("│", " ").split() for line in shown.err.splitlines() if line.startswith("│")]
    assert rows == [
        ["train", "2", "2", "0", "0", "3", "2", "4"],
        ["val", "1", "1", "0", "0", "10", "10", "10"],
        ["all", "3", "3", "0", "0", "5.333", "2", "10"],
    ]


async def test_a_rollout_that_failed_by_the_agents_fault_counts_as_zero() -> None:
    store = InMemoryLightningStore()
    algorithm = baseline(store)
    async with working(store, lambda task: 1 / task):
        await algorithm.run([0, 1, 2], [])
    train = algorithm.rewards.by_mode["train"]
    assert (train.count, train.succeeded, train.failed, train.lost, train.mean) == (3, 2, 1, 0, 0.5)


async def test_a_rollout_lost_to_infrastructure_is_counted_and_left_out_of_the_mean() -> None:
    store = InMemoryLightningStore()
    algorithm = baseline(store)
    task = asyncio.create_task(algorithm.run([1, 2], []))
    await until(lambda: _queue_is(store, 2))
    lost = await store.dequeue_rollout(worker_id="dead")
    assert lost is not None
    await store.update_attempt(lost.rollout_id, lost.attempt.attempt_id, status="unresponsive")
    async with working(store, double):
        await task
    train = algorithm.rewards.by_mode["train"]
    assert (train.count, train.succeeded, train.failed, train.lost, train.mean) == (2, 1, 0, 1, 4)


async def test_a_cancelled_rollout_and_one_without_a_reward_are_left_out_of_the_mean() -> None:
    store = InMemoryLightningStore()
    algorithm = baseline(store)
    task = asyncio.create_task(algorithm.run([1, 2, 3], []))
    await until(lambda: _queue_is(store, 3))
    await store.cancel_rollouts([(await store.query_rollouts(limit=1))[0].rollout_id])
    async with working(store, lambda task: None if task == 2 else 7):
        await task
    train = algorithm.rewards.by_mode["train"]
    assert (train.count, train.succeeded, train.cancelled, train.mean) == (3, 2, 1, 7)


async def _queue_is(store: LightningStore, length: int) -> bool:
    return (await store.statistics())["queue_length"] == length


async def test_the_initial_resources_are_published_first() -> None:
    store = InMemoryLightningStore()
    algorithm = baseline(store)
    algorithm.set_initial_resources({"prompt": PromptTemplate("Say {word}")})
    async with working(store, double):
        await algorithm.run([1], [2])
    published = await store.get_latest_resources()
    assert published is not None
    assert published.resources == {"prompt": PromptTemplate("Say {word}")}
    assert {rollout.resources_id for rollout in await store.query_rollouts()} == {published.resources_id}


async def test_what_happened_is_logged_by_verbosity(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sharpen")

    async def logged(verbosity: str) -> str:
        caplog.clear()
        store = InMemoryLightningStore()
        async with working(store, lambda task: 1 / task):
            await baseline(store, span_verbosity=verbosity, train_split=1).run([0, 1])
        return caplog.text

    assert ": answer (said)\n" in await logged("keys")
    assert ": answer (said='yes')\n" in await logged("key_values")
    assert "failed (ZeroDivisionError: division by zero)" in await logged("keys")
    assert "ro-" not in await logged("none")  # an error of an agent is logged by its runner


async def test_a_rollout_that_no_runner_could_log_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = InMemoryLightningStore()
    task = asyncio.create_task(baseline(store).run([1], []))
    await until(lambda: _queue_is(store, 1))
    lost = await store.dequeue_rollout(worker_id="dead")
    assert lost is not None
    await store.update_attempt(lost.rollout_id, lost.attempt.attempt_id, status="unresponsive")
    await task
    (record,) = [each for each in caplog.records if lost.rollout_id in each.getMessage()]
    assert record.levelno == logging.WARNING


# -- the queue ---------------------------------------------------------------------------------------


async def test_a_queue_that_nobody_takes_from_stays_short() -> None:
    store = InMemoryLightningStore()
    read = list[int]()

    def tasks() -> Iterator[int]:
        for number in range(1_000_000):
            read.append(number)
            yield number

    task = asyncio.create_task(baseline(store, max_queue_length=4).run(tasks()))
    try:
        await until(lambda: _queue_is(store, 5))
        for _ in range(20):  # many looks later it is as short
            await asyncio.sleep(0.02)
            assert (await store.statistics())["queue_length"] <= 5
        assert len(read) < 20
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_tasks_are_read_only_as_fast_as_they_are_finished() -> None:
    store, read, finished, ahead = InMemoryLightningStore(), 0, 0, 0

    def tasks() -> Iterator[int]:
        nonlocal read, ahead
        for number in range(3000):
            read += 1
            ahead = max(ahead, read - finished)
            yield number

    def agent(task: int) -> float:
        nonlocal finished
        finished += 1
        return 1.0

    async with working(store, agent, slots=4):
        await baseline(store, span_verbosity="none").run(tasks())
    assert finished == 3000
    assert ahead < 2500  # at most what the workers take in a quarter of a second, whatever the machine


async def test_the_queue_is_long_enough_for_all_slots() -> None:
    store = InMemoryLightningStore()
    await store.update_worker("worker-0", {"slots": 50})
    task = asyncio.create_task(baseline(store).run(range(1000)))
    try:
        await until(lambda: _queue_is(store, 50))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_workers_that_say_nothing_of_their_slots_are_not_starved() -> None:
    store, in_hand = InMemoryLightningStore(), 0

    async def take_all() -> None:
        nonlocal in_hand
        while True:
            in_hand += len(await store.dequeue_many_rollouts(limit=100, worker_id="greedy", wait_seconds=10))

    async def has_many() -> bool:
        return in_hand >= 500

    tasks = [asyncio.create_task(baseline(store).run(range(1000))), asyncio.create_task(take_all())]
    try:
        await until(has_many)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def look(window: Window, **seen: Any) -> int:
    usual = {"outstanding": 0, "queue_length": 0, "slots": 1, "finished_per_second": 0.0, "has_more": True}
    window.measured(**{**usual, **seen})
    return window.limit


def test_the_window_is_as_long_as_asked_for_while_agents_are_slow() -> None:
    assert look(Window(4), outstanding=6, queue_length=4, slots=2, finished_per_second=3) == 2 + 4


def test_the_window_holds_what_quick_agents_take_in_a_quarter_of_a_second() -> None:
    assert look(Window(4), outstanding=6, queue_length=4, slots=2, finished_per_second=2000) == 2 + 500


def test_the_window_doubles_when_the_queue_was_found_empty() -> None:
    window = Window(4)
    assert [look(window, outstanding=10) for _ in range(3)] == [10 + 8, 10 + 16, 10 + 32]
    assert look(window, outstanding=10, has_more=False) == 10 + 4


def test_the_window_has_an_upper_bound() -> None:
    window = Window(4)
    for _ in range(100):
        look(window, outstanding=10)
    assert window.limit == 10 + MAX_LENGTH


# -- starting again ----------------------------------------------------------------------------------


async def test_a_baseline_that_starts_again_runs_nothing_again(tmp_path: Any) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    saved: list[dict[str, Any]] = []
    calls: Counter[int] = Counter()

    def counted(task: int) -> float:
        calls[task] += 1
        return float(task)

    first = baseline(store)
    first.set_checkpointer(saved.append)
    running = asyncio.create_task(first.run(range(40), []))
    working_once = asyncio.create_task(work(store, counted))

    async def has_done_some() -> bool:
        return sum(calls.values()) >= 10

    await until(has_done_some)
    for task in (running, working_once):
        task.cancel()
    await asyncio.gather(running, working_once, return_exceptions=True)
    await _hand_back_open(store)

    again = baseline(store)
    again.load_state_dict(saved[-1])
    async with working(store, counted):
        await again.run(range(40), [])
    assert (await store.statistics())["total_rollouts"] == 40
    assert set(calls) == set(range(40))
    assert sum(calls.values()) <= 41  # the one that was in hand may run again
    assert again.rewards.all.count == 40
    assert again.rewards.all.mean == sum(range(40)) / 40
    await store.close()


async def _hand_back_open(store: LightningStore) -> None:
    for rollout in await store.query_rollouts(status_in=["preparing", "running"]):
        await store.update_rollout(rollout.rollout_id, status="requeuing")


async def test_a_finished_baseline_that_is_loaded_again_has_nothing_to_do() -> None:
    store, saved = InMemoryLightningStore(), list[dict[str, Any]]()
    first = baseline(store)
    first.set_checkpointer(saved.append)
    async with working(store, double):
        await first.run([1, 2], [3])
    again = baseline(store)
    again.load_state_dict(saved[-1])
    await again.run([1, 2], [3])  # nobody works
    assert (await store.statistics())["total_rollouts"] == 3


async def test_two_runs_in_one_store_do_not_count_each_other() -> None:
    store = InMemoryLightningStore()
    first, second = baseline(store), baseline(store)
    async with working(store, double):
        await first.run([1], [])
        await second.run([2], [])
    assert (first.rewards.all.mean, second.rewards.all.mean) == (2, 4)


async def test_a_rollout_that_is_retried_is_one_rollout() -> None:
    store = InMemoryLightningStore()
    algorithm = baseline(store)
    running = asyncio.create_task(algorithm.run([1], []))
    await until(lambda: _queue_is(store, 1))
    rollout = (await store.query_rollouts())[0]
    await store.update_rollout(
        rollout.rollout_id, config=RolloutConfig(max_attempts=2, retry_condition=["unresponsive"])
    )
    claimed = await store.dequeue_rollout(worker_id="dead")
    assert claimed is not None
    await store.update_attempt(claimed.rollout_id, claimed.attempt.attempt_id, status="unresponsive")
    async with working(store, double):
        await running
    assert (algorithm.rewards.all.count, algorithm.rewards.all.mean) == (1, 2)


# -- override points ---------------------------------------------------------------------------------


async def test_a_subclass_may_enqueue_what_it_likes() -> None:
    class Both(Baseline):
        async def _enqueue_rollouts(
            self, dataset: Any, train_indices: Any, val_indices: Any, resources_id: str | None
        ) -> None:
            for index in train_indices:
                await self.get_store().enqueue_rollout(dataset[index] * 100, "train", resources_id)

    store = InMemoryLightningStore()
    algorithm = Both(train_split=1)
    algorithm.set_store(store)
    async with working(store, double):
        await algorithm.run([1, 2])
    assert await modes_and_inputs(store) == Counter([("train", 100), ("train", 200)])
    assert algorithm.rewards.all.mean == 300


async def test_a_subclass_sees_every_rollout_that_finished() -> None:
    class Watching(Baseline):
        def __init__(self) -> None:
            super().__init__()
            self.harvested: list[str] = []
            self.finished: list[Rollout] = []

        async def _harvest_rollout_spans(self, rollout_id: str) -> None:
            self.harvested.append(rollout_id)

        async def _handle_rollout_finish(self, rollout: Rollout) -> None:
            self.finished.append(rollout)

    store = InMemoryLightningStore()
    algorithm = Watching()
    algorithm.set_store(store)
    async with working(store, lambda task: 1 / task):
        await algorithm.run([0, 1], [])
    assert sorted(algorithm.harvested) == sorted(rollout.rollout_id for rollout in algorithm.finished)
    assert {rollout.status for rollout in algorithm.finished} == {"failed", "succeeded"}


# -- bad input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n_epochs": 0}, ("n_epochs", 0, 1)),
        ({"train_split": 1.5}, ("train_split", 1.5)),
        ({"polling_interval": 0}, ("polling_interval", 0)),
        ({"max_queue_length": 0}, ("max_queue_length", 0, 1)),
        ({"span_verbosity": "all"}, ("span_verbosity", "all", "key_values")),
    ],
)
def test_a_setting_that_cannot_work_is_refused(options: dict[str, Any], named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        Baseline(**options)


async def test_no_data_is_an_error_that_says_what_to_give() -> None:
    with raises(ConfigError, "Baseline", "train_dataset"):
        await baseline(InMemoryLightningStore()).run()


async def test_a_generator_for_two_epochs_is_refused_before_anything_is_enqueued() -> None:
    store = InMemoryLightningStore()
    with raises(ConfigError, "train_dataset", "n_epochs", 2):
        await baseline(store, n_epochs=2).run(n for n in range(3))
    assert (await store.statistics())["total_rollouts"] == 0


async def test_a_task_that_is_no_json_ends_the_run_with_the_hint(tmp_path: Any) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    with raises(TaskError, "task['when']"):
        await baseline(store).run([{"when": object()}])
    await store.close()


def test_baseline_is_for_trying_things_out() -> None:
    assert isinstance(Baseline(), FastAlgorithm)
    assert Baseline().is_async()


async def test_a_data_set_that_takes_its_time_does_not_fill_the_queue() -> None:
    class Slow:
        def __len__(self) -> int:
            return 60

        def __getitem__(self, index: int) -> int:
            time.sleep(0.025)
            return index

    store = InMemoryLightningStore()
    running = asyncio.create_task(baseline(store, max_queue_length=4).run(Slow()))
    await asyncio.sleep(1.0)
    running.cancel()
    assert (await store.statistics())["queue_length"] <= 8
