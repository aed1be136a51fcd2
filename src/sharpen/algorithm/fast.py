"""Algorithms that learn nothing and show much: for trying an agent out.

`Baseline` streams the data through the agent. The tasks are read one by one and the queue is kept short, so that a
million of them never lie in memory. The id of each rollout is made from the run and the place of its task, and the
store knows an id that comes twice: a Baseline that starts again runs nothing again.
"""

import asyncio
import heapq
import inspect
import logging
import secrets
import time
from collections.abc import Iterable
from typing import Any, Literal, get_args

from ..errors import ConfigError
from ..runs.screen import show
from ..types import Dataset, EnqueueRolloutRequest, Rollout, RolloutMode, Span, TaskT
from .base import Algorithm, State, is_gateway
from .bounds import UpperBound, counted, product, sum_of
from .datasets import Tasks
from .rewards import Rewards, has_error, why_failed, with_last_attempt

log = logging.getLogger(__name__)
SpanVerbosity = Literal["keys", "key_values", "none"]

PAGE = 1000
MAX_BATCH = 500
CROWD = 64  # with more than this outstanding, completions are taken a few at a time
PACE_SECONDS = 0.02
CHECKPOINT_SECONDS = 10.0
HARVESTS_AT_ONCE = 32


class FastAlgorithm(Algorithm[TaskT]):
    """Base class of quick algorithms that learn nothing, for trying out agents. `Trainer.dev` accepts only these."""


