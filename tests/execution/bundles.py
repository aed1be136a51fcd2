"""Bundles for the tests: an algorithm that enqueues tasks, and a runner that does what each task says."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sharpen.runner import RunnerWornOut, worker_name
from sharpen.store import LightningStore
from sharpen.types import AttemptedRollout, Rollout, RolloutConfig

RETRY = RolloutConfig(max_attempts=3, retry_condition=["unresponsive"])


class Work:
    """Claims rollouts and does what their tasks say, until it is told to stop or has finished `max_rollouts`."""

    def __init__(self, max_rollouts: int | None = None, folder: Path | None = None) -> None:
        self.max_rollouts, self.folder = max_rollouts, folder

    async def __call__(self, store: LightningStore, worker_id: int, event: Any) -> None:
        count = 0
        before = event.finished_before
        self.note(f"start-{worker_id}-{os.getpid()}")
        while not event.is_set() and (self.max_rollouts is None or before + count < self.max_rollouts):
            claimed = await store.dequeue_rollout(worker_id=worker_name(worker_id), wait_seconds=0.1)
            if claimed is None:
                continue
            try:
                reward = await self.do(claimed)
            except asyncio.CancelledError:
                self.note(f"cancelled-{os.getpid()}")
                await store.update_rollout(claimed.rollout_id, status="requeuing")
                raise
            await store.complete_attempt(claimed.rollout_id, claimed.attempt.attempt_id, reward=reward)
            count += 1
            event.finished(count)
        self.note(f"end-{worker_id}-{os.getpid()}")

    async def do(self, claimed: AttemptedRollout) -> float:
        """What the task says, such as `{"sleep": 3}`; what is to happen `once` happens in the first attempt only."""
        task = claimed.input
        kind, value = (task, None) if isinstance(task, str) else next(iter(task.items()))
        if not (kind.endswith(" once") and claimed.attempt.sequence_id > 1):
            action = getattr(self, f"do_{kind.removesuffix(' once')}", None)
            result = None if action is None else action(value)
            if result is not None:
                await result
        return 1.0

    async def do_sleep(self, seconds: float) -> None:
        self.note(f"sleeping-{os.getpid()}")
        await asyncio.sleep(seconds)

    def do_block(self, seconds: float) -> None:
        self.note(f"blocking-{os.getpid()}")
        time.sleep(seconds)

    def do_kill(self, number: int) -> None:
        os.kill(os.getpid(), number)

    def do_exit(self, code: int) -> None:
        os._exit(code)

    def do_raise(self, words: str) -> None:
        raise ValueError(words)

    def do_wear(self, words: str) -> None:
        raise RunnerWornOut(words)

    def do_start(self, _: None) -> None:
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.note(f"started-{started.pid}")

    def do_fork(self, _: None) -> None:
        """Start a fork and terminate it before it has done anything; how it ended is noted."""
        fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(5,))
        fork.start()
        fork.terminate()
        fork.join()
        self.note(f"fork-{fork.exitcode}")

    def do_print(self, words: str) -> None:
        print(words)

    def note(self, name: str) -> None:
        """Leave a sign for the test."""
        if self.folder is not None:
            (self.folder / name).touch()


class Enqueue:
    """Enqueues the tasks, waits for all of them, and keeps how they ended."""

    def __init__(self, *tasks: Any, config: RolloutConfig = RETRY) -> None:
        self.tasks, self.config = tasks, config
        self.rollouts: list[Rollout] = []
        self.seconds: list[float] = []

    async def __call__(self, store: LightningStore, event: Any) -> None:
        began = time.monotonic()
        rollouts = [await store.enqueue_rollout(task, config=self.config) for task in self.tasks]
        ids = [rollout.rollout_id for rollout in rollouts]
        await store.wait_for_rollouts(rollout_ids=ids[:1])
        self.seconds.append(time.monotonic() - began)
        self.rollouts = await store.wait_for_rollouts(rollout_ids=ids)

    @property
    def statuses(self) -> list[str]:
        return [rollout.status for rollout in self.rollouts]


SIGKILL = int(signal.SIGKILL)
