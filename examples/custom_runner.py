"""A runner of one's own: override `execute`, which runs one claimed rollout.

    python examples/custom_runner.py

Here it measures every rollout, in four runner processes of which each may run 50. A hook with a signature of its own
is called with just what it takes.
"""

import time
from typing import Any

from sharpen import AttemptedRollout, Hook, Rollout, Trainer
from sharpen.runner import Runner


class MyRunner(Runner[str]):
    """Says how long every rollout took."""

    async def execute(self, rollout: AttemptedRollout) -> Any:
        began = time.perf_counter()
        try:
            return await super().execute(rollout)
        finally:
            print(f"rollout {rollout.id} took {time.perf_counter() - began:.3f} s", flush=True)


class LogRolloutStart(Hook):
    """Says when a rollout starts."""

    async def on_rollout_start(self, rollout: Rollout) -> None:  # type: ignore[override]
        print(f"🚀 rollout {rollout.id} started", flush=True)


def agent(task: str) -> float:
    """Likes long words."""
    return len(task) / 10


if __name__ == "__main__":
    trainer = Trainer(
        runner=MyRunner,
        hooks=[LogRolloutStart()],
        n_runners=4,
        max_rollouts=50,
    )
    trainer.dev(agent, ["one", "two", "three", "four"])