class Baseline(FastAlgorithm[TaskT]):
    """Runs the agent on all tasks without training, and prints a table of rewards at the end.

    For callbacks and loggers, each epoch is an iteration. Failed rollouts are logged.

    Args:
        n_epochs: Number of passes over the tasks.
        train_split: The fraction of the training set to use as training tasks if there is no validation set.
        polling_interval: Maximum seconds of one long poll of the store.
        max_queue_length: Number of rollouts to keep queued; more if the workers are faster.
        span_verbosity: "keys" or "key_values" logs every rollout, with the keys, or the keys and values, of its spans.
    """

    enqueues_tasks = True

    def __init__(
        self,
        *,
        n_epochs: int = 1,
        train_split: float = 0.5,
        polling_interval: float = 5.0,
        max_queue_length: int = 4,
        span_verbosity: SpanVerbosity = "none",
    ) -> None:
        _check(n_epochs, train_split, polling_interval, max_queue_length, span_verbosity)
        self.n_epochs = n_epochs
        self.train_split = train_split
        self.polling_interval = polling_interval
        self.max_queue_length = max_queue_length
        self.span_verbosity = span_verbosity
        self._loaded: State | None = None
        self._key, self._start, self._epoch = "", (0, 0), 0
        self.rewards = self._epoch_rewards = Rewards()

    # -- the run -------------------------------------------------------------------------------------

    async def run(self, train_dataset: Dataset[TaskT] | None = None, val_dataset: Dataset[TaskT] | None = None) -> None:
        self._check_datasets(train_dataset, val_dataset)
        self._begin()
        resources_id = await self._publish_resources()
        self.checkpoint()
        for epoch in range(self._start[0], self.n_epochs):
            if self.should_stop:
                break
            self.begin_iteration()
            tasks = Tasks(train_dataset, val_dataset, train_split=self.train_split)
            self._epoch, self._next_index, self._epoch_rewards = epoch, 0, Rewards()
            if self.n_epochs > 1:
                log.info("epoch %d of %d", epoch + 1, self.n_epochs)
            await self._run_epoch(tasks, resources_id)
            self._start = (epoch + 1, 0)
            self._report_epoch()
            self.checkpoint()
        if self.rewards.all.count:  # none in a run that is resumed after its end
            show(self.rewards.table("rewards"))

    def upper_bound(self, train_size: int | None, val_size: int | None) -> UpperBound:
        tasks = sum_of((train_size, val_size))
        told = f"Baseline: {counted(self.n_epochs, 'epoch')} (n_epochs) of {counted(tasks, 'task')}, one rollout each"
        return UpperBound(product(self.n_epochs, tasks), because=(told,))

    def _report_epoch(self) -> None:
        by_mode = self._epoch_rewards.by_mode
        train = by_mode.get("train") if by_mode else self._epoch_rewards.all
        val = by_mode.get("val")
        self.report_iteration(
            {} if train is None else train.numbers(), val_metrics=None if val is None else val.numbers()
        )

    def _check_datasets(self, train: Dataset[Any] | None, val: Dataset[Any] | None) -> None:
        if train is None and val is None:
            raise ConfigError("Baseline has no tasks: pass train_dataset, val_dataset or both to fit or dev")
        for name, dataset in (("train_dataset", train), ("val_dataset", val)):
            if self.n_epochs > 1 and hasattr(dataset, "__next__"):
                raise ConfigError(
                    f"{name} is a {type(dataset).__name__}, which can be read only once, but n_epochs is "
                    f"{self.n_epochs}: use a list, or an object whose __iter__ starts from the beginning"
                )

    def _begin(self) -> None:
        state = self._loaded or {"key": secrets.token_hex(6), "epoch": 0, "index": 0, "cursor": 0}
        self._loaded = None  # a second run is a new one
        self._key = state["key"]
        self._start = (state["epoch"], state["index"])
        self._epoch = state["epoch"]
        self._seen_cursor = state["cursor"]
        self.rewards = Rewards()
        self._outstanding: dict[str, int] = {}
        self._next_index = 0
        self._cursor = 0
        self._window = Window(self.max_queue_length)
        self._has_room = asyncio.Event()
        self._harvesting = asyncio.Semaphore(HARVESTS_AT_ONCE)
        self._began = time.time()
        self._next_look = self._slots_known_until = 0.0
        self._slots, self._looked_at = 0, (time.monotonic(), 0)
        self._next_checkpoint = time.monotonic() + CHECKPOINT_SECONDS

    async def _publish_resources(self) -> str | None:
        resources = self.get_initial_resources()
        if resources is None:
            return None
        published = await self.get_store().add_resources(resources, resources_id=f"rs-{self._key}")
        return published.resources_id

    async def _run_epoch(self, tasks: Tasks[Any], resources_id: str | None) -> None:
        enqueuing = asyncio.ensure_future(
            self._enqueue_rollouts(tasks, tasks.train_indices, tasks.val_indices, resources_id)
        )
        following = asyncio.ensure_future(self._follow(enqueuing))
        both = (enqueuing, following)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
            for each in both:
                if each.done():
                    each.result()
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    # -- asking for rollouts -------------------------------------------------------------------------

    async def _enqueue_rollouts(
        self, dataset: Any, train_indices: Iterable[int], val_indices: Iterable[int], resources_id: str | None
    ) -> None:
        """Enqueue a rollout for every index, in ascending order, as room becomes free. Override to enqueue others."""
        train = ((index, "train") for index in train_indices)
        val = ((index, "val") for index in val_indices)
        batch: list[EnqueueRolloutRequest] = []
        first = self._start[1] if self._epoch == self._start[0] else 0
        last_time = time.monotonic()
        for index, mode in heapq.merge(train, val):
            task = dataset[index]
            if index < first:
                continue
            batch.append(self._request(index, mode, task, resources_id))  # type: ignore[arg-type]
            # A data set that takes its time must not hold back the tasks that it has given.
            is_due = time.monotonic() - last_time > PACE_SECONDS
            room = await self._room()
            if is_due or len(batch) >= min(room, MAX_BATCH):
                await self._enqueue(batch)
                batch, last_time = [], time.monotonic()
        if batch:
            await self._enqueue(batch)

    def _request(self, index: int, mode: RolloutMode, task: Any, resources_id: str | None) -> EnqueueRolloutRequest:
        return EnqueueRolloutRequest(
            task,
            mode,
            resources_id,
            metadata={"epoch": self._epoch, "index": index},
            rollout_id=f"ro-{self._key}-{self._epoch}-{mode}-{index}",
        )

    async def _room(self) -> int:
        """How many more may be outstanding; waits until that is at least one."""
        while (free := self._window.limit - len(self._outstanding)) <= 0:
            self._has_room.clear()
            await self._has_room.wait()
        return free

    async def _enqueue(self, batch: list[EnqueueRolloutRequest]) -> None:
        ids = {request.rollout_id: (request.metadata or {})["index"] for request in batch}
        # Before the call: one of them may be finished before it returns.
        self._outstanding |= ids  # type: ignore[arg-type]
        for rollout in await self.get_store().enqueue_many_rollouts(batch):
            if rollout.is_finished:  # by an earlier life of this run
                self._outstanding.pop(rollout.rollout_id, None)
        self._next_index = max(ids.values()) + 1

    # -- taking what has finished --------------------------------------------------------------------

    async def _follow(self, enqueuing: "asyncio.Future[None]") -> None:
        """Take completions in their order until everything that was enqueued has finished."""
        store = self.get_store()
        while True:
            has_ended = enqueuing.done() and not await self._is_anything_left()
            wait_seconds = 0 if has_ended else min(self.polling_interval, self._seconds_to_look())
            page = await store.finished_rollouts(after=self._cursor, limit=PAGE, wait_seconds=wait_seconds)
            await self._take(page.items, is_known=page.cursor <= self._seen_cursor)
            self._cursor = page.cursor
            if has_ended and not page.items:
                return
            self._has_room.set()
            await self._look(has_more=not enqueuing.done())
            if len(self._outstanding) > CROWD:
                await asyncio.sleep(PACE_SECONDS)

    async def _is_anything_left(self) -> bool:
        if self._outstanding:
            return True
        if type(self)._enqueue_rollouts is Baseline._enqueue_rollouts:
            return False
        statistics = await self.get_store().statistics()  # others than ours were enqueued: ask the store
        return statistics["queue_length"] + statistics["open_attempts"] > 0

    async def _take(self, rollouts: list[Rollout], *, is_known: bool) -> None:
        mine = [rollout for rollout in rollouts if self._is_mine(rollout)]
        await asyncio.gather(*(self._take_one(rollout, is_known=is_known) for rollout in mine))

    def _is_mine(self, rollout: Rollout) -> bool:
        if type(self)._enqueue_rollouts is not Baseline._enqueue_rollouts:
            return rollout.start_time >= self._began
        return rollout.rollout_id.startswith(f"ro-{self._key}-")

    async def _take_one(self, rollout: Rollout, *, is_known: bool) -> None:
        rollout = await with_last_attempt(self.get_store(), rollout)
        self.rewards.add(rollout)
        if (rollout.metadata or {}).get("epoch", self._epoch) == self._epoch:  # a resumed run sees earlier ones again
            self._epoch_rewards.add(rollout)
        self._outstanding.pop(rollout.rollout_id, None)
        if is_known:  # shown by an earlier life of this run
            return
        async with self._harvesting:
            await self._harvest_rollout_spans(rollout.rollout_id)
            handled: Any = self._handle_rollout_finish(rollout)
            if inspect.isawaitable(handled):
                await handled

    async def _harvest_rollout_spans(self, rollout_id: str) -> None:
        """Log the spans of a finished rollout. Override to do more with them."""
        if self.span_verbosity == "none" or not log.isEnabledFor(logging.INFO):
            return
        spans = await self.get_store().query_spans(rollout_id, "latest")
        log.info("%s: %s", rollout_id, "; ".join(map(self._span_text, spans)) or "no spans")

    def _span_text(self, span: Span) -> str:
        if self.span_verbosity == "keys":
            return f"{span.name} ({', '.join(span.attributes)})"
        return f"{span.name} ({', '.join(f'{key}={value!r}' for key, value in span.attributes.items())})"

    async def _handle_rollout_finish(self, rollout: Rollout) -> None:
        """Log the result of a finished rollout. Override to do more with it."""
        seconds = (rollout.end_time or rollout.start_time) - rollout.start_time
        reason = why_failed(rollout)
        outcome = f"{rollout.status} ({reason})" if reason else rollout.status
        level = logging.DEBUG if self.span_verbosity == "none" else logging.INFO
        if rollout.status == "failed" and not has_error(rollout):  # the runner has logged an error
            level = logging.WARNING
        log.log(level, "%s: %s, reward %s, %.1f s", rollout.rollout_id, outcome, rollout.reward, seconds)

    # -- keeping the queue long enough ---------------------------------------------------------------

    def _seconds_to_look(self) -> float:
        return max(self._next_look - time.monotonic(), 0.001)

    async def _look(self, *, has_more: bool) -> None:
        now = time.monotonic()
        if now >= self._next_checkpoint:
            self.checkpoint()
            self._next_checkpoint = now + CHECKPOINT_SECONDS
        if now < self._next_look:
            return
        statistics = await self.get_store().statistics()
        seconds, finished = now - self._looked_at[0], self.rewards.all.count - self._looked_at[1]
        self._looked_at = (now, self.rewards.all.count)
        self._window.measured(
            outstanding=len(self._outstanding),
            queue_length=statistics["queue_length"],
            slots=await self._count_slots(),
            finished_per_second=finished / seconds,
            has_more=has_more,
        )
        self._has_room.set()
        self._next_look = time.monotonic() + self._window.next_look_seconds

    async def _count_slots(self) -> int:
        """How many rollouts the workers can have in hand, by their heartbeats of the last minute."""
        if time.monotonic() >= self._slots_known_until:
            workers = [each for each in await self.get_store().query_workers() if not is_gateway(each)]
            alive = [worker for worker in workers if (worker.last_heartbeat_time or 0) > time.time() - 60]
            self._slots = sum(int((worker.heartbeat_stats or {}).get("slots", 1)) for worker in alive)
            self._slots_known_until = time.monotonic() + (2.0 if self._slots else 0.0)
        return self._slots

    # -- checkpoints ---------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Which run it is, and a place before which everything has finished."""
        if not self._key:
            return self._loaded or {}
        epoch, index = self._start
        if self._epoch == epoch:
            index = min(self._outstanding.values(), default=max(self._next_index, index))
        return {"key": self._key, "epoch": epoch, "index": index, "cursor": self._cursor}

    def load_state_dict(self, state: State) -> None:
        self._loaded = state


