"""Which tasks a step works on."""

import pytest

from sharpen.errors import ConfigError
from tests.algorithm.internals import TaskOrder, algorithm_datasets as task_order, all_tasks, indices_of_batch


def order(tasks: object, *, batch_size: int = 3, shuffle: bool = True, seed: int = 1) -> TaskOrder:
    return TaskOrder(tasks, batch_size=batch_size, shuffle=shuffle, seed=seed)  # type: ignore[arg-type]


def test_an_epoch_holds_every_task_once_and_its_last_batch_is_short() -> None:
    found = order(list(range(8)))
    batches = [found.batch(step) for step in range(found.steps_per_epoch)]
    assert [len(batch) for batch in batches] == [3, 3, 2]
    assert sorted(task for batch in batches for task in batch) == list(range(8))


def test_epochs_have_different_orders_that_follow_from_the_seed() -> None:
    def epoch(number: int, seed: int) -> list[int]:
        found = order(list(range(20)), seed=seed)
        first = number * found.steps_per_epoch
        return [task for step in range(first, first + found.steps_per_epoch) for task in found.batch(step)]

    assert epoch(0, 1) != epoch(1, 1)
    assert epoch(1, 1) == epoch(1, 1)
    assert epoch(0, 1) != epoch(0, 2)


def test_without_shuffling_tasks_come_as_they_stand() -> None:
    found = order(["a", "b", "c", "d"], shuffle=False)
    assert [found.batch(0), found.batch(1), found.batch(2)] == [["a", "b", "c"], ["d"], ["a", "b", "c"]]


def test_an_iterable_is_read_whole() -> None:
    assert sorted(order(iter("abc")).batch(0)) == ["a", "b", "c"]
    assert all_tasks(iter("abc")) == ["a", "b", "c"]
    assert all_tasks(None) == []


def test_no_tasks_and_endless_streams_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError):
        order([])
    monkeypatch.setattr(task_order, "LARGEST_STREAM", 10)
    with pytest.raises(ConfigError):
        order(iter(int, 1))


def test_batches_of_one_pass_share_no_task_and_are_all_of_one_size() -> None:
    batches = [indices_of_batch(number, size=3, count=8, seed=1) for number in range(4)]
    assert [len(batch) for batch in batches] == [3, 3, 3, 3]
    assert not set(batches[0]) & set(batches[1])
    assert indices_of_batch(2, size=3, count=8, seed=1) == batches[2]


def test_a_batch_is_never_larger_than_the_data_set() -> None:
    assert sorted(indices_of_batch(5, size=10, count=4, seed=1)) == [0, 1, 2, 3]
