"""A run of two stages, for tests that kill it: `python sequence.py RECORD [FOLDER-TO-RESUME]`.

What begins, runs and ends is a line of the record. The second stage waits before its third step, unless the record says
`go`.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

from sharpen.algorithm import Algorithm
from sharpen.trainer import Trainer
from sharpen.types import PromptTemplate

STEPS = 4


class Growing(Algorithm[Any]):
    """Every step has rollouts with the newest prompt, and publishes one that is a letter longer."""

    def __init__(self, letter: str, record: str, *, waits_at: int | None = None) -> None:
        self.letter, self.record, self.waits_at, self.step = letter, Path(record), waits_at, 0

    def note(self, line: str) -> None:
        with self.record.open("a") as file:
            file.write(f"{line}\n")

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        first = (self.get_initial_resources() or {})["prompt"]
        assert isinstance(first, PromptTemplate)
        self.note(f"begin {self.letter} at {self.step} with {first.template}")
        while self.step < STEPS:
            if self.step == self.waits_at and "go" not in self.record.read_text():
                self.note("waiting")
                await asyncio.sleep(600)
            await self._one_step(first, train_dataset)
        self.note(f"end {self.letter}")

    async def _one_step(self, first: PromptTemplate, tasks: Any) -> None:
        store, names = self.get_store(), [f"ro-{self.letter}-{self.step}-{task}" for task in tasks]
        for task, name in zip(tasks, names, strict=True):
            await store.enqueue_rollout(task, rollout_id=name)
        await store.wait_for_rollouts(rollout_ids=names)
        self.step += 1
        text = first.template + self.letter * self.step
        await store.add_resources({"prompt": PromptTemplate(text)}, resources_id=f"rs-{text}")
        self.report_iteration({"length": float(len(text))})
        self.checkpoint()

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


class Second(Growing):
    """A class of its own."""


def agent(task: float) -> float:
    time.sleep(float(os.environ.get("ROLLOUT_SECONDS", "0")))
    return task


def main(record: str, folder: str | None = None) -> None:
    stages = [Growing("a", record), Second("b", record, waits_at=2)]
    retried = {"unresponsive_seconds": 1, "max_attempts": 9, "retry_condition": ["unresponsive"]}
    seed = {"prompt": PromptTemplate(">")}
    trainer = Trainer(algorithm=stages, strategy="shm", initial_resources=seed, rollout_config=retried)
    result = trainer.fit(agent, [1.0, 2.0], resume=folder)
    found = (result.best_resources or {})["prompt"]
    assert isinstance(found, PromptTemplate)
    print(result.status, found.template, trainer.current_iter)


if __name__ == "__main__":
    main(*sys.argv[1:])
