"""Batches and streams: every task comes, none twice, and not all at once."""

import heapq
import random
from collections import Counter
from collections.abc import Iterator
from itertools import count, islice

import pytest
from hypothesis import given, strategies as st

from sharpen.algorithm import batch_iter_over_dataset
from sharpen.errors import ConfigError
from tests.algorithm.internals import Tasks, size_of
from tests.errors import raises


class Numbers:
    """An iterable that begins anew each time and counts how far it was read."""

    def __init__(self, size: int) -> None:
        self.size, self.read = size, 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.size):
            self.read += 1
            yield number


@given(size=st.integers(1, 40), batch_size=st.integers(1, 50), seed=st.integers())
def test_batches_are_full_and_hold_no_task_twice(size: int, batch_size: int, seed: int) -> None:
    batches = list(islice(batch_iter_over_dataset(list(range(size)), batch_size, rng=random.Random(seed)), 20))
    assert {len(batch) for batch in batches} == {min(size, batch_size)}
    assert all(len(set(batch)) == len(batch) for batch in batches)


@given(size=st.integers(1, 40), batch_size=st.integers(1, 50), seed=st.integers())
def test_batches_come_round_to_every_task_equally_often(size: int, batch_size: int, seed: int) -> None:
    batches = batch_iter_over_dataset(list(range(size)), batch_size, rng=random.Random(seed))
    drawn = Counter(task for batch in islice(batches, 30) for task in batch)
    assert set(drawn) == set(range(size)) or sum(drawn.values()) < size
    assert max(drawn.values()) - min(drawn[task] for task in range(size)) <= 2


def test_batches_with_one_seed_are_the_same() -> None:
    first, second = (batch_iter_over_dataset(list(range(9)), 4, rng=random.Random(3)) for _ in range(2))
    assert list(islice(first, 8)) == list(islice(second, 8))


def test_batches_of_an_iterable_come_in_its_order_pass_after_pass() -> None:
    assert list(islice(batch_iter_over_dataset(Numbers(5), 3), 4)) == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]


def test_batches_of_a_generator_end_with_it() -> None:
    assert list(batch_iter_over_dataset((n for n in range(5)), 2)) == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(("dataset", "batch_size", "named"), [([1], 0, ("batch_size", 0)), ([], 2, ())])
def test_batches_of_nothing_are_refused(dataset: list[int], batch_size: int, named: tuple[object, ...]) -> None:
    with raises(ConfigError, *named):
        batch_iter_over_dataset(dataset, batch_size)


def test_sizes_are_known_where_the_data_set_says() -> None:
    assert size_of(None) == 0
    assert size_of([1, 2]) == 2
    assert size_of(Numbers(3)) is None


def merged(tasks: Tasks[int]) -> Iterator[tuple[int, str]]:
    """Indices in ascending order, as an algorithm walks through them."""
    return heapq.merge(((i, "train") for i in tasks.train_indices), ((i, "val") for i in tasks.val_indices))


def in_order(tasks: Tasks[int]) -> list[tuple[str, int]]:
    return [(mode, tasks[index]) for index, mode in merged(tasks)]


def test_two_lists_are_read_one_after_the_other() -> None:
    assert in_order(Tasks([1, 2], [3], train_split=0.5)) == [("train", 1), ("train", 2), ("val", 3)]


def test_one_list_is_divided() -> None:
    assert in_order(Tasks([1, 2, 3, 4], None, train_split=0.75)) == [
        ("train", 1),
        ("train", 2),
        ("train", 3),
        ("val", 4),
    ]


def test_a_validation_set_alone_is_all_validation() -> None:
    assert in_order(Tasks(None, [3, 4], train_split=0.5)) == [("val", 3), ("val", 4)]


def test_two_iterables_are_read_one_after_the_other() -> None:
    assert in_order(Tasks(Numbers(2), Numbers(1), train_split=0.5)) == [("train", 0), ("train", 1), ("val", 0)]


@given(size=st.integers(0, 200), split=st.floats(0, 1))
def test_one_iterable_is_divided_evenly_and_loses_nothing(size: int, split: float) -> None:
    found = in_order(Tasks(Numbers(size), None, train_split=split))
    assert [task for _, task in found] == list(range(size))
    assert abs(sum(mode == "train" for mode, _ in found) - size * split) <= 1


@pytest.mark.parametrize("split", [0.0, 0.5, 1.0])
def test_an_iterable_without_end_is_read_only_as_far_as_needed(split: float) -> None:
    tasks = Tasks((n for n in count()), None, train_split=split)
    taken = [tasks[index] for index, _ in islice(merged(tasks), 1000)]
    assert taken == list(range(1000))
    assert len(tasks._train._read) < 5
