"""A store of one's own, plugged in by overriding `_make_store`.

    python examples/custom_store.py

This one keeps everything in memory and writes a line to a journal for every rollout that is asked for. Any store that
has the methods of `LightningStore` will do; the strategy serves it to the runner processes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sharpen import EnqueueRolloutRequest, ExecutionStrategy, InMemoryLightningStore, Rollout, Trainer


class JournalStore(InMemoryLightningStore):
    """Remembers on paper what was asked for."""

    def __init__(self, journal: Path) -> None:
        super().__init__()
        self.journal = journal

    async def enqueue_many_rollouts(self, requests: Sequence[EnqueueRolloutRequest]) -> list[Rollout]:
        with self.journal.open("a", encoding="utf-8") as file:
            file.writelines(f"{request.mode}: {request.input}\n" for request in requests)
        return await super().enqueue_many_rollouts(requests)


class MyTrainer(Trainer):
    """Like any trainer, with its own store."""

    def _make_store(self, store: Any, strategy: ExecutionStrategy | None = None) -> JournalStore:
        return JournalStore(Path("journal.txt"))


def agent(task: str) -> float:
    """Likes long words."""
    return len(task) / 10


if __name__ == "__main__":
    trainer = MyTrainer(algorithm="Baseline")
    trainer.fit(agent, ["one", "three"], ["four"])
    print(Path("journal.txt").read_text(encoding="utf-8"), end="")
