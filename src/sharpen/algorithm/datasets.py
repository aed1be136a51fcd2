"""Data sets as algorithms read them: in batches, or task by task without ever holding all of them.

Which tasks a step works on follows from the seed alone, so a run that is resumed meets the same.
"""

import heapq
import math
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar

from ..errors import ConfigError
from ..types import Dataset, RolloutMode, SizedDataset

T = TypeVar("T")
# Validation tasks are numbered behind the training tasks. Where nobody knows how many those are, from here on.
_FAR = 1 << 40


def size_of(dataset: Dataset[Any] | None) -> int | None:
    """How many tasks there are; None for an iterable, which does not say."""
    if dataset is None:
        return 0
    return len(dataset) if isinstance(dataset, SizedDataset) else None


def batch_iter_over_dataset(
    dataset: Dataset[T], batch_size: int, *, rng: random.Random | None = None
) -> Iterator[Sequence[T]]:
    """Yield batches forever. Every pass over the data set is shuffled again, and a batch may span two passes.

    A data set that is not larger than a batch is yielded whole each time. An iterable is read in its own order, pass
    after pass; a generator can be read only once, so the batches end with it.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}: use 1 or more")
    if isinstance(dataset, SizedDataset):
        if len(dataset) == 0:
            raise ConfigError("the data set is empty: it needs at least one task")
        return _shuffled_batches(dataset, min(batch_size, len(dataset)), rng or random.Random())
    return _batches_in_order(dataset, batch_size)


def _shuffled_batches(dataset: SizedDataset[T], batch_size: int, rng: random.Random) -> Iterator[Sequence[T]]:
    waiting: deque[int] = deque()
    while True:
        if len(waiting) < batch_size:
            indices = list(range(len(dataset)))
            rng.shuffle(indices)
            # What is left of the last pass comes first, and no task comes twice in one batch.
            left = set(waiting)
            waiting.extend([index for index in indices if index not in left] + [i for i in indices if i in left])
        yield [dataset[waiting.popleft()] for _ in range(batch_size)]


def _batches_in_order(dataset: Iterable[T], batch_size: int) -> Iterator[Sequence[T]]:
    tasks = iter(dataset)
    while batch := list(islice(tasks, batch_size)):
        if len(batch) < batch_size:
            tasks = iter(dataset)
            batch += islice(tasks, batch_size - len(batch))
        yield batch


class Tasks(Generic[T]):
    """A training and a validation set, read task by task in the order of their indices.

    `train_indices` and `val_indices` are ranges where the sizes are known. For an iterable they are read on demand:
    walk through them in ascending order, and only as many tasks are held as lie between the two.
    """

    def __init__(self, train: Dataset[T] | None, val: Dataset[T] | None, *, train_split: float) -> None:
        self._train, self._val = _Source(train), _Source(val)
        self.train_indices: Iterable[int]
        self.val_indices: Iterable[int]
        size = self._train.size
        if val is not None:
            self._val_start = _FAR if size is None else size
            self.train_indices = self._train.indices(0)
            self.val_indices = self._val.indices(self._val_start)
        elif size is not None:
            self._val_start = _FAR
            cut = round(size * train_split)
            self.train_indices, self.val_indices = range(cut), range(cut, size)
        else:
            self._val_start = _FAR
            split = _Split(self._train, train_split)
            self.train_indices, self.val_indices = split.of("train"), split.of("val")

    def __getitem__(self, index: int) -> T:
        if index < self._val_start:
            return self._train[index]
        return self._val[index - self._val_start]


class _Source(Generic[T]):
    """One data set by index; of an iterable, those that have been read and not yet been taken."""

    def __init__(self, dataset: Dataset[T] | None) -> None:
        self.size = size_of(dataset)
        self._sized = dataset if isinstance(dataset, SizedDataset) else None
        self._stream: Iterator[T] = iter(()) if dataset is None or self._sized is not None else iter(dataset)
        self._read: dict[int, T] = {}
        self._next = 0

    def __getitem__(self, index: int) -> T:
        return self._sized[index] if self._sized is not None else self._read.pop(index)

    def indices(self, start: int) -> Iterable[int]:
        if self.size is not None:
            return range(start, start + self.size)
        return (start + index for index in iter(self.read_next, None))

    def read_next(self) -> int | None:
        """The index of the next task of an iterable; None at its end."""
        for task in self._stream:
            index, self._next = self._next, self._next + 1
            self._read[index] = task
            return index
        return None


class _Split(Generic[T]):
    """Deals the tasks of one iterable out to training and validation, evenly spread."""

    def __init__(self, source: _Source[T], train_split: float) -> None:
        self._source, self._train_split = source, train_split
        self._dealt: dict[RolloutMode, deque[int]] = {"train": deque(), "val": deque()}

    def of(self, mode: RolloutMode) -> Iterable[int]:
        share = self._train_split if mode == "train" else 1 - self._train_split
        # A side that gets nothing must not read the whole stream in search of its first task.
        return self._indices(mode) if share > 0 else ()

    def _indices(self, mode: RolloutMode) -> Iterator[int]:
        mine = self._dealt[mode]
        while True:
            while not mine:
                index = self._source.read_next()
                if index is None:
                    return
                self._dealt[self._mode_of(index)].append(index)
            yield mine.popleft()

    def _mode_of(self, index: int) -> RolloutMode:
        is_train = int((index + 1) * self._train_split) > int(index * self._train_split)
        return "train" if is_train else "val"


# -- which tasks a step works on ----------------------------------------------------------------------


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
