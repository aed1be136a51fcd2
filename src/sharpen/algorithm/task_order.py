"""Which tasks a step works on. The order follows from the seed alone, so a run that is resumed meets the same."""

import heapq
import math
import random
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError
from ..types import Dataset, SizedDataset
from .datasets import Tasks

LARGEST_STREAM = 1_000_000


class TaskOrder:
    """The tasks of a data set in batches: every epoch in an order of its own, the last batch of it as short as it is.

    An iterable without a length is read whole at the beginning.
    """

    def __init__(self, dataset: Dataset[Any], *, batch_size: int, shuffle: bool, seed: int) -> None:
        self._tasks: SizedDataset[Any] = dataset if isinstance(dataset, SizedDataset) else _read(dataset)
        if not len(self._tasks):
            raise ConfigError("the training set is empty: it needs at least one task")
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(len(self._tasks) / self._batch_size)

    def batch(self, step: int) -> list[Any]:
        """The tasks of a step, counted from 0 over all epochs."""
        epoch, number = divmod(step, self.steps_per_epoch)
        indices = self._indices(epoch)[number * self._batch_size : (number + 1) * self._batch_size]
        return [self._tasks[index] for index in indices]

    def _indices(self, epoch: int) -> Sequence[int]:
        indices = list(range(len(self._tasks)))
        if self._shuffle:
            random.Random(f"{self._seed}-{epoch}").shuffle(indices)
        return indices


def indices_of_batch(number: int, *, size: int, count: int, seed: int) -> list[int]:
    """The tasks of a batch, counted from 0, out of `count`: in every pass over them each comes once at most, and a
    batch is as large as it can be."""
    batches_per_pass = max(1, count // size)
    turn, place = divmod(number, batches_per_pass)
    indices = list(range(count))
    random.Random(f"{seed}-{turn}").shuffle(indices)
    return indices[place * size : (place + 1) * size]


def all_tasks(dataset: Dataset[Any] | None) -> list[Any]:
    """The tasks of a validation set, in their order."""
    if dataset is None:
        return []
    if isinstance(dataset, SizedDataset):
        return [dataset[index] for index in range(len(dataset))]
    return _read(dataset)


def divided(dataset: Dataset[Any], train_split: float) -> tuple[list[Any], list[Any]]:
    """The tasks to learn from and those to validate on, as `Baseline` divides a training set."""
    source = dataset if isinstance(dataset, SizedDataset) else iter(_read(dataset))
    tasks = Tasks(source, None, train_split=train_split)
    sides: tuple[list[Any], list[Any]] = [], []
    # In the order of their numbers, as an iterable can be read.
    for index, side in heapq.merge(((i, 0) for i in tasks.train_indices), ((i, 1) for i in tasks.val_indices)):
        sides[side].append(tasks[index])
    return sides


def _read(stream: Any) -> list[Any]:
    tasks = []
    for task in stream:
        tasks.append(task)
        if len(tasks) > LARGEST_STREAM:
            raise ConfigError(
                f"the data set is an iterable of more than {LARGEST_STREAM:,} tasks, and epochs need all of them: use "
                "a data set with __len__ and __getitem__"
            )
    return tasks