def _check(
    n_epochs: int, train_split: float, polling_interval: float, max_queue_length: int, span_verbosity: str
) -> None:
    if n_epochs < 1:
        raise ConfigError(f"n_epochs is {n_epochs}: use 1 or more")
    if not 0 <= train_split <= 1:
        raise ConfigError(f"train_split is {train_split}: use the fraction of the tasks to train on, from 0 to 1")
    if polling_interval <= 0:
        raise ConfigError(f"polling_interval is {polling_interval}: use a number of seconds above 0")
    if max_queue_length < 1:
        raise ConfigError(f"max_queue_length is {max_queue_length}: use 1 or more")
    if span_verbosity not in get_args(SpanVerbosity):
        raise ConfigError(f"span_verbosity is {span_verbosity!r}: use one of {', '.join(get_args(SpanVerbosity))}")


# -- how many rollouts to have outstanding ------------------------------------------------------------


MAX_LENGTH = 4096
AHEAD_SECONDS = 0.25
EAGER_SECONDS = 0.05
CALM_SECONDS = 0.5


class Window:
    """The bound on outstanding rollouts, and when to measure again."""

    def __init__(self, length: int) -> None:
        self._shortest = self._length = length
        self.limit = length + 1
        self.next_look_seconds = EAGER_SECONDS

    def measured(
        self, *, outstanding: int, queue_length: int, slots: int, finished_per_second: float, has_more: bool
    ) -> None:
        """Take what was seen in the store: how long the queue is, and how many rollouts all workers can have."""
        is_starved = queue_length == 0 and outstanding > 0 and has_more
        wanted = max(self._shortest, slots, round(finished_per_second * AHEAD_SECONDS))
        self._length = min(max(wanted, self._length * 2 if is_starved else 0), MAX_LENGTH)
        in_hand = max(outstanding - queue_length, 0)
        self.limit = in_hand + self._length
        self.next_look_seconds = EAGER_SECONDS if is_starved or not slots else CALM_SECONDS
